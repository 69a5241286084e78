"""Evidence from a log and from a table: rows of the source, and of the landing's raw records, become runs.

Both have of each row a hash of its offset, time, key, value and headers, made by Spark. Of what a recorder
wrote there are runs by the numbers that the messages have on their host as well, hashed as the trace allows:
by number and time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy
import pyarrow

from hawser.record.recording import Gap, is_recorder
from hawser.record.trace import region_number
from hawser.spark.pipelines.auditing.evidence import Group, Messages, batch_of, mixed, ranges_of
from hawser.spark.pipelines.auditing.trace_evidence import region_text

__all__ = ["landed_evidence", "log_evidence", "recorder_of"]


def recorder_of(producer: str) -> tuple[str, str] | None:
    """The name of a recorder, and the region as a trace has it; None if it is none."""
    if not is_recorder(producer.encode()):
        return None
    name, _, region = producer.partition(":")[2].rpartition("/")
    try:
        return name, region_text(region_number(str(UUID(region))))
    except ValueError:
        # A producer that only looks like a recorder by its name.
        return None


def log_evidence(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches with the columns topic, partition, offset, timestamp, producer, producer_sequence, hash, bytes
    and gap, the header of a gap record; as batches of evidence."""
    for batch in batches:
        yield ranges_of(*_replicated(batch))
        recorded = [
            (place, producer, recorder)
            for place, producer in _values(batch.column("producer"))
            if producer is not None and (recorder := recorder_of(producer)) is not None
        ]
        for mask, producer, (name, region) in recorded:
            yield from _recorded(batch.filter(mask), name, region, producer)


def _values(column: Any) -> Iterator[tuple[Any, Any]]:
    """Each value of a column, and a mask of the rows that have it."""
    encoded = column.dictionary_encode(null_encoding="encode")
    if len(encoded.dictionary) == 1:
        yield pyarrow.repeat(pyarrow.scalar(True), len(column)), encoded.dictionary[0].as_py()
        return
    codes = _numbers(encoded.indices)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        yield pyarrow.array(codes == code), value


def _numbers(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _microseconds(column: Any) -> Any:
    return _numbers(column.view(pyarrow.int64()))


def _partitions(batch: Any, what: str) -> tuple[Any, list[Group]]:
    """The group of each row by topic and partition, and the groups."""
    topics = batch.column("topic").dictionary_encode()
    partitions = _numbers(batch.column("partition")).astype("i8")
    codes = _numbers(topics.indices).astype("i8") << 32 | partitions
    found, places = numpy.unique(codes, return_inverse=True)
    names = topics.dictionary.to_pylist()
    return places, [Group(what, names[code >> 32], int(code & 0xFFFF_FFFF)) for code in found]


def _replicated(batch: Any) -> tuple[Messages, list[Group]]:
    places, groups = _partitions(batch, "replicated")
    order = numpy.argsort(places, kind="stable")
    offsets = _numbers(batch.column("offset"))[order]
    times = _microseconds(batch.column("timestamp"))[order]
    sizes = _numbers(batch.column("bytes")).astype("i8")[order]
    return Messages(places[order], offsets, times, offsets, _hashes(batch)[order], sizes), groups


def _hashes(batch: Any) -> Any:
    return _numbers(batch.column("hash")).view("u8")


def _recorded(batch: Any, name: str, region: str, producer: str) -> Iterator[Any]:
    """The records of one recorder: samples, and gaps for lost ones."""
    _, (group, *others) = _partitions(batch, "recorded")
    assert not others, "a task reads one partition"
    group = group._replace(region=region, who=name, carrier=producer)
    gaps = _gaps(batch)
    is_gap = numpy.zeros(batch.num_rows, bool)
    is_gap[list(gaps)] = True
    samples = batch.filter(pyarrow.array(~is_gap))
    numbers = _numbers(samples.column("producer_sequence"))
    times = _microseconds(samples.column("timestamp"))
    places = numpy.zeros(len(numbers), "i8")
    sizes = _numbers(samples.column("bytes")).astype("i8")
    at = _numbers(samples.column("offset"))
    messages = Messages(places, numbers, times, at, mixed(numbers, times), sizes, has_sizes=True)
    yield ranges_of(messages, [group])
    if gaps:
        those = batch.filter(pyarrow.array(is_gap))
        columns = {
            "at_first": those.column("offset"),
            "at_last": those.column("offset"),
            "first": [each.first for each in gaps.values()],
            "last": [each.last for each in gaps.values()],
            "first_us": _microseconds(those.column("timestamp")),
        }
        yield batch_of([group._replace(what="gap")] * len(gaps), columns)


def _gaps(batch: Any) -> dict[int, Gap]:
    """The rows that stand for a gap, by their places. A sample may have such a header by itself: a gap ends
    at the number that its recorder has stamped it with."""
    found = {}
    for place in numpy.flatnonzero(_numbers(batch.column("gap").is_valid())):
        with suppress(ValueError):
            gap = Gap.decode(batch.column("gap")[place].as_py())
            if gap.last == batch.column("producer_sequence")[place].as_py():
                found[int(place)] = gap
    return found


def landed_evidence(late_ns: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The same for rows of the landing's table, with landed_at in the place of the producer; a row is late if
    it landed so long after its time. A table has no order."""

    def make(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield ranges_of(*_landed(batch, late_ns))

    return make


def _landed(batch: Any, late_ns: int) -> tuple[Messages, list[Group]]:
    places, groups = _partitions(batch, "landed")
    offsets = _numbers(batch.column("offset"))
    order = numpy.lexsort((offsets, places))
    landed_us = _microseconds(batch.column("landed_at"))[order]
    times = _microseconds(batch.column("timestamp"))[order]
    messages = Messages(
        places[order],
        offsets[order],
        times,
        landed_us,
        _hashes(batch)[order],
        _numbers(batch.column("bytes")).astype("i8")[order],
        numpy.maximum(landed_us - times, 0) * 1000,
        late_ns,
    )
    return messages, groups
