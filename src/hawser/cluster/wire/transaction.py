"""Requests of clients and nodes about transactions, and their answers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hawser.cluster.wire.messages import Body, Count

__all__ = [
    "BranchSeen",
    "Labelled",
    "RecordSeen",
    "Transact",
    "Transacted",
    "TransactionLook",
    "TransactionsSeen",
    "XidFields",
]


class Labelled(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a transaction, with its label (`hawser.transaction.identity`); entries for a coordinator
    have none."""

    kind: Count
    payload: bytes
    label: bytes = b""


class Transact(Body, frozen=True, tag="transact"):
    """Entries of transactions for the leader of a shard, in this order: operations, the end of a branch, or
    commands for the coordinator. Answered when all of them are applied, by a coordinator once there is a
    result to report. A request may be repeated."""

    shard: str
    entries: Annotated[tuple[Labelled, ...], Meta(min_length=1, max_length=10_000)]


class Transacted(Body, frozen=True, tag="transacted"):
    """The result of each entry, encoded as in `hawser.log.state.results`."""

    results: tuple[bytes, ...]


XidFields = tuple[Count, bytes, bytes]


class TransactionLook(Body, frozen=True, tag="look at transactions"):
    """Asks the leader of a shard for the current state of its transactions: all that are not over, or one,
    even if it is over. Without an incarnation that is the latest one. The xid of an application is that of
    its branches without the branch qualifier."""

    shard: str
    xid: XidFields | None = None
    incarnation: Count = 0


class BranchSeen(msgspec.Struct, frozen=True, array_like=True):
    """A branch on a shard; the coordinator on `coordinator` decides it once it is prepared. The leader counts
    its age from when it first saw the branch, or from the recorded time of its prepare."""

    xid: XidFields
    incarnation: int
    prepared: bool
    coordinator: str
    operations: int
    size_bytes: int
    age_seconds: float


class RecordSeen(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator knows of a transaction: its `hawser.transaction.xa.State`; once decided, its
    `Outcome`, and the reason if a person decided; the number of operations on each shard; the shards that
    have not been told the outcome."""

    xid: XidFields
    incarnation: int
    state: str
    outcome: int | None
    heuristic: str
    participants: dict[str, int]
    waiting: tuple[str, ...]
    timeout_seconds: int
    age_seconds: float


class TransactionsSeen(Body, frozen=True, tag="transactions"):
    """The branches on a shard, and the transactions that it decides. Of the transaction that the request
    names: its outcome if it is decided (at a coordinator as `Ledger.outcome` says), and its incarnation,
    or 0 if the shard does not know it. Of an application: the first batch that is not decided, and the
    source of the one before."""

    branches: tuple[BranchSeen, ...]
    records: tuple[RecordSeen, ...]
    outcome: int | None = None
    incarnation: int = 0
    source: bytes = b""
