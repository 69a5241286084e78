"""Evidence from a trace: the operations of a host's processes on messages, as runs and events.

The topic that a trace is recorded into has its records as values, and as keys the names of topic and
participant (`hawser.record.trace`). The trace has the operations of each process in order, but not those of
several: messages that several processes publish at once are sorted by number. Messages that a subscriber took
are not sorted, because their order is checked.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.compute

from hawser.errors import Corrupt
from hawser.record.recording import is_recorder
from hawser.record.trace import RECORD_BYTES, TraceKind, split_trace_key, trace_columns
from hawser.spark.pipelines.auditing.evidence import Group, Messages, batch_of, mixed, ranges_of

__all__ = ["region_text", "trace_evidence"]

_MESSAGES: Final = {
    int(TraceKind.PUBLISH): "published",
    int(TraceKind.TAKE): "taken",
    int(TraceKind.PUT): "put",
    int(TraceKind.CLAIM): "claimed",
    int(TraceKind.ACCEPT): "accepted",
    int(TraceKind.RETURNED): "returned",
    int(TraceKind.MOVED): "moved",
}
_EVENTS: Final = {
    int(TraceKind.SUBSCRIBE): "joined",
    int(TraceKind.UNSUBSCRIBE): "left",
    int(TraceKind.RECOVER): "recovered",
    int(TraceKind.MISSED): "missed",
    int(TraceKind.SWITCHED): "switched",
}
# Their records have the time of the message as their own, and its size.
_SENT: Final = (int(TraceKind.PUBLISH), int(TraceKind.PUT))
# Operations of subscribers count for each one; all others for their topic or queue.
_BY_OWNER: Final = (int(TraceKind.TAKE), int(TraceKind.RETURNED))

_OF_MEMBERS: Final = (TraceKind.SUBSCRIBE, TraceKind.UNSUBSCRIBE)
# Participants that publish or put.
_SENDER: Final = 1

_Names = list[tuple[str, str]]


def region_text(number: int) -> str:
    """A region as the trace has it: the first digits of its uuid."""
    return number.to_bytes(8, "little").hex()


def trace_evidence(topic: str, late_ns: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What makes batches of evidence from batches with the columns key, value, producer and
    producer_sequence of `topic`. A message is late if it was taken so long after its time. Corrupt if the
    topic has something else than a trace."""

    def make(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for producer in batch.column("producer").unique().to_pylist():
                if producer is None or not is_recorder(producer.encode()):
                    raise _no_trace(topic, f"it has records of {producer or 'a producer without a name'}")
                mask = pyarrow.compute.equal(batch.column("producer"), producer)
                yield from _of_ring(batch.filter(mask), topic, producer, late_ns)

    return make


def _no_trace(topic: str, why: str) -> Corrupt:
    return Corrupt(
        f"topic {topic!r} is no trace: {why}; give the one that `hawser agent --trace` records into"
    )


def _of_ring(batch: Any, topic: str, carrier: str, late_ns: int) -> Iterator[Any]:
    is_record = pyarrow.compute.greater(pyarrow.compute.binary_length(batch.column("value")), 0)
    lost = batch.filter(pyarrow.compute.invert(is_record)).column("producer_sequence")
    if len(lost):
        columns = {"at_first": lost, "at_last": lost, "first": lost, "last": lost}
        yield batch_of([Group("lost", topic, carrier=carrier)] * len(lost), columns)
    batch = batch.filter(is_record)
    if not batch.num_rows:
        return
    records = _records(batch, topic)
    yield _traced(records["place"].astype("i8"), topic, carrier)
    keys = batch.column("key").dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False).astype("i8")
    names = [split_trace_key(key) for key in keys.dictionary.to_pylist()]
    mask = numpy.isin(records["kind"], list(_MESSAGES))
    done, whose = records[mask], codes[mask]
    firsts, groups = _grouped(done, whose, _stretches(records)[mask])
    yield ranges_of(
        _messages(done, groups, late_ns), [_group(done[each], names[whose[each]], carrier) for each in firsts]
    )
    mask = numpy.isin(records["kind"], list(_EVENTS))
    if mask.any():
        yield _events(records[mask], codes[mask], names, carrier)


def _records(batch: Any, topic: str) -> Any:
    """The fields of the records; see `trace_columns`."""
    values = batch.column("value").cast(pyarrow.binary())
    lengths = pyarrow.compute.binary_length(values)
    if pyarrow.compute.any(pyarrow.compute.not_equal(lengths, RECORD_BYTES)).as_py():
        raise _no_trace(topic, f"it has values that are not of {RECORD_BYTES} bytes")
    _, offsets, data = values.buffers()
    first = int(numpy.frombuffer(offsets, "<i4", 1, 4 * values.offset)[0])
    records = trace_columns(memoryview(data)[first : first + len(values) * RECORD_BYTES])
    places = batch.column("producer_sequence").to_numpy(zero_copy_only=False)
    if not numpy.array_equal(records["place"], places):
        raise _no_trace(topic, "it has records that are not where they say they are")
    return records


def _traced(places: Any, topic: str, carrier: str) -> Any:
    """The records of the trace that are known."""
    nothing = numpy.zeros(len(places), "i8")
    messages = Messages(nothing, places, nothing, places, nothing, nothing)
    return ranges_of(messages, [Group("traced", topic, carrier=carrier)])


def _stretches(records: Any) -> Any:
    """The number of the stretch of each record. A stretch ends where records were lost or tracing was
    switched. No run crosses that, because the side of a message would be unknown."""
    is_first = records["kind"] == TraceKind.SWITCHED
    is_first[1:] |= records["place"][1:] != records["place"][:-1] + 1
    return numpy.cumsum(is_first)


def _grouped(records: Any, keys: Any, stretches: Any) -> tuple[Any, Any]:
    """The place of a record of each group, and of each record its group."""
    by_owner = numpy.isin(records["kind"], _BY_OWNER)
    owner = numpy.where(by_owner, records["owner"], 0).astype("u8")
    key = numpy.where(by_owner, keys, 0)
    kind = records["kind"].astype("i8")
    # One word for all, which is sorted faster than five.
    with numpy.errstate(over="ignore"):
        words = mixed(owner, kind | key << 8) ^ mixed(records["region"], stretches)
    _, firsts, groups = numpy.unique(words, return_index=True, return_inverse=True)
    for column in (kind, records["region"], owner, key, stretches):
        assert numpy.array_equal(column[firsts][groups], column), "two groups have one hash"
    return firsts, groups


def _messages(records: Any, groups: Any, late_ns: int) -> Messages:
    by_place = numpy.isin(records["kind"], _BY_OWNER)
    order = numpy.lexsort((numpy.where(by_place, records["place"], records["sequence"]), groups))
    records = records[order]
    is_sent = numpy.isin(records["kind"], _SENT)
    value = records["value"].astype("i8")
    times_ns = numpy.where(is_sent, records["time_ns"], value)
    numbers, times_us = records["sequence"].astype("i8"), times_ns // 1000
    return Messages(
        groups[order],
        numbers,
        times_us,
        records["place"].astype("i8"),
        mixed(numbers, times_us),
        numpy.where(is_sent, value, 0),
        numpy.maximum(records["time_ns"] - times_ns, 0),
        late_ns,
        has_sizes=True,
    )


def _group(record: Any, names: tuple[str, str], carrier: str) -> Group:
    kind, region = int(record["kind"]), region_text(int(record["region"]))
    group = Group(_MESSAGES[kind], names[0], region=region, carrier=carrier)
    return group._replace(who=names[1], owner=int(record["owner"])) if kind in _BY_OWNER else group


def _events(records: Any, keys: Any, names: _Names, carrier: str) -> Any:
    groups = []
    for record, key in zip(records, keys, strict=True):
        about = record["value"] if record["kind"] == TraceKind.RECOVER else record["owner"]
        topic, who = names[key]
        region = region_text(int(record["region"]))
        what = _EVENTS[int(record["kind"])]
        if record["kind"] in _OF_MEMBERS and record["value"] == _SENDER:
            what = f"sender {what}"
        groups.append(Group(what, topic, -1, region, who, int(about), carrier))
    last, places = records["sequence"].astype("i8"), records["place"].astype("i8")
    # A record of missed samples has the last one and their number.
    how_many = numpy.where(records["kind"] == TraceKind.MISSED, records["value"].astype("i8") - 1, 0)
    columns = {
        "at_first": places,
        "at_last": places,
        "first": last - how_many,
        "last": last,
        "first_us": records["time_ns"] // 1000,
        "process": records["pid"].astype("i8"),
    }
    return batch_of(groups, columns)
