"""An entry of a log, and its frame: the bytes that go unchanged from the leader to every disk.

    0   crc32c of everything after it     u32
    4   length of the body                u32
    8   epoch                             u64
    16  index                             u64
    24  kind                              u8
    25  version of the kind's format      u8
    26  length of the transaction's id    u16
    28  zero                              u32
    32  body: the transaction's id, then the payload

Integers are little-endian. An index counts the entries of a shard's log, from 1. An offset, which users see,
counts the records of a topic and is assigned when an entry is applied.
"""

import struct
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, Self

from crc32c import crc32c
from msgspec import Meta

__all__ = [
    "HEADER_BYTES", "MAX_BODY_BYTES", "NOTHING_PAYLOAD_BYTES", "NO_ENTRY", "BadFrame", "Entry", "EntryId",
    "Kind", "Number",
]  # fmt: skip

HEADER_BYTES: Final = 32
MAX_BODY_BYTES: Final = 64 << 20
# What a leader writes of its own holds the incarnation of its process.
NOTHING_PAYLOAD_BYTES: Final = 8

_CRC: Final = struct.Struct("<I")
_FIELDS: Final = struct.Struct("<IQQBBHI")  # behind the checksum
MAX_TRANSACTION_BYTES: Final = (1 << 16) - 1


# The range of numbers in messages; a message with a larger number is invalid.
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class EntryId(NamedTuple):
    """The name of an entry; ordered by epoch, then index."""

    epoch: Number
    index: Number  # type: ignore[assignment]  # hides the tuple's method of that name

    def __str__(self) -> str:
        return f"{self.epoch}:{self.index}"


# The head of an empty log.
NO_ENTRY: Final = EntryId(0, 0)


class Kind(IntEnum):
    """What an entry asks the state machine to do. 32 to 63 are for queues, 64 to 95 for transactions."""

    NOTHING = 0
    BATCH = 1
    TRIM = 2
    EXPIRE_PRODUCERS = 3
    GROUP_JOIN = 4
    GROUP_LEAVE = 5
    GROUP_COMMIT = 6
    GROUP_DELETE = 7
    ADVANCE_TIME = 8
    QUEUE_PUT = 32
    QUEUE_SETTLE = 33
    QUEUE_LIMIT = 34
    BRANCH_PREPARE = 64
    BRANCH_COMMIT = 65
    BRANCH_ABORT = 66
    BRANCH_FORGET = 67
    BRANCH_LIMIT = 68
    HOME_CALL = 80
    HOME_CLOSE = 81
    HOME_VOTES = 82
    HOME_DECIDE = 83
    HOME_TOLD = 84
    HOME_SESSION_LOST = 85
    HOME_BATCH = 86
    HOME_FORGET = 87


class BadFrame(ValueError):
    """These bytes are not the frame of an entry."""


class Entry:
    """One immutable entry. `frame` is all of it; the other fields are read from the frame."""

    __slots__ = ("epoch", "frame", "index", "kind", "transaction_size", "version")

    def __init__(
        self, frame: bytes, epoch: int, index: int, kind: int, version: int, transaction_size: int
    ) -> None:
        self.frame = frame
        self.epoch = epoch
        self.index = index
        self.kind = kind
        self.version = version
        self.transaction_size = transaction_size

    @classmethod
    def make(
        cls,
        epoch: int,
        index: int,
        kind: int = Kind.NOTHING,
        payload: bytes = b"",
        *,
        version: int = 1,
        transaction: bytes = b"",
    ) -> Self:
        """A new entry; epoch and index begin at 1."""
        assert epoch > 0 and index > 0
        size = len(transaction)
        if size > MAX_TRANSACTION_BYTES or size + len(payload) > MAX_BODY_BYTES:
            raise ValueError(f"an entry holds at most {MAX_BODY_BYTES} bytes")
        fields = _FIELDS.pack(size + len(payload), epoch, index, kind, version, size, 0)
        rest = b"".join((fields, transaction, payload))
        return cls(_CRC.pack(crc32c(rest)) + rest, epoch, index, kind, version, size)

    @classmethod
    def read(cls, data: "bytes | bytearray | memoryview", start: int = 0) -> Self:
        """The entry whose frame begins at `start`, checked; BadFrame if it is not one."""
        if len(data) - start < HEADER_BYTES:
            raise BadFrame("cut off within the header")
        length, epoch, index, kind, version, size, zero = _FIELDS.unpack_from(data, start + 4)
        end = start + HEADER_BYTES + length
        if length > MAX_BODY_BYTES or size > length:
            raise BadFrame("impossible length")
        if end > len(data):
            raise BadFrame("cut off within the body")
        frame = bytes(data[start:end])
        if crc32c(memoryview(frame)[4:]) != _CRC.unpack_from(frame)[0]:
            raise BadFrame("checksum differs")
        if zero or not epoch or not index:
            raise BadFrame("impossible header")
        return cls(frame, epoch, index, kind, version, size)

    @property
    def id(self) -> EntryId:
        return EntryId(self.epoch, self.index)

    @property
    def transaction(self) -> bytes:
        """The id of the transaction that this entry belongs to; empty if none."""
        return self.frame[HEADER_BYTES : HEADER_BYTES + self.transaction_size]

    @property
    def payload(self) -> memoryview:
        return memoryview(self.frame)[HEADER_BYTES + self.transaction_size :]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.frame == other.frame

    def __hash__(self) -> int:
        return hash(self.frame)

    def __repr__(self) -> str:
        return f"Entry({self.id}, kind {self.kind}, {len(self.frame)} bytes)"
