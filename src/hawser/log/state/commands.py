"""What the entries ask for: their payloads, version 1.

A payload is a MessagePack array of the fields in their order, one for each kind; a BATCH and a QUEUE_PUT have
a batch (`hawser.record.batch`) instead. Whatever is not exactly that is rejected when it is applied, by all
replicas alike. A field more, or another meaning of one, is a new version of the kind.
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

# As the position of a new group: behind everything there is.
AT_END: Final = (1 << 63) - 1

Number = Annotated[int, Meta(ge=0, le=AT_END)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
ProducerId = Annotated[bytes, Meta(min_length=1, max_length=255)]


class Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all of them are."""


class TrimTo(Payload, frozen=True):
    """Forget the records below `offset`.

    Groups hold it back: the record that one of them reads next stays, unless it is below `floor`.
    """

    offset: Number
    floor: Number = 0


class AdvanceTime(Payload, frozen=True):
    """Move the time of the log to `after_ns` if it is `before_ns`. A majority of the members' clocks
    confirmed `wall_ns` as the time of day when the leader proposed this."""

    before_ns: Number
    after_ns: Number
    wall_ns: Number


class ExpireProducers(Payload, frozen=True):
    """Forget these producers, each (id, incarnation, last sequence) as it was when somebody decided so; one
    that has gone on since is kept."""

    producers: tuple[tuple[ProducerId, Number, Number], ...]


class GroupJoin(Payload, frozen=True):
    """Make `member` one of the group's. A new group begins at `position`, moved into what there is."""

    group: Name
    member: Name
    position: Number = 0


class GroupLeave(Payload, frozen=True):
    """Make `member` none of the group's. A group without members stays, and so does its position."""

    group: Name
    member: Name


class GroupCommit(Payload, frozen=True):
    """Move the group from position `before` to `after`, if that is where it is and `member` is one of this
    generation."""

    group: Name
    member: Name
    generation: Number
    before: Number
    after: Number


class GroupDelete(Payload, frozen=True):
    """Forget the group; it holds nothing back any more."""

    group: Name


# (first offset, how many, ended deliveries of each): messages that are alike, one behind the other.
Run = tuple[Number, Annotated[int, Meta(ge=1, le=(1 << 32) - 1)], Number]


def count_of(runs: Iterable[Run]) -> int:
    """How many messages these are."""
    return sum(run[1] for run in runs)


class QueueSettle(Payload, frozen=True):
    """End a delivery of each of these messages of one shelf: all of them, or none if one is not as its run
    says. Accepted ones are done, returned ones wait for the next delivery, moved ones are done here and go to
    the other shelf with the records of `batch`, one for each in the order of their offsets.

    With a stamp it is the request of a consumer, and counts once; without one it is the leader's own.
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
        """All that it names."""
        return (*self.accepted, *self.returned, *self.moved)


class QueueLimit(Payload, frozen=True):
    """Let the queue hold so many bytes; what it holds already stays."""

    capacity_bytes: Number


PayloadType = TypeVar("PayloadType", bound=Payload)

encode_command: Callable[[Payload], bytes] = msgspec.msgpack.Encoder().encode


def decoder(kind: type[PayloadType]) -> Callable[[Entry], PayloadType | None]:
    """A function from an entry to its payload; None if it has another one."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(entry: Entry) -> PayloadType | None:
        try:
            return decode(entry.payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    return read
