"""What the entries of transactions ask for: their payloads, version 1.

As those of `hawser.log.state.commands`: MessagePack arrays of the fields in their order. An operation of a
transaction is an entry of its usual kind, BATCH, QUEUE_PUT, QUEUE_SETTLE or GROUP_COMMIT, with a label; so
are the entries that end a branch. Those of home name transactions in their payloads.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from hawser.log.state.commands import Name, Number, Payload
from hawser.log.state.results import Outcome
from hawser.transaction.identity import MAX_TIMEOUT_SECONDS, TransactionId, Xid

__all__ = [
    "BranchAbort",
    "BranchCommit",
    "BranchForget",
    "BranchLimit",
    "BranchPrepare",
    "Counts",
    "Deliveries",
    "CoordinatorBatch",
    "CoordinatorCall",
    "CoordinatorClose",
    "CoordinatorDecide",
    "CoordinatorForget",
    "CoordinatorSessionLost",
    "CoordinatorTold",
    "CoordinatorVotes",
    "MOST_DELIVERED_BYTES",
    "Participants",
    "Shards",
    "XidFields",
    "id_of",
    "to_fields",
]

Small = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Identifier = Annotated[bytes, Meta(max_length=255)]
Request = Annotated[bytes, Meta(max_length=32)]
Seconds = Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_SECONDS)]

# An xid and an incarnation, flat.
XidFields = tuple[Small, Annotated[bytes, Meta(min_length=1, max_length=255)], Identifier, Number]
# How many operations each worker has staged on one shard.
Counts = tuple[tuple[Annotated[int, Meta(ge=0, le=(1 << 16) - 1)], Small], ...]
Participants = tuple[tuple[Name, Counts], ...]
Shards = tuple[Name, ...]
# So much of one transaction is replicated twice, to save a round: about what a round costs.
MOST_DELIVERED_BYTES: Final = 16_384
# Batches for topics, by their shards.
Deliveries = dict[Name, Annotated[bytes, Meta(max_length=MOST_DELIVERED_BYTES)]]


def to_fields(transaction: TransactionId) -> XidFields:
    """As commands name it."""
    return (*transaction.xid, transaction.incarnation)


def id_of(fields: XidFields) -> TransactionId:
    """The transaction that a command names."""
    return TransactionId(Xid(*fields[:3]), fields[3])


# Entries of a shard that takes part; all but the last two have a label.


class BranchPrepare(Payload, frozen=True):
    """Close the branch and promise that it can be committed, if these are the operations it has;
    `coordinator` is the shard that decides: that of another branch, or one that is there for it. `asked_ns`
    is the time by the clock of the leader that wrote this, for people alone: nothing is decided by it."""

    counts: Counts
    coordinator: Name
    asked_ns: Number = 0


class BranchCommit(Payload, frozen=True):
    """Home has decided to commit the branch. With counts this shard decides: commit it if these are the
    operations it has, otherwise roll it back; and with it those of the `others`, which are prepared. If it is
    committed the `deliveries` are published, too."""

    counts: Counts | None = None
    others: Shards = ()
    deliveries: Deliveries = field(default_factory=dict)


class BranchAbort(Payload, frozen=True):
    """Roll the branch back, but not a prepared one unless home has decided so; and with it those of the
    `others` for which this shard decides."""

    outcome: Outcome
    decided: bool = False
    others: Shards = ()


class BranchForget(Payload, frozen=True):
    """Forget the outcomes of these, unless the xid was used again since, and the deliveries of these homes.
    Note that the homes in `deleted` are deleted: they are old when marks have followed that. With nothing to
    forget and to note it is a mark (`ageing.py`)."""

    transactions: tuple[XidFields, ...]
    homes: Shards = ()
    deleted: Shards = ()


class BranchLimit(Payload, frozen=True):
    """Let so many transactions be open and so many prepared, and let all of them together have so many bytes
    and so many operations staged."""

    most_open: Number
    most_bytes: Number
    most_prepared: Number
    most_operations: Number


# Entries of home.


class CoordinatorCall(Payload, frozen=True):
    """A call of the XA interface (`xa.Call`), about this use of the xid; a start names the highest that its
    client has heard of from home. `end` names the worker that ends, if there is one, and what it has staged
    in each shard. `request` is the caller's own name for this call, under which the call may be repeated."""

    xid: XidFields
    call: Small
    session: Annotated[str, Meta(max_length=200)] = ""
    request: Request = b""
    seconds: Number = 0
    participants: tuple[tuple[Name, Small], ...] = ()
    worker: Small = 0


class CoordinatorClose(Payload, frozen=True):
    """These shards take part in a branch of an application's batch, and nothing joins it from here on. They
    are to prepare; then it waits for the decision, at most for as long as is said."""

    transaction: XidFields
    participants: Participants
    query: Identifier
    batch: Number
    orphan_seconds: Number = 0


class CoordinatorVotes(Payload, frozen=True):
    """All of these have prepared their branches."""

    transaction: XidFields
    shards: Shards


class CoordinatorDecide(Payload, frozen=True):
    """Commit the transaction, or roll it back for this reason. A prepared one is decided only by somebody who
    may: its coordinator, or a person who says why (`heuristic`)."""

    transaction: XidFields
    outcome: Outcome
    prepared: bool = False
    heuristic: Annotated[str, Meta(max_length=500)] = ""


class CoordinatorTold(Payload, frozen=True):
    """These shards have it in their logs what became of their branches."""

    told: tuple[tuple[XidFields, Shards], ...]


class CoordinatorSessionLost(Payload, frozen=True):
    """The session is gone: what it had started and not ended can only be rolled back."""

    session: Name


class CoordinatorBatch(Payload, frozen=True):
    """Commit these prepared branches of the application together, as its batch of this number, and drop its
    others up to this batch. `source` is what its writer knows of what it was made of, for example a
    digest."""

    application: Annotated[bytes, Meta(min_length=1, max_length=255)]
    query: Identifier
    batch: Number
    branches: tuple[Identifier, ...]
    source: Identifier = b""


class CoordinatorForget(Payload, frozen=True):
    """Forget the outcomes of these, unless the xid was used again since. With nothing to forget it is a mark
    (`ageing.py`)."""

    transactions: tuple[XidFields, ...]
