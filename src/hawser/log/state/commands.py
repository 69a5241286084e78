"""The payloads of entries, version 1.

A payload is a MessagePack array of the fields in order, one type for each kind of entry; BATCH and QUEUE_PUT
have a batch (`hawser.record.batch`) instead. All replicas reject anything else when they apply it. A further
field, or another meaning of one, is a new version of the kind.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from hawser.log.entry import Entry

__all__ = [
    "AT_END",
    "AdvanceTime",
    "ExpireProducers",
    "GroupCommit",
    "GroupDelete",
    "GroupJoin",
    "GroupLeave",
    "QueueLimit",
    "QueueSettle",
    "Run",
    "TrimTo",
    "count_of",
    "decoder",
    "encode_command",
]

# The position of a new group that begins behind all records.
AT_END: Final = (1 << 63) - 1

Number = Annotated[int, Meta(ge=0, le=AT_END)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
ProducerId = Annotated[bytes, Meta(min_length=1, max_length=255)]


class Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all payloads."""


class TrimTo(Payload, frozen=True):
    """Remove the records below `offset`, but keep the next record of every group unless it is below
    `floor`."""

    offset: Number
    floor: Number = 0


class AdvanceTime(Payload, frozen=True):
    """Move the time of the log from `before_ns` to `after_ns`. A majority of the members' clocks confirmed
    `wall_ns` as the time of day when the leader proposed this."""

    before_ns: Number
    after_ns: Number
    wall_ns: Number


class ExpireProducers(Payload, frozen=True):
    """Remove these producers, each (id, incarnation, last sequence) as the leader saw it; one that was active
    since is kept."""

    producers: tuple[tuple[ProducerId, Number, Number], ...]


class GroupJoin(Payload, frozen=True):
    """Add `member` to the group. A new group begins at `position`, or at the nearest record there is."""

    group: Name
    member: Name
    position: Number = 0


class GroupLeave(Payload, frozen=True):
    """Remove `member` from the group. A group without members keeps its position."""

    group: Name
    member: Name


class GroupCommit(Payload, frozen=True):
    """Move the group from position `before` to `after`, if it is there and `member` belongs to this
    generation. `term` is that of the record before `after`, as the member has read it; 0 if not known."""

    group: Name
    member: Name
    generation: Number
    before: Number
    after: Number
    term: Number = 0


class GroupDelete(Payload, frozen=True):
    """Delete the group and its position."""

    group: Name


# (first offset, count, ended deliveries of each): consecutive messages with equal delivery counts.
Run = tuple[Number, Annotated[int, Meta(ge=1, le=(1 << 32) - 1)], Number]


def count_of(runs: Iterable[Run]) -> int:
    """The number of messages in these ranges."""
    return sum(run[1] for run in runs)


class QueueSettle(Payload, frozen=True):
    """End a delivery of each of these messages of one subqueue: all of them, or none if a range does not
    match. Accepted messages are done, returned ones wait for the next delivery, moved ones are done here and
    go to the other subqueue with the records of `batch`, one for each in the order of offsets.

    With a stamp it is the request of a consumer and takes effect once; without one it comes from the leader.
    """

    subqueue: Annotated[int, Meta(ge=0, le=1)]
    accepted: tuple[Run, ...] = ()
    returned: tuple[Run, ...] = ()
    moved: tuple[Run, ...] = ()
    batch: bytes = b""
    consumer: Annotated[bytes, Meta(max_length=255)] = b""
    incarnation: Number = 0
    sequence: Number = 0

    @property
    def runs(self) -> tuple[Run, ...]:
        """All ranges that it names."""
        return (*self.accepted, *self.returned, *self.moved)


class QueueLimit(Payload, frozen=True):
    """Set the capacity of the queue; messages that it holds stay."""

    capacity_bytes: Number


PayloadType = TypeVar("PayloadType", bound=Payload)

encode_command: Callable[[Payload], bytes] = msgspec.msgpack.Encoder().encode


def decoder(kind: type[PayloadType]) -> Callable[[Entry], PayloadType | None]:
    """A function that decodes an entry's payload as this type; it gives None if the bytes are another."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(entry: Entry) -> PayloadType | None:
        try:
            return decode(entry.payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    return read
