"""Which ends of transactions clients and nodes may have written, and where."""

from typing import Any

import pytest
from msgspec.structs import replace

from hawser.cluster.node.transaction.admission import admit
from hawser.cluster.node.transaction.peer_client import PeerClient
from hawser.cluster.shard_map import ShardMap
from hawser.cluster.transport import PeerRole
from hawser.cluster.wire import HOMES, Code, Failed, Labelled, Map, TopicEntry, Transact, shard_of
from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Outcome
from hawser.record.record import Stamp
from hawser.transaction.commands import (
    MOST_DELIVERED_BYTES,
    BranchAbort,
    BranchCommit,
    BranchPrepare,
    CoordinatorClose,
    to_fields,
)
from hawser.transaction.identity import Label, TransactionId, Xid
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import branch, lane

SHARD, OTHER, HOME = (shard_of(name, "1" * 8, 0) for name in ("topic", "queue", HOMES))
LANE, XA, TASK = lane(), TransactionId(Xid(7, b"global", b""), 1), branch(b"task")
COUNTS = ((0, 1),)
PREPARE = Kind.BRANCH_PREPARE, BranchPrepare(COUNTS, OTHER)
COMMIT = Kind.BRANCH_COMMIT, BranchCommit(COUNTS)
COMMIT_ALL = Kind.BRANCH_COMMIT, BranchCommit(COUNTS, (OTHER,))
ABORT = Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK)
ABORT_ALL = Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, others=(OTHER,))
DECIDED = [
    (Kind.BRANCH_COMMIT, BranchCommit()),
    (Kind.BRANCH_COMMIT, BranchCommit(None, (OTHER,))),
    (Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, True)),
    (Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, True, (OTHER,))),
]


def is_admitted(
    end: tuple[int, Payload], transaction: TransactionId, role: PeerRole = PeerRole.CLIENT, shard: str = SHARD
) -> bool:
    kind, command = end
    entry = Labelled(kind, encode_command(command), Label(transaction).encode())
    found = admit(Transact(shard, (entry,)), role, ("topic",))
    assert not isinstance(found, Failed) or (found.code == Code.BAD_REQUEST and not found.retryable)
    return not isinstance(found, Failed)


@pytest.mark.parametrize("end", [PREPARE, COMMIT, COMMIT_ALL, ABORT, ABORT_ALL])
def test_a_client_ends_its_lanes_and_decides_about_all_branches_by_one(end: tuple[int, Payload]) -> None:
    assert is_admitted(end, LANE)


@pytest.mark.parametrize("transaction", [XA, TASK])
@pytest.mark.parametrize("end", [PREPARE, COMMIT, COMMIT_ALL, ABORT_ALL])
def test_a_client_asks_home_to_end_what_is_not_on_a_lane(
    end: tuple[int, Payload], transaction: TransactionId
) -> None:
    assert not is_admitted(end, transaction)
    assert is_admitted(ABORT, transaction)


def test_an_operation_commits_only_lanes() -> None:
    for transaction in (LANE, XA, TASK):
        label = Label(transaction, 1, last=True).encode()
        request = Transact(SHARD, (Labelled(Kind.BATCH, batch(1), label),))
        found = admit(request, PeerRole.CLIENT, ("topic",))
        assert isinstance(found, Failed) == (transaction is not LANE)


def is_last_admitted(**last: Any) -> bool:
    label = Label(LANE, 1, last=True, **last).encode()
    found = admit(Transact(SHARD, (Labelled(Kind.BATCH, batch(1), label),)), PeerRole.CLIENT, ("topic",))
    return not isinstance(found, Failed)


def test_the_last_operation_of_a_lane_prepares_or_commits_for_others_that_are_others() -> None:
    other = "another@1/0"
    assert is_last_admitted(coordinator=other) and is_last_admitted(others=(other, "third@1/0"))
    for wrong in (SHARD, HOME):
        assert not is_last_admitted(coordinator=wrong) and not is_last_admitted(others=(other, wrong))


@pytest.mark.parametrize("end", [PREPARE, COMMIT, COMMIT_ALL, ABORT, ABORT_ALL])
def test_what_is_no_operation_is_not_the_last_one(end: tuple[int, Payload]) -> None:
    kind, payload = end
    for label in (Label(LANE, last=True), Label(LANE, last=True, coordinator="another@1/0")):
        request = Transact(SHARD, (Labelled(kind, encode_command(payload), label.encode()),))
        assert isinstance(admit(request, PeerRole.CLIENT, ("topic",)), Failed)


@pytest.mark.parametrize("end", DECIDED)
@pytest.mark.parametrize("transaction", [LANE, XA, TASK])
def test_only_nodes_say_what_was_decided(end: tuple[int, Payload], transaction: TransactionId) -> None:
    assert not is_admitted(end, transaction)
    assert is_admitted(end, transaction, PeerRole.NODE)


@pytest.mark.parametrize("coordinator", [SHARD, HOME])
def test_what_nobody_would_decide_about_is_not_prepared(coordinator: str) -> None:
    prepare = Kind.BRANCH_PREPARE, BranchPrepare(COUNTS, coordinator)
    assert not is_admitted(prepare, LANE)
    assert is_admitted(prepare, XA, PeerRole.NODE)


TOPIC = shard_of("invoices", "2" * 8, 0)


def deliver(**deliveries: bytes) -> tuple[int, Payload]:
    """A commit with these; `_` is TOPIC."""
    batches = {TOPIC if name == "_" else name: each for name, each in deliveries.items()}
    return Kind.BRANCH_COMMIT, BranchCommit(COUNTS, (OTHER,), batches)


def test_the_client_of_a_lane_has_small_batches_delivered() -> None:
    assert is_admitted(deliver(_=batch(1)), LANE)
    for transaction in (XA, TASK):
        assert not is_admitted(deliver(_=batch(1)), transaction)
    for wrong in (SHARD, HOME, OTHER):
        assert not is_admitted(deliver(**{wrong: batch(1)}), LANE)
    assert not is_admitted(deliver(_=b"no batch"), LANE)
    assert not is_admitted(deliver(_=batch(1, Stamp(b"producer", 1, 1))), LANE)
    half = batch(1_000)
    assert MOST_DELIVERED_BYTES // 2 < len(half) < MOST_DELIVERED_BYTES
    assert is_admitted(deliver(_=half), LANE) and not is_admitted(deliver(_=half, another=half), LANE)
    undecided = Kind.BRANCH_COMMIT, BranchCommit(None, (), {TOPIC: batch(1)})
    assert not is_admitted(undecided, LANE, PeerRole.NODE)


def test_only_nodes_deliver_and_they_stage_nothing() -> None:
    staged, delivered = Label(LANE, 1), Label(LANE, 1, last=True, coordinator=OTHER, delivery=5)
    for label, role in ((staged, PeerRole.CLIENT), (delivered, PeerRole.NODE)):
        for other in PeerRole:
            request = Transact(SHARD, (Labelled(Kind.BATCH, batch(1), label.encode()),))
            found = admit(request, other, ("topic",))
            assert isinstance(found, Failed) == ((other is PeerRole.NODE) != (role is PeerRole.NODE))


def test_what_cannot_be_delivered_is_refused_before_it_is_committed() -> None:
    known = ShardMap()
    here: Any = None
    peers = PeerClient(known, {}, here, lambda work: None)
    unknown = peers.undeliverable(TOPIC, 0.0)
    assert unknown is not None and unknown.retryable
    entry = TopicEntry(1, "2" * 32, 1, {})
    known.merge(Map("c", {}, {"invoices": entry}, {}))
    assert peers.undeliverable(TOPIC, 0.0) is None
    # Another one of that name: perhaps it is this node that does not know of the newer.
    known.topics["invoices"] = replace(entry, uuid="3" * 32)
    other = peers.undeliverable(TOPIC, 0.0)
    assert other is not None and other.retryable
    known.topics["invoices"] = replace(entry, kind="queue")
    queue = peers.undeliverable(TOPIC, 0.0)
    assert queue is not None and not queue.retryable and "not a topic" in queue.text
    known.topics["invoices"] = replace(entry, deleted=True)
    deleted = peers.undeliverable(TOPIC, 0.0)
    assert deleted is not None and (deleted.code, deleted.retryable) == (Code.NOT_FOUND, False)


def test_lanes_have_no_branches_on_homes_and_other_shards_close_nothing() -> None:
    close = Kind.HOME_CLOSE, CoordinatorClose(to_fields(TASK), ((SHARD, COUNTS),), b"query", 0)
    for end in (PREPARE, COMMIT_ALL, ABORT_ALL):
        assert not is_admitted(end, LANE, shard=HOME)
    assert is_admitted(close, TASK, shard=HOME)
    assert not is_admitted(close, TASK)
