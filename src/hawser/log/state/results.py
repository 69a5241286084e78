"""The results of applied entries.

Replicas agree on results: a result goes into the hash of the state and, as the answer, to the client. It
therefore contains only numbers and names; readers make texts from them, which may change from version to
version.
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
    """Base of all results of entries."""


class Done(Result, frozen=True, tag="done"):
    """Applied, with nothing to report."""


class Accepted(Result, frozen=True, tag="accepted"):
    """The batch was added to the topic or queue; these are the offsets of its records."""

    first_offset: int
    count: int


class Repeated(Result, frozen=True, tag="repeated"):
    """A repeat: the batch was added, or the messages settled, before. This is the receipt of the first
    time."""

    first_offset: int
    count: int


class Trimmed(Result, frozen=True, tag="trimmed"):
    """Records below `start` were removed. `held_by` is the group that kept more of them than was asked
    for."""

    start: int
    end: int
    held_by: str | None


class Advanced(Result, frozen=True, tag="advanced"):
    """The time of the log, in nanoseconds."""

    now_ns: int


class Expired(Result, frozen=True, tag="expired"):
    """The number of producers, tombstones or transactions that were removed."""

    count: int


class Joined(Result, frozen=True, tag="joined"):
    """The member belongs to the group, which has these members, sorted, and this position."""

    generation: int
    leader: str
    members: tuple[str, ...]
    position: int


class Left(Result, frozen=True, tag="left"):
    """The member does not belong to the group; a group without members has no leader."""

    generation: int
    leader: str | None
    members: tuple[str, ...]


class Committed(Result, frozen=True, tag="committed"):
    """The group is at `position`."""

    position: int


class Deleted(Result, frozen=True, tag="deleted"):
    """The group does not exist; it `existed` before or not."""

    existed: bool


class Settled(Result, frozen=True, tag="settled"):
    """The numbers of messages accepted, returned and moved, and the offset of the first moved one in the
    other subqueue, or 0."""

    accepted: int
    returned: int
    moved: int
    first_offset: int


class Limited(Result, frozen=True, tag="limited"):
    """The capacity of the queue, and the bytes it uses."""

    capacity_bytes: int
    used_bytes: int


class Staged(Result, frozen=True, tag="staged"):
    """The operation of this number is staged, by this entry or an earlier one."""

    number: int


class Prepared(Result, frozen=True, tag="prepared"):
    """The number of operations of a prepared branch, or of participants of a prepared transaction."""

    count: int


class Outcome(IntEnum):
    """The final outcome of a transaction. The numbers are stored; a number is never reused."""

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
        """The outcome as text."""
        return _OUTCOMES[self]


_OUTCOMES: Final[dict[int, str]] = {
    Outcome.COMMITTED: "it was committed",
    Outcome.ROLLED_BACK: "it was rolled back by request",
    Outcome.TIMED_OUT: "it was not prepared in time",
    Outcome.SESSION_LOST: "the session that worked in it was lost before it was prepared",
    Outcome.INCOMPLETE: "not all of its operations had arrived when it was to be committed",
    Outcome.NO_ROOM: "a queue has no room for what was put into it",
    Outcome.TOO_MUCH: "the shard has its maximum of prepared transactions",
    Outcome.CONFLICT: "another client moved the position of a group",
    Outcome.ORPHANED: "it was not decided in time",
    Outcome.DROPPED: "its batch was decided without it",
    Outcome.FAILED: "a session that worked in it has ended it as failed",
    Outcome.READ_ONLY: "there was nothing to do when it was to be prepared",
}
assert set(_OUTCOMES) == set(Outcome)


class Finished(Result, frozen=True, tag="finished"):
    """The transaction has this outcome, by this entry or an earlier one."""

    outcome: Outcome


class Answered(Result, frozen=True, tag="answered"):
    """The answer of an XA call: its code (`hawser.transaction.xa.table`), the incarnation and the worker it
    concerned, or 0, and the value it asked for."""

    code: int
    incarnation: int = 0
    worker: int = 0
    value: int = 0


class Reason(IntEnum):
    """Why an entry changed nothing. The numbers are stored; a number is never reused."""

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
    OTHER_LOG = 26


_TEXTS: Final[dict[int, str]] = {
    Reason.BAD_PAYLOAD: "the payload of the entry does not match its kind; check that the client has the "
    "version of the nodes",
    Reason.GAP: "sequence {given} arrived and {current} is next; send the missing ones, then this one again",
    Reason.UNKNOWN_PRODUCER: "this producer's incarnation is not known, so sequence {given} may be a repeat; "
    "begin a new incarnation at sequence 1",
    Reason.FENCED: "incarnation {given} of this producer is over, {current} has taken its place; stop",
    Reason.TOO_OLD: "sequence {given} is in the topic already, but its receipt is no longer kept (the "
    "newest is {current}); do not send it again",
    Reason.NO_GROUP: "the group does not exist; join it first",
    Reason.NOT_MEMBER: "the caller is not a member of the group; join it again",
    Reason.OTHER_GENERATION: "the group is in generation {current}, not {given}; join it again",
    Reason.MOVED: "the group is at {current}, not at {given}; continue from there",
    Reason.BACKWARD: "a commit cannot go back from {current} to {given}; to read again, delete the group and "
    "join it anew",
    Reason.BEYOND_END: "offset {given} is beyond the end, {current}",
    Reason.QUEUE_FULL: "the queue holds {current} bytes and has no room for {given} more; accept messages or "
    "dead letters of it, then put again",
    Reason.NOT_HELD: "the delivery of {message} is over: it was accepted, returned or moved meanwhile; no "
    "part of the request took effect",
    Reason.LOCKED: "a transaction has locked message or group {given}; try again when it has ended",
    Reason.TRANSACTION_OVER: "the transaction has ended, outcome {current}; begin another one",
    Reason.TRANSACTION_CLOSED: "the transaction is prepared and takes no more operations; end it",
    Reason.OLD_INCARNATION: "this is incarnation {given} of the transaction's id, but {current} has begun, "
    "so it is over",
    Reason.TOO_MANY_TRANSACTIONS: "this shard takes no more transactional work: it has {current} "
    "transactions or deliveries; end some (`hawser tx list` shows them) or wait, then try again",
    Reason.NOT_PREPARED: "the transaction is not prepared, so it cannot be committed; prepare it first",
    Reason.NO_BRANCH: "branch {given} of the batch is not prepared; the batch was not committed, "
    "run it again",
    Reason.OTHER_QUERY: "another query writes under this application's name; give this one a name of its "
    "own (txnAppId), or continue from the other's checkpoint",
    Reason.TOO_MANY_WORKERS: "sessions have begun work in this branch {current} times, its maximum; end it "
    "and work in another branch",
    Reason.OTHER_TIME: "the time of the log is {current} ns, not {given} ns; another entry moved it first",
    Reason.TOO_MUCH_STAGED: "transactions would have {given} bytes staged on this shard, and {current} are "
    "allowed; write less in one, end others (`hawser tx list`), or raise node.staged_bytes",
    Reason.TOO_MANY_OPERATIONS: "transactions would have {given} operations staged on this shard, and "
    "{current} are allowed; put more messages into each batch, or end others (`hawser tx list`)",
    Reason.OTHER_LOG: "the record before {given} is not the one that was read, as after a restored backup; "
    "the group is at {current}",
}
assert set(_TEXTS) == set(Reason)


_RETRYABLE: Final = (
    *(Reason.GAP, Reason.QUEUE_FULL, Reason.LOCKED, Reason.TOO_MANY_TRANSACTIONS),
    *(Reason.TOO_MUCH_STAGED, Reason.TOO_MANY_OPERATIONS),
)


class Rejected(Result, frozen=True, tag="rejected"):
    """Nothing changed. `current` is the value in the state and `given` the one in the entry, where two were
    compared."""

    reason: Reason
    current: int = 0
    given: int = 0

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.reason in _RETRYABLE

    @property
    def outcome(self) -> Literal["none", "applied"]:
        """The outcome of the request: "applied" if an earlier repeat of it took effect."""
        return "applied" if self.reason is Reason.TOO_OLD else "none"

    @property
    def text(self) -> str:
        """The reason and what to do next, as text."""
        message = f"message {self.given}" if self.given else "a message"
        return _TEXTS[self.reason].format(current=self.current, given=self.given, message=message)


# Answers to reads; never the result of an entry.


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a batch: the index of its entry in the log, and the offsets of its records."""

    index: int
    first_offset: int
    count: int


class OutOfRange(msgspec.Struct, frozen=True, array_like=True):
    """The offset has no record; those from `start` up to but not including `end` have."""

    start: int
    end: int


AnyResult = (
    Done | Accepted | Repeated | Trimmed | Expired | Joined | Left | Committed | Deleted | Rejected
    | Settled | Limited | Staged | Prepared | Finished | Answered | Advanced
)  # fmt: skip

encode_result: Callable[[Result], bytes] = msgspec.msgpack.Encoder().encode
decode_result: Callable[[bytes], AnyResult] = msgspec.msgpack.Decoder(AnyResult).decode
