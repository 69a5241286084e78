"""Where a query begins and ends, and its ranges of offsets as tasks; large ranges are cut to use every core.

Spark plans a Python source in a process that cannot reach the driver. That process inherits the driver's
environment, where `hawser.spark.session()` puts the number of the cluster's cores as far as the settings
say it. Without that number the source assumes several cores: a needless task costs little, an idle core much.
"""

import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from hawser.cluster.wire import TopicEntry
from hawser.errors import OffsetOutOfRange, UsageError
from hawser.spark.connection import Connection
from hawser.spark.source.offsets import Bounded, Offsets, Place, Range, ends, lost_text, starts
from hawser.spark.source.options import EARLIEST, LATEST, Options, Positions, Times

__all__ = ["Split", "batch_end", "beginning", "lost", "plan"]

_log = logging.getLogger("hawser.spark.source")

CORES_VARIABLE: Final = "HAWSER_SPARK_CORES"
_ASSUMED_CORES: Final = 16

# A task costs some milliseconds: below this size a cut costs more than it gains.
_LEAST_ROWS: Final = 50_000
# A failed task is repeated: above this size that costs too much.
_MOST_ROWS: Final = 2_000_000


@dataclass
class Split(InputPartition):
    """The range of one task. `turn` spreads the tasks over the replicas; only the leader serves the newest
    records, because followers may not have them yet."""

    wanted: Range
    turn: int


def plan(ranges: Iterable[Range], min_partitions: int | None, max_records: int | None = None) -> list[Split]:
    """Tasks for all ranges, of at most `max_records` each, and at least `min_partitions` if there are so many
    records."""
    whole = [each for each in ranges if each.records]
    total = sum(each.records for each in whole)
    if min_partitions is not None:
        most = max(1, total // min_partitions)
    else:
        most = min(max(math.ceil(total / _cores()), _LEAST_ROWS), _MOST_ROWS)
    if max_records is not None:
        most = min(most, max_records)
    return [cut for each in whole for cut in _cut(each, math.ceil(each.records / most))]


def _cores() -> int:
    """The number of cores of the cluster that runs the tasks."""
    told = os.environ.get(CORES_VARIABLE, "")
    return max(1, int(told)) if told.isdecimal() else _ASSUMED_CORES


def _cut(whole: Range, pieces: int) -> list[Split]:
    """Cut a range into parts of nearly equal size."""
    places = [whole.first + whole.records * place // pieces for place in range(pieces + 1)]
    return [
        Split(whole._replace(first=first, end=end), pieces - turn)
        for turn, (first, end) in enumerate(pairwise(places), 1)
    ]


def beginning(
    options: Options, cluster: Connection, topics: dict[str, TopicEntry], bounds: Mapping[str, Bounded]
) -> Offsets:
    """The first offset of each partition that is to be read."""
    usual = starts(bounds) if options.usual_start == "earliest" else ends(bounds)
    if options.start_times is not None:
        return _since(options.start_times, options, cluster, topics, bounds, usual)
    if options.start == "earliest":
        return starts(bounds)
    if options.start == "latest":
        return ends(bounds)
    offsets = _placed("startingOffsets", options.start, bounds, usual)
    for name, place in offsets.items():
        for number, at in place.partitions.items():
            start = bounds[name].partitions[number].start
            if at < start:
                lost(lost_text(name, number, at, start - 1), options.fail_on_data_loss)
                place.partitions[number] = start
    return offsets


def batch_end(
    options: Options, cluster: Connection, topics: dict[str, TopicEntry], bounds: Mapping[str, Bounded]
) -> Offsets:
    """The offset behind the last of each partition that is to be read."""
    offsets = ends(bounds)
    if options.end_times is not None:
        times = _each(_option("ending", options.end_times), options.end_times, bounds)
        for (name, number), found in cluster.at_times(topics, times).items():
            # Newer records belong to the next query, whatever their time is.
            offsets[name].partitions[number] = min(found.offset, offsets[name].partitions[number])
        return offsets
    return offsets if isinstance(options.end, str) else _placed("endingOffsets", options.end, bounds, offsets)


def _since(
    times: Times,
    options: Options,
    cluster: Connection,
    topics: dict[str, TopicEntry],
    bounds: Mapping[str, Bounded],
    usual: Offsets,
) -> Offsets:
    """The first records at these times or later. UsageError if a partition has none, unless the options let
    it begin at its end then."""
    option = _option("starting", times)
    found = cluster.at_times(topics, _each(option, times, bounds))
    without = ", ".join(f"{name}/{number}" for (name, number), each in found.items() if not each.is_there)
    if without and options.fail_on_no_match:
        raise UsageError(
            f"{option}: no record is so new in {without}; give an earlier time, or let these begin at their "
            "end with startingOffsetsByTimestampStrategy=latest"
        )
    for (name, number), each in found.items():
        usual[name].partitions[number] = each.offset
    return usual


def _option(end: str, times: Times) -> str:
    """The option that gave these times."""
    return f"{end}Timestamp" if isinstance(times, int) else f"{end}OffsetsByTimestamp"


def _each(option: str, times: Times, bounds: Mapping[str, Bounded]) -> dict[tuple[str, int], int]:
    """The time of each partition that has one, in milliseconds."""
    if isinstance(times, int):
        return {(name, number): times for name, each in bounds.items() for number in each.partitions}
    _check_names(option, times, bounds)
    return {(name, number): at for name, each in times.items() for number, at in each.items()}


def _placed(option: str, positions: Positions, bounds: Mapping[str, Bounded], usual: Offsets) -> Offsets:
    """These positions as offsets, and `usual` in the partitions that have none."""
    _check_names(option, positions, bounds)
    offsets: Offsets = {}
    for name, each in bounds.items():
        partitions = dict(usual[name].partitions)
        for number, asked in positions.get(name, {}).items():
            start, end, _ = each.partitions[number]
            at = {EARLIEST: start, LATEST: end}.get(asked, asked)
            if at > end:
                raise UsageError(
                    f"{option}: offset {at} of topic {name!r}, partition {number} is not there yet; it has "
                    f"{start} up to {end - 1}, and {end} is next"
                )
            partitions[number] = at
        offsets[name] = Place(each.uuid, partitions)
    return offsets


def _check_names(option: str, named: Mapping[str, Mapping[int, int]], bounds: Mapping[str, Bounded]) -> None:
    """UsageError if one of them is not read at all."""
    strange = [
        f"{name}/{number}"
        for name, partitions in sorted(named.items())
        for number in sorted(partitions)
        if name not in bounds or number not in bounds[name].partitions
    ]
    if strange:
        raise UsageError(
            f"{option} names {', '.join(strange)}, which this query does not read; leave them out, or ask "
            "for them with subscribe or assign"
        )


def lost(text: str, fail: bool) -> None:
    """Report records that can no longer be read: raise an error, or log a line."""
    if fail:
        raise OffsetOutOfRange(
            f"{text}. Set failOnDataLoss=false to go on without them, and see the topic's retention, which a "
            "groupId holds back"
        )
    _log.warning("%s", text)
