"""What the entries ask for: their payloads, version 1.

A payload is a MessagePack array of the fields in their order, one for each kind; a BATCH has a batch
(`hawser.record.batch`) instead. Whatever is not exactly that is rejected when it is applied, by all replicas
alike. A field more, or another meaning of one, is a new version of the kind.
"""

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from hawser.log.entry import Entry

__all__ = [
    "AT_END",
    "ExpireProducers",
    "GroupCommit",
    "GroupDelete",
    "GroupJoin",
    "GroupLeave",
    "TrimTo",
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
