"""The payloads of transaction entries, version 1.

They are MessagePack arrays of the fields in order, as in `hawser.log.state.commands`. An operation of a
transaction is an entry of its usual kind, BATCH, QUEUE_PUT, QUEUE_SETTLE or GROUP_COMMIT, with a label. The
entries that end a branch have labels too; entries of a coordinator shard name transactions in their payloads.
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
    "BranchLimitChange",
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
# The number of operations that each worker has staged on one shard.
Counts = tuple[tuple[Annotated[int, Meta(ge=0, le=(1 << 16) - 1)], Small], ...]
Participants = tuple[tuple[Name, Counts], ...]
Shards = tuple[Name, ...]
# Deliveries are replicated twice and save a round of messages; at this size both cost about the same.
MOST_DELIVERED_BYTES: Final = 16_384
# Batches for topics, by their shards.
Deliveries = dict[Name, Annotated[bytes, Meta(max_length=MOST_DELIVERED_BYTES)]]


def to_fields(transaction: TransactionId) -> XidFields:
    """The transaction as commands name it."""
    return (*transaction.xid, transaction.incarnation)


def id_of(fields: XidFields) -> TransactionId:
    """The transaction that a command names."""
    return TransactionId(Xid(*fields[:3]), fields[3])


# Entries of a participant; all but the last two have a label.


class BranchPrepare(Payload, frozen=True):
    """Prepare the branch if these are its operations. `coordinator` is the shard that decides: one with a
    branch, or a coordinator shard. `asked_ns` is the time by the clock of the leader that wrote this, for
    display only."""

    counts: Counts
    coordinator: Name
    asked_ns: Number = 0


class BranchCommit(Payload, frozen=True):
    """Commit a prepared branch, as the coordinator has decided. With `counts` this shard decides: it commits
    if these are its operations, otherwise rolls back, and decides for the prepared branches of the `others`.
    A commit also publishes the `deliveries`."""

    counts: Counts | None = None
    others: Shards = ()
    deliveries: Deliveries = field(default_factory=dict)


class BranchAbort(Payload, frozen=True):
    """Roll the branch back, a prepared one only if the coordinator has `decided`; and with it those of the
    `others` for which this shard decides."""

    outcome: Outcome
    decided: bool = False
    others: Shards = ()


class BranchForget(Payload, frozen=True):
    """Remove the tombstones of these transactions, unless the xid was used again, and the delivery numbers of
    these coordinator shards (`homes`). Note that the coordinators in `deleted` were deleted; they expire
    after further marks. An empty command is a mark (`expiry.py`)."""

    transactions: tuple[XidFields, ...]
    homes: Shards = ()
    deleted: Shards = ()


class BranchLimit(Payload, frozen=True):
    """Set the limits of open and of prepared transactions, and of the bytes and operations they have staged
    together. With `most_open` 0 no transaction begins."""

    most_open: Number
    most_bytes: Number
    most_prepared: Number
    most_operations: Number


class BranchLimitChange(BranchLimit, frozen=True):
    """The fields of the entry: if transactions may not begin, only a change that `opens` ends that."""

    opens: bool = True


# Entries of a coordinator shard.


class CoordinatorCall(Payload, frozen=True):
    """A call of the XA interface (`xa.table.Call`) about this incarnation; a start names the highest that its
    client has heard of from this coordinator. `end` names the worker that ends, if known, and its operations
    on each shard. `request` is the caller's name for this call, under which it may be repeated."""

    xid: XidFields
    call: Small
    session: Annotated[str, Meta(max_length=200)] = ""
    request: Request = b""
    seconds: Number = 0
    participants: tuple[tuple[Name, Small], ...] = ()
    worker: Small = 0


class CoordinatorClose(Payload, frozen=True):
    """Close a branch of an application's batch with these participants and ask them to prepare. Then it waits
    for the decision, for at most `orphan_seconds` unless that is 0."""

    transaction: XidFields
    participants: Participants
    query: Identifier
    batch: Number
    orphan_seconds: Number = 0


class CoordinatorVotes(Payload, frozen=True):
    """All participants have prepared."""

    transaction: XidFields
    shards: Shards


class CoordinatorDecide(Payload, frozen=True):
    """Commit the transaction, or roll it back for this reason. A prepared one needs `prepared`, from its
    transaction manager, or `heuristic`, the reason of a person."""

    transaction: XidFields
    outcome: Outcome
    prepared: bool = False
    heuristic: Annotated[str, Meta(max_length=500)] = ""


class CoordinatorTold(Payload, frozen=True):
    """These shards have the outcomes of their branches in their logs."""

    told: tuple[tuple[XidFields, Shards], ...]


class CoordinatorSessionLost(Payload, frozen=True):
    """The session is lost: work that it started and did not end can only be rolled back."""

    session: Name


class CoordinatorBatch(Payload, frozen=True):
    """Commit these prepared branches of the application together, as its batch of this number, and drop its
    other branches up to this batch. `source` identifies what the batch was made of, for example by a
    digest."""

    application: Annotated[bytes, Meta(min_length=1, max_length=255)]
    query: Identifier
    batch: Number
    branches: tuple[Identifier, ...]
    source: Identifier = b""


class CoordinatorForget(Payload, frozen=True):
    """Remove the tombstones of these transactions, unless the xid was used again. An empty command is a mark
    (`expiry.py`)."""

    transactions: tuple[XidFields, ...]
