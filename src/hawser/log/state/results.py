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
    "Advanced",
    "Answered",
    "Committed",
    "Deleted",
    "Done",
    "Expired",
    "Finished",
    "Joined",
    "Left",
    "Limited",
    "OutOfRange",
    "Outcome",
    "Place",
    "Prepared",
    "Reason",
    "Rejected",
    "Repeated",
    "Result",
    "Settled",
    "Staged",
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


class Advanced(Result, frozen=True, tag="advanced"):
    """The time of the log, in nanoseconds."""

    now_ns: int


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


class Staged(Result, frozen=True, tag="staged"):
    """The operation of this number is part of its transaction, by this entry or an earlier one."""

    number: int


class Prepared(Result, frozen=True, tag="prepared"):
    """So many operations, or participants of a whole transaction, wait for a decision that nothing but
    somebody's word can bring."""

    count: int


class Outcome(IntEnum):
    """How a transaction ended, for good. Numbers are stored; they are never given a second meaning."""

    COMMITTED = 1
    ROLLED_BACK = 2
    TIMED_OUT = 3
    SESSION_LOST = 4
    INCOMPLETE = 5
    NO_ROOM = 6
    TOO_MUCH = 7
    CONFLICT = 8
    ORPHANED = 9
    DROPPED = 10
    FAILED = 11
    READ_ONLY = 12

    @property
    def text(self) -> str:
        """What happened, for people."""
        return _OUTCOMES[self]


_OUTCOMES: Final[dict[int, str]] = {
    Outcome.COMMITTED: "it was committed",
    Outcome.ROLLED_BACK: "it was rolled back by request",
    Outcome.TIMED_OUT: "it was not prepared in time",
    Outcome.SESSION_LOST: "the session that worked in it was lost before it was prepared",
    Outcome.INCOMPLETE: "not all of its operations had arrived when it was to be committed",
    Outcome.NO_ROOM: "a queue has no room for what was put into it",
    Outcome.TOO_MUCH: "as much prepared work as is allowed waits for decisions already",
    Outcome.CONFLICT: "the position of a group was moved by somebody else",
    Outcome.ORPHANED: "nobody decided it for as long as it was to wait",
    Outcome.DROPPED: "its batch was decided without it",
    Outcome.FAILED: "a session that worked in it has ended it as failed",
    Outcome.READ_ONLY: "there was nothing to do when it was to be prepared",
}
assert set(_OUTCOMES) == set(Outcome)


class Finished(Result, frozen=True, tag="finished"):
    """The transaction has this outcome, by this entry or an earlier one."""

    outcome: Outcome


class Answered(Result, frozen=True, tag="answered"):
    """What a call of the XA interface got: its code (`hawser.transaction.xa.table`), the incarnation of the
    xid and the worker that it was about, or 0, and the value that it asked for."""

    code: int
    incarnation: int = 0
    worker: int = 0
    value: int = 0


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
    LOCKED = 14
    TRANSACTION_OVER = 15
    TRANSACTION_CLOSED = 16
    OLD_INCARNATION = 17
    TOO_MANY_TRANSACTIONS = 18
    NOT_PREPARED = 19
    NO_BRANCH = 20
    OTHER_QUERY = 21
    TOO_MANY_WORKERS = 22
    OTHER_TIME = 23
    TOO_MUCH_STAGED = 24
    TOO_MANY_OPERATIONS = 25


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
    Reason.QUEUE_FULL: "the queue holds {current} bytes and has no room for {given} more; have messages, or "
    "its dead letters, accepted, then put it again",
    Reason.NOT_HELD: "the delivery of {message} is over: it was accepted, given back or moved "
    "meanwhile; nothing that was asked for together with it was done",
    Reason.LOCKED: "a transaction holds message or group {given}; try again when it has ended",
    Reason.TRANSACTION_OVER: "the transaction has ended, outcome {current}; begin another one",
    Reason.TRANSACTION_CLOSED: "the transaction is prepared, nothing can join it; commit it or roll it back",
    Reason.OLD_INCARNATION: "this is incarnation {given} of the transaction's id, and {current} has begun; "
    "the one that is meant is over",
    Reason.TOO_MANY_TRANSACTIONS: "there are {current} of as much transactional work as this shard takes, or "
    "remembers for those who may ask; end some, `hawser tx list` shows them, or wait, then try again",
    Reason.NOT_PREPARED: "the transaction is not prepared, so nobody can have decided to commit it",
    Reason.NO_BRANCH: "branch {given} of those that the batch names is not prepared; the batch was not "
    "committed, run it again",
    Reason.OTHER_QUERY: "another query writes under this application's name; give this one a name of its "
    "own (txnAppId), or go on from the other's checkpoint",
    Reason.TOO_MANY_WORKERS: "sessions have begun to work in the branch {current} times, and it takes no "
    "more; end it, and work in another branch",
    Reason.OTHER_TIME: "the time of the log is {current} ns, not {given} ns; another entry moved it first",
    Reason.TOO_MUCH_STAGED: "with this operation open and prepared transactions have {given} bytes staged on "
    "this shard, and {current} are allowed (setting node.staged_bytes); write less in one transaction or to "
    "more partitions, end other transactions (`hawser tx list` shows them), or raise the nodes' setting",
    Reason.TOO_MANY_OPERATIONS: "with this operation open and prepared transactions have {given} operations "
    "staged on this shard, and {current} are allowed; put more messages into each batch, write to more "
    "partitions, or end other transactions (`hawser tx list` shows them)",
}
assert set(_TEXTS) == set(Reason)


_RETRYABLE: Final = (
    *(Reason.GAP, Reason.QUEUE_FULL, Reason.LOCKED, Reason.TOO_MANY_TRANSACTIONS),
    *(Reason.TOO_MUCH_STAGED, Reason.TOO_MANY_OPERATIONS),
)


class Rejected(Result, frozen=True, tag="rejected"):
    """Nothing changed. `current` is what the state says, `given` what the entry said, where one was
    compared."""

    reason: Reason
    current: int = 0
    given: int = 0

    @property
    def retryable(self) -> bool:
        """Whether the very same request may succeed later."""
        return self.reason in _RETRYABLE

    @property
    def outcome(self) -> Literal["none", "applied"]:
        """What became of the request: "applied" if an earlier one like it took effect."""
        return "applied" if self.reason is Reason.TOO_OLD else "none"

    @property
    def text(self) -> str:
        """What happened and what to do now, for people."""
        message = f"message {self.given}" if self.given else "a message"
        return _TEXTS[self.reason].format(current=self.current, given=self.given, message=message)


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
    | Settled | Limited | Staged | Prepared | Finished | Answered | Advanced
)  # fmt: skip

encode_result: Callable[[Result], bytes] = msgspec.msgpack.Encoder().encode
decode_result: Callable[[bytes], AnyResult] = msgspec.msgpack.Decoder(AnyResult).decode
