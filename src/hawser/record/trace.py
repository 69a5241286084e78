"""Trace records: 64 bytes about one operation on a message, its time and its process.

Eight little-endian words: position + 1, time, region, sequence, owner, {kind, deliveries, pid}, value, check.
Readers of a trace ring get only records with a correct check (docs/formats/trace-ring.md). In a cluster a
record travels unchanged, with the names of the topic and the participant as its key.
"""

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

__all__ = [
    "RECORD_BYTES",
    "TraceKind",
    "TraceRecord",
    "region_number",
    "split_trace_key",
    "trace_columns",
    "trace_key",
    "trace_records",
    "trace_subjects",
    "trace_times",
]

RECORD_BYTES: Final = 64

_WORDS: Final = struct.Struct("<8Q")
_WORDS_A_RECORD: Final = 8
_SEPARATOR: Final = b"\n"


class TraceKind(IntEnum):
    """The operation."""

    PUBLISH = 1
    TAKE = 2
    RELEASE = 3
    PUT = 4
    CLAIM = 5
    ACCEPT = 6
    RETURNED = 7
    REJECTED = 8
    SUBSCRIBE = 9
    UNSUBSCRIBE = 10
    RECOVER = 11
    MISSED = 12
    MOVED = 13
    NOTHING = 14
    SWITCHED = 15


class TraceRecord(NamedTuple):
    """One record. `position` counts from 0 for the life of the ring, `region` and `owner` are those of
    `region_number` and of the participants' table, 0 for none. What `value` is depends on the kind:

        publish, put                                     bytes of the payload
        take, claim, accept, returned, rejected, moved   when the message was published, in nanoseconds
        subscribe, unsubscribe                           1 of a publisher or producer, 2 of the others
        recover                                          owner word of the dead
        missed                                           how many, up to `sequence`
        switched                                         how much is traced from there on, 0 for nothing

    "nothing" stands for an operation that did not take place.
    """

    position: int
    time_ns: int
    region: int
    sequence: int
    owner: int
    kind: int
    deliveries: int
    pid: int
    value: int

    @property
    def what(self) -> str:
        """The kind as text."""
        return _WORDS_OF_KINDS.get(self.kind, f"kind {self.kind}")

    @property
    def about(self) -> int:
        """The owner word of the participant that acted or was recovered; 0 for none."""
        return self.value if self.kind == TraceKind.RECOVER else self.owner

    @property
    def latency_ns(self) -> int | None:
        """The time since the message was published; None for kinds without it."""
        return self.time_ns - self.value if self.value and self.kind in _OF_A_MESSAGE_BEFORE else None


_WORDS_OF_KINDS: Final = {int(kind): kind.name.lower() for kind in TraceKind}
_OF_A_MESSAGE_BEFORE: Final = frozenset(
    {TraceKind.TAKE, TraceKind.CLAIM, TraceKind.ACCEPT, TraceKind.RETURNED, TraceKind.REJECTED}
    | {TraceKind.MOVED}
)


def trace_records(data: bytes | memoryview) -> Iterator[TraceRecord]:
    """The records in these bytes."""
    for place, time_ns, region, sequence, owner, facts, value, _ in _WORDS.iter_unpack(data):
        yield TraceRecord(
            place - 1, time_ns, region, sequence, owner, facts & 0xFF, facts >> 8 & 0xFFFF, facts >> 32, value
        )


def trace_subjects(data: bytes) -> list[tuple[int, int]]:
    """(region, `about`) of each record; faster than reading all fields."""
    words = memoryview(data).cast("Q")
    regions, owners, facts, values = (words[place::_WORDS_A_RECORD].tolist() for place in (2, 4, 5, 6))
    return [
        (region, value if fact & 0xFF == TraceKind.RECOVER else owner)
        for region, owner, fact, value in zip(regions, owners, facts, values, strict=True)
    ]


def trace_times(data: bytes) -> "array[int]":
    """`time_ns` of each record."""
    return array("q", memoryview(data).cast("q")[1::_WORDS_A_RECORD].tolist())


def trace_columns(data: bytes | memoryview) -> Any:
    """The records without a copy, as a numpy array with the fields of TraceRecord, except that the first is
    `place`, the position plus 1."""
    import numpy

    fields: Any = {
        "names": ["place", "time_ns", "region", "sequence", "owner", "kind", "deliveries", "pid", "value"],
        "formats": ["<u8", "<i8", "<u8", "<u8", "<u8", "u1", "<u2", "<u4", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 41, 44, 48],
        "itemsize": RECORD_BYTES,
    }
    return numpy.frombuffer(data, dtype=numpy.dtype(fields))


def region_number(uuid: str) -> int:
    """The number of the region with this uuid in trace records."""
    return int.from_bytes(bytes.fromhex(uuid.replace("-", ""))[:8], "little") or 1


def trace_key(name: str, participant: str) -> bytes:
    """The key of a trace record in a cluster. An unknown name is empty; names have no newlines."""
    return name.encode() + _SEPARATOR + participant.encode()


def split_trace_key(key: bytes) -> tuple[str, str]:
    """(topic or queue, participant) of a `trace_key`; ValueError for other bytes."""
    name, separator, participant = key.partition(_SEPARATOR)
    if not separator:
        raise ValueError(f"{key!r} is not the key of a trace record")
    return name.decode(), participant.decode()
