"""Evidence of messages as runs: ten million messages are some twenty thousand rows.

A run is a maximal range of numbers, each of them once, that were seen one after the other in one place. They
are of one minute, by the messages' own times or that of a newer message before them, and all of them late or
none. A run never crosses a multiple of `BLOCK_MESSAGES`, so that both sides of a comparison are cut alike. A
run has

- the sum of their hashes, modulo 2^64, which does not depend on any order;
- the hash of each, and, where a tier is compared by sizes too, the size of each;
- there also `sized_hash`, the sum of hashes that cover the size as well: two messages whose sizes are
  exchanged leave the sum of sizes as it was, and change this one;
- how long they took, as a histogram of `BUCKETS_PER_OCTAVE` buckets for every doubling of nanoseconds;
- their places, `at_first` to `at_last`: the position in a trace, the offset in a log, the time of a
  micro-batch. `carrier` names the trace, log or table. These give the order of messages, and what was lost
  between them.

Made with numpy in the workers of Spark, from Arrow batches; no Python object for a message.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
import pyarrow

__all__ = [
    "BLOCK_MESSAGES", "BUCKETS_PER_OCTAVE", "COLUMNS", "Group", "Messages", "batch_of", "mixed", "ranges_of",
]  # fmt: skip

BLOCK_MESSAGES: Final = 1 << 12
BUCKETS_PER_OCTAVE: Final = 16
_MINUTE_US: Final = 60_000_000
# More minutes than a timestamp has.
_MINUTES: Final = 1 << 40
# More buckets than a histogram has: 64 bits of nanoseconds.
_BUCKETS: Final = 1 << 11

COLUMNS: Final = (
    "what string, topic string, partition int, region string, who string, owner bigint, carrier string, "
    "at_first bigint, at_last bigint, minute bigint, is_late boolean, first bigint, last bigint, "
    "hash bigint, hashes binary, sizes binary, sized_hash bigint, bytes bigint, first_us bigint, "
    "last_us bigint, slowest_ns bigint, buckets array<int>, counts array<bigint>, process bigint"
)
_SCHEMA: Final = pyarrow.schema(
    [
        ("what", pyarrow.string()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("region", pyarrow.string()),
        ("who", pyarrow.string()),
        ("owner", pyarrow.int64()),
        ("carrier", pyarrow.string()),
        ("at_first", pyarrow.int64()),
        ("at_last", pyarrow.int64()),
        ("minute", pyarrow.int64()),
        ("is_late", pyarrow.bool_()),
        ("first", pyarrow.int64()),
        ("last", pyarrow.int64()),
        ("hash", pyarrow.int64()),
        ("hashes", pyarrow.binary()),
        ("sizes", pyarrow.binary()),
        ("sized_hash", pyarrow.int64()),
        ("bytes", pyarrow.int64()),
        ("first_us", pyarrow.int64()),
        ("last_us", pyarrow.int64()),
        ("slowest_ns", pyarrow.int64()),
        ("buckets", pyarrow.list_(pyarrow.int32())),
        ("counts", pyarrow.list_(pyarrow.int64())),
        ("process", pyarrow.int64()),
    ]
)


class Group(NamedTuple):
    """The origin of messages, which all runs of a group share. `partition` is -1 on a host, which
    has none."""

    what: str
    topic: str
    partition: int = -1
    region: str = ""
    who: str = ""
    owner: int = 0
    carrier: str = ""


class Messages(NamedTuple):
    """Columns of messages, in the order in which runs are looked for. `group` is the index of each message's
    group in a list; without `latency_ns` the latencies are unknown. With `has_sizes` the runs have
    the size of each message and the sum that covers sizes, to be compared with those in another tier."""

    group: Any
    number: Any
    timestamp_us: Any
    at: Any
    hash: Any
    bytes: Any
    latency_ns: Any | None = None
    late_ns: int = 0
    has_sizes: bool = False


def mixed(number: Any, timestamp_us: Any) -> Any:
    """A hash of 64 bits of each message, by its number and its time, or by its hash and its size."""
    with numpy.errstate(over="ignore"):
        found = number.astype("u8") * numpy.uint64(0x9E3779B97F4A7C15)
        found ^= timestamp_us.astype("u8") * numpy.uint64(0xC2B2AE3D27D4EB4F)
        found ^= found >> numpy.uint64(32)
        found *= numpy.uint64(0xD6E8FEB86659FD93)
        found ^= found >> numpy.uint64(29)
    return found


def ranges_of(messages: Messages, groups: Sequence[Group]) -> Any:
    """The runs of these messages, as a pyarrow.RecordBatch of `COLUMNS`."""
    if len(messages.number) == 0:
        return batch_of([], {})
    minutes = _minutes(messages)
    is_late = (
        numpy.zeros(len(minutes), bool)
        if messages.latency_ns is None
        else messages.latency_ns > messages.late_ns
    )
    starts = _starts(messages, minutes, is_late)
    ends = numpy.append(starts[1:], len(minutes)) - 1
    hashes = messages.hash.astype("<u8", copy=False)
    columns = {
        "at_first": numpy.minimum.reduceat(messages.at, starts),
        "at_last": numpy.maximum.reduceat(messages.at, starts),
        "minute": minutes[starts],
        "is_late": is_late[starts],
        "first": messages.number[starts],
        "last": messages.number[ends],
        "hash": numpy.add.reduceat(hashes, starts).view("i8"),
        "hashes": _of_each(hashes, starts),
        "bytes": numpy.add.reduceat(messages.bytes, starts),
        "first_us": numpy.minimum.reduceat(messages.timestamp_us, starts),
        "last_us": numpy.maximum.reduceat(messages.timestamp_us, starts),
    }
    if messages.has_sizes:
        sizes = messages.bytes.astype("<u4")
        columns["sizes"] = _of_each(sizes, starts)
        columns["sized_hash"] = numpy.add.reduceat(mixed(hashes, sizes), starts).view("i8")
    if messages.latency_ns is not None:
        columns |= _histograms(messages.latency_ns, starts)
    return batch_of([groups[place] for place in messages.group[starts]], columns)


def _minutes(messages: Messages) -> Any:
    """The minute of each message. A message that is older than one before it in its group counts in that
    one's minute; otherwise clocks that differ by seconds would cut all messages around a full minute into
    runs of one."""
    assert (numpy.diff(messages.group) >= 0).all(), "groups are one behind the other"
    minutes = messages.timestamp_us // _MINUTE_US
    return (numpy.maximum.accumulate(messages.group * _MINUTES + minutes) - messages.group * _MINUTES) * 60


def _starts(messages: Messages, minutes: Any, is_late: Any) -> Any:
    """The places at which runs begin."""
    number, group = messages.number, messages.group
    is_new = numpy.ones(len(number), bool)
    is_new[1:] = number[1:] != number[:-1] + 1
    blocks = number // BLOCK_MESSAGES
    for column in (group, minutes, is_late, blocks):
        is_new[1:] |= column[1:] != column[:-1]
    return numpy.flatnonzero(is_new)


def _histograms(latency_ns: Any, starts: Any) -> dict[str, Any]:
    runs = numpy.zeros(len(latency_ns), "i8")
    runs[starts[1:]] = 1
    runs = numpy.cumsum(runs)
    buckets = (numpy.log2(numpy.maximum(latency_ns, 1)) * BUCKETS_PER_OCTAVE).astype("i8")
    codes, counts = numpy.unique(runs * _BUCKETS + buckets, return_counts=True)
    offsets = numpy.searchsorted(codes, numpy.arange(len(starts) + 1) * _BUCKETS).astype("i4")
    return {
        "slowest_ns": numpy.maximum.reduceat(latency_ns, starts),
        "buckets": _lists(offsets, (codes % _BUCKETS).astype("i4")),
        "counts": _lists(offsets, counts),
    }


def _of_each(values: Any, starts: Any) -> Any:
    """The values of each run as bytes."""
    offsets = numpy.append(starts, len(values)).astype("<i4") * values.itemsize
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(numpy.ascontiguousarray(values))]
    return pyarrow.Array.from_buffers(pyarrow.binary(), len(starts), buffers)


def _lists(offsets: Any, values: Any) -> Any:
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(values))


def batch_of(groups: Sequence[Group], columns: dict[str, Any]) -> Any:
    """Rows of these groups with these columns, a pyarrow.RecordBatch of `COLUMNS`; the others are null."""
    arrays = []
    for field in _SCHEMA:
        if field.name in Group._fields:
            place = Group._fields.index(field.name)
            arrays.append(pyarrow.array([group[place] for group in groups], field.type))
        elif field.name in columns:
            found = columns[field.name]
            arrays.append(found if isinstance(found, pyarrow.Array) else pyarrow.array(found, field.type))
        else:
            arrays.append(pyarrow.nulls(len(groups), field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
