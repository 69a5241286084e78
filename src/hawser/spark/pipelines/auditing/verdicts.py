"""Verdicts: each tier compared with the tier before it, exactly, by arithmetic of ranges.

Numbers are dense, in a region as in a partition. So no list says what a tier should have: it lacks a number
between two that it has, or one that another tier has. That message is *missing* if the witness of the tier
would have seen it, otherwise *unwitnessed* (witness.py), and *pending* if the tier has not come so far.

The result depends on the evidence alone, not on the order of its rows or its division into runs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from hawser.spark.pipelines.auditing.host_tiers import host_lines
from hawser.spark.pipelines.auditing.lines import Run, Verdict, by
from hawser.spark.pipelines.auditing.partition_tiers import partition_lines
from hawser.spark.pipelines.auditing.witness import Witness
from hawser.spark.pipelines.ranges import Range

__all__ = ["judge"]

_OF_TOPICS: Final = ("replicated", "recorded", "gap", "landed")


def judge(
    runs: Iterable[Run],
    in_spark: Mapping[tuple[str, int], Range] | None,
    topics: Collection[str] | None = None,
) -> list[Verdict]:
    """The verdicts on the evidence of these topics, or of all, and of all hosts. `in_spark` are the offsets
    that the landing has committed; None if there is no landing."""
    wanted = [run for run in runs if topics is None or run.topic in topics or run.what not in _OF_TOPICS]
    if in_spark is not None and topics is not None:
        in_spark = {place: each for place, each in in_spark.items() if place[0] in topics}
    by_what = by(_one_of_each_trace(wanted), lambda run: run.what)
    trace = Witness(by_what.get("traced", ()), by_what.get("lost", ()), lambda run: run.carrier)
    lines = [*host_lines(by_what, trace), *partition_lines(by_what, in_spark)]
    lines.sort(key=lambda line: line.place)
    return [verdict for line in lines for verdict in line.verdicts()]


def _one_of_each_trace(runs: list[Run]) -> list[Run]:
    """Of a trace that several agents have recorded, the most complete recording counts."""
    read: Counter[str] = Counter()
    for run in runs:
        if run.what == "traced":
            read[run.carrier] += run.last - run.first + 1
    best = {
        carrier.rpartition("/")[2]: carrier for carrier in sorted(read, key=lambda each: (read[each], each))
    }
    spare = set(read) - set(best.values())
    return [run for run in runs if run.carrier not in spare]
