"""What became of an applied entry.

A result is part of what replicas agree on: it goes into the hash of the state and, as an answer, to the
client. So it holds numbers and names only; words about it are made from them by whoever reads them, and may
change from version to version.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, Literal

import msgspec

__all__ = [
    "Accepted",
    "Committed",
    "Deleted",
    "Done",
    "Expired",
    "Joined",
    "Left",
    "Limited",
    "OutOfRange",
    "Place",
    "Reason",
    "Rejected",
    "Repeated",
    "Result",
    "Settled",
    "Trimmed",
    "decode_result",
    "encode_result",
]


class Result(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What all of them are."""


class Done(Result, frozen=True, tag="done"):
    """There was nothing to do."""


class Accepted(Result, frozen=True, tag="accepted"):
    """The batch is in the topic or queue: these are the offsets of its records."""

    first_offset: int
    count: int


class Repeated(Result, frozen=True, tag="repeated"):
    """The batch was there already, or the messages settled by it: this is the receipt it got then. Nothing
    changed."""

    first_offset: int
    count: int


class Trimmed(Result, frozen=True, tag="trimmed"):
    """Records below `start` are gone. `held_by` is the group that kept more of them than was asked for."""

    start: int
    end: int
    held_by: str | None


class Expired(Result, frozen=True, tag="expired"):
    """So many producers are forgotten; those that had gone on meanwhile are not."""

    count: int


class Joined(Result, frozen=True, tag="joined"):
    """The member belongs to the group, which has these members, sorted, and goes on at `position`."""

    generation: int
    leader: str
    members: tuple[str, ...]
    position: int


class Left(Result, frozen=True, tag="left"):
    """The member does not belong to the group; without members there is no leader."""

    generation: int
    leader: str | None
    members: tuple[str, ...]


class Committed(Result, frozen=True, tag="committed"):
    """The group goes on at `position`."""

    position: int


class Deleted(Result, frozen=True, tag="deleted"):
    """There is no such group; there was one if `existed`."""

    existed: bool


class Settled(Result, frozen=True, tag="settled"):
    """So many messages were accepted, returned and moved. The first that moved has this offset on the other
    shelf; 0 if none did."""

    accepted: int
    returned: int
    moved: int
    first_offset: int


class Limited(Result, frozen=True, tag="limited"):
    """The queue may hold so many bytes, and uses so many."""

    capacity_bytes: int
    used_bytes: int


class Reason(IntEnum):
    """Why an entry changed nothing. Numbers are stored; they are never given a second meaning."""

    BAD_PAYLOAD = 1
    GAP = 2
    UNKNOWN_PRODUCER = 3
    FENCED = 4
    TOO_OLD = 5
    NO_GROUP = 6
    NOT_MEMBER = 7
    OTHER_GENERATION = 8
    MOVED = 9
    BACKWARD = 10
    BEYOND_END = 11
    QUEUE_FULL = 12
    NOT_HELD = 13


_TEXTS: Final[dict[int, str]] = {
    Reason.BAD_PAYLOAD: "the entry cannot be read as what its kind says; whoever proposed it wrote "
    "something else",
    Reason.GAP: "sequence {given} came where {current} is next; send those before it first, then it again",
    Reason.UNKNOWN_PRODUCER: "nothing is known of this producer's incarnation, so sequence {given} cannot be "
    "told from a repeat; begin a new incarnation at sequence 1",
    Reason.FENCED: "incarnation {given} of this producer is over, {current} has taken its place; stop",
    Reason.TOO_OLD: "sequence {given} is in the topic already, but its receipt is no longer kept, "
    "the newest is {current}; do not send it again",
    Reason.NO_GROUP: "there is no such group; join it first",
    Reason.NOT_MEMBER: "only a member of the group may do this, and this is none; join it again",
    Reason.OTHER_GENERATION: "the group is in generation {current}, not {given}; join it again",
    Reason.MOVED: "the group goes on at {current}, not at {given}; go on from there",
    Reason.BACKWARD: "a commit from {current} to {given} goes back; to read again, delete the group and "
    "join it anew",
    Reason.BEYOND_END: "offset {given} is beyond the end, {current}",
    Reason.QUEUE_FULL: "the queue holds {current} bytes and has no room for {given} more; have messages "
    "accepted, then put it again",
    Reason.NOT_HELD: "the delivery of message {given} is over: it was accepted, given back or moved "
    "meanwhile; nothing that was asked for together with it was done",
}
assert set(_TEXTS) == set(Reason)


class Rejected(Result, frozen=True, tag="rejected"):
    """Nothing changed. `current` is what the state says, `given` what the entry said, where one was
    compared."""

    reason: Reason
    current: int = 0
    given: int = 0

    @property
    def retryable(self) -> bool:
        """Whether the very same request may succeed later."""
        return self.reason in (Reason.GAP, Reason.QUEUE_FULL)

    @property
    def outcome(self) -> Literal["none", "applied"]:
        """What became of the request: "applied" if an earlier one like it took effect."""
        return "applied" if self.reason is Reason.TOO_OLD else "none"

    @property
    def text(self) -> str:
        """What happened and what to do now, for people."""
        return _TEXTS[self.reason].format(current=self.current, given=self.given)


# Answers to reads; never the result of an entry.


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a batch lies: the index of its entry in the log, and the offsets of its records."""

    index: int
    first_offset: int
    count: int


class OutOfRange(msgspec.Struct, frozen=True, array_like=True):
    """There is no such record: there are those from `start` up to but not including `end`."""

    start: int
    end: int


AnyResult = (
    Done | Accepted | Repeated | Trimmed | Expired | Joined | Left | Committed | Deleted | Rejected
    | Settled | Limited
)  # fmt: skip

encode_result: Callable[[Result], bytes] = msgspec.msgpack.Encoder().encode
decode_result: Callable[[bytes], AnyResult] = msgspec.msgpack.Decoder(AnyResult).decode
