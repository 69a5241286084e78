"""The scope of an audit's directory: the topics, trace and landing that it has evidence of. It only grows.

A stream continues even if its table is another one, and evidence knows a topic by its name: either would
count messages twice. So an audit continues to read every topic that it has read before. Another trace or
landing needs another directory, and a topic that was created anew, or restored, needs its evidence made anew.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from hawser.errors import Corrupt, UsageError
from hawser.spark.pipelines.report.elements import put
from hawser.spark.pipelines.topics import PartitionEnds
from hawser.spark.source.offsets import Offsets

__all__ = ["Scope", "check_ends", "widened"]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`trace` and `landing` are empty as long as there is none. `uuids` are those of the topics by their
    names, also of topics that only the landing has."""

    topics: list[str]
    trace: str
    landing: str
    uuids: dict[str, str] = {}


def widened(directory: Path, asked: Scope, made_anew: Collection[str] = ()) -> Scope:
    """The scope with the requested topics added; it is saved before anything is read. UsageError if
    the two contradict each other, unless the tables of evidence that do are `made_anew`."""
    path = directory / "scope.json"
    known = _read(path) if path.exists() else Scope([], "", "")
    for name, before, now in (("trace", known.trace, asked.trace), ("landing", known.landing, asked.landing)):
        if before and now and before != now:
            raise UsageError(
                f"{directory} has evidence of the {name} {before}, not of {now}: give that, or another --dir"
            )
    topics = list(dict.fromkeys([*known.topics, *asked.topics]))
    trace, landing = known.trace or asked.trace, known.landing or asked.landing
    changed = [
        name
        for name in [*asked.topics, *([trace] if trace else [])]
        if known.uuids.get(name, asked.uuids.get(name)) != asked.uuids.get(name)
    ]
    evidence = ["log_runs", *(["trace_runs"] if trace else []), *(["landed_runs"] if landing else [])]
    is_made_anew = set(evidence) <= set(made_anew)
    if changed and not is_made_anew:
        cure = " ".join(f"--full-refresh {each}" for each in evidence)
        raise UsageError(
            f"{directory} has evidence of topic {changed[0]!r}, which was deleted and created anew since. "
            f"Make the evidence anew with {cure}, or give another --dir"
        )
    first, second = (known.uuids, asked.uuids) if is_made_anew else (asked.uuids, known.uuids)
    scope = Scope(topics, trace, landing, {**first, **second})
    directory.mkdir(parents=True, exist_ok=True)
    put(path, msgspec.json.encode(scope))
    return scope


def check_ends(
    directory: Path,
    reached: Mapping[str, Offsets],
    ends: Sequence[PartitionEnds],
    made_anew: Collection[str] = (),
) -> None:
    """UsageError if a log ends before what a table of evidence has `reached` of it: its stream would read the
    log from the start again. Ends that are not known, and topics of another uuid, are not looked at."""
    behind = [
        (table, each, place.partitions[each.partition])
        for table, offsets in reached.items()
        if table not in made_anew
        for each in ends
        if (place := offsets.get(each.topic)) is not None
        if place.uuid == each.topic_uuid and 0 < each.end < place.partitions.get(each.partition, 0)
    ]
    if behind:
        cure = " ".join(f"--full-refresh {table}" for table in dict.fromkeys(table for table, _, _ in behind))
        _, first, end = behind[0]
        raise UsageError(
            f"topic {first.topic!r}, partition {first.partition}, ends at record {first.end - 1}, and "
            f"{directory} has evidence of it up to record {end - 1}, as after a restored backup. "
            f"Make the evidence anew with {cure}, or give another --dir"
        )


def _read(path: Path) -> Scope:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scope)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} is damaged ({error}); take another directory") from error
