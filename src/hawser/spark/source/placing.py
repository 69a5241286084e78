"""Where a query begins, and where a batch ends: the words of the options as numbers."""

from collections.abc import Mapping

from hawser.cluster.wire import TopicEntry
from hawser.errors import UsageError
from hawser.spark.source.connection import Connection
from hawser.spark.source.offsets import Bounded, Offsets, Place, ends, lost_text, starts
from hawser.spark.source.options import EARLIEST, LATEST, Options, Positions
from hawser.spark.source.reading import lost

__all__ = ["batch_end", "beginning"]


def beginning(
    options: Options, cluster: Connection, topics: dict[str, TopicEntry], bounds: Mapping[str, Bounded]
) -> Offsets:
    """The first offset of each partition that is to be read."""
    if options.timestamp_ms is not None:
        found = cluster.at_time(topics, options.timestamp_ms)
        return {name: Place(bounds[name].uuid, partitions) for name, partitions in found.items()}
    if options.start == "earliest":
        return starts(bounds)
    if options.start == "latest":
        return ends(bounds)
    offsets = _placed("startingOffsets", options.start, bounds)
    for name, place in offsets.items():
        for number, at in place.partitions.items():
            start = bounds[name].partitions[number].start
            if at < start:
                lost(lost_text(name, number, at, start - 1), options.fail_on_data_loss)
                place.partitions[number] = start
    return offsets


def batch_end(options: Options, bounds: Mapping[str, Bounded]) -> Offsets:
    """The offset behind the last of each partition that is to be read."""
    if isinstance(options.end, str):
        return ends(bounds)
    return _placed("endingOffsets", options.end, bounds)


def _placed(option: str, positions: Positions, bounds: Mapping[str, Bounded]) -> Offsets:
    _check_names(option, positions, bounds)
    offsets: Offsets = {}
    for name, each in bounds.items():
        partitions = {}
        for number, (start, end) in each.partitions.items():
            at = {EARLIEST: start, LATEST: end}.get(positions[name][number], positions[name][number])
            if at > end:
                raise UsageError(
                    f"{option}: offset {at} of topic {name!r}, partition {number} is not there yet; it has "
                    f"{start} up to {end - 1}, and {end} is next"
                )
            partitions[number] = at
        offsets[name] = Place(each.uuid, partitions)
    return offsets


def _check_names(option: str, positions: Positions, bounds: Mapping[str, Bounded]) -> None:
    """Each partition and nothing else: one that was forgotten would be read from who knows where."""
    there = {(name, number) for name, each in bounds.items() for number in each.partitions}
    named = {(name, number) for name, each in positions.items() for number in each}
    if there != named:
        missing = ", ".join(f"{name}/{number}" for name, number in sorted(there - named))
        strange = ", ".join(f"{name}/{number}" for name, number in sorted(named - there))
        raise UsageError(
            f"{option} names every partition that is read, and no other"
            + (f"; it lacks {missing}" if missing else "")
            + (f"; there is no {strange}" if strange else "")
        )
