"""Transactions at the nodes, entry by entry over the wire: what each request gets, who may ask what, and what
becomes of work that nobody ends."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.node.shard import Shard
from hawser.cluster.node.transaction import participant
from hawser.cluster.node.transaction.peer_client import PeerClient
from hawser.cluster.transport import PeerRole
from hawser.log.entry import Kind
from hawser.log.queue.claims import NO_TOKEN, Token
from hawser.log.state.commands import GroupCommit, TrimTo
from hawser.log.state.results import (
    Answered,
    Finished,
    Outcome,
    Prepared,
    Reason,
    Rejected,
    Staged,
    decode_result,
)
from hawser.transaction.commands import (
    BranchAbort,
    BranchCommit,
    BranchForget,
    BranchLimit,
    BranchPrepare,
    CoordinatorBatch,
    CoordinatorCall,
    CoordinatorDecide,
    CoordinatorForget,
    CoordinatorTold,
    CoordinatorVotes,
    to_fields,
)
from hawser.transaction.identity import APPLICATION_FORMAT, Label, TransactionId, Xid
from hawser.transaction.participant.branches import DEFAULT_LIMIT
from hawser.transaction.xa.table import Call, Code, State
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS, until
from tests.support.transactions import QUERY, Peer, batch_of, entry, lane, task

COMMITTED = Finished(Outcome.COMMITTED)
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def peer(cluster: RunningCluster) -> Iterator[Peer]:
    peer = Peer(cluster, "client")
    for name in ("one", "two"):
        peer.create(name)
    peer.create("jobs", "queue")
    peer.create(wire.HOMES, "homes")
    yield peer
    peer.leave()


def test_operations_and_commit_are_one_request_on_one_shard(peer: Peer) -> None:
    shard, tx = peer.shard("one"), lane("single")
    before = len(peer.values(shard))
    request = (peer.publish(tx, 1, b"a"), peer.publish(tx, 2, b"b", b"c"), peer.commit(tx, 2))
    assert peer.transact(shard, *request) == [Staged(1), Staged(2), COMMITTED]
    assert peer.values(shard)[before:] == [b"a", b"b", b"c"]
    over = Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert peer.transact(shard, *request) == [over, over, COMMITTED]
    assert len(peer.values(shard)) == before + 3


def test_what_is_staged_is_told_again_and_what_is_missing_is_named(peer: Peer) -> None:
    shard, tx = peer.shard("one"), lane("gaps")
    assert peer.transact(shard, peer.publish(tx, 2, b"x")) == [Rejected(Reason.GAP, 1, 2)]
    assert peer.transact(shard, peer.publish(tx, 1, b"x"), peer.publish(tx, 2, b"x")) == [
        Staged(1),
        Staged(2),
    ]
    assert peer.transact(shard, peer.publish(tx, 1, b"x")) == [Staged(1)]
    assert peer.transact(shard, peer.commit(tx, 3)) == [Finished(Outcome.INCOMPLETE)]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_transaction_over_two_shards_is_decided_by_one_of_them(peer: Peer, is_early: bool) -> None:
    """Its own operations may be there before, or come with the decision."""
    one, two, tx = peer.shard("one"), peer.shard("two"), lane(f"double {is_early}")
    before = len(peer.values(one)), len(peer.values(two))
    decision = peer.publish(tx, 1, b"x"), peer.commit(tx, 1, two)
    if is_early:
        assert peer.transact(one, decision[0]) == [Staged(1)]
    assert peer.transact(two, peer.publish(tx, 1, b"y"), peer.prepare(tx, 1, one)) == [Staged(1), Prepared(1)]
    (branch,) = peer.look(two, tx).branches
    assert (branch.prepared, branch.coordinator) == (True, one)
    assert (len(peer.values(one)), len(peer.values(two))) == before
    assert peer.transact(one, *decision) == [Staged(1), COMMITTED]
    # Both are there when it is answered.
    assert peer.values(one)[before[0] :] == [b"x"]
    assert peer.values(two)[before[1] :] == [b"y"]
    over = Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert peer.transact(one, *decision) == [over, COMMITTED]
    for shard in (one, two):
        seen = peer.look(shard, tx)
        assert (seen.outcome, seen.incarnation, seen.branches) == (Outcome.COMMITTED, 1, ())
    # Also when everybody has heard.
    until(lambda: not peer.look(one, tx).records, "the shard that decided has heard that all is over")
    assert peer.transact(one, *decision) == [over, COMMITTED]
    until(lambda: not peer.look(one, tx).records, "it has heard so again")
    assert peer.look(one, tx).outcome == Outcome.COMMITTED
    assert (len(peer.values(one)), len(peer.values(two))) == (before[0] + 1, before[1] + 1)
    for incarnation in (0, 1):
        seen = peer.look(one, lane("never heard of", incarnation))
        assert (seen.outcome, seen.incarnation) == (None, 0)


def test_the_shard_that_decides_may_be_against_it(peer: Peer) -> None:
    """It misses an operation: those that are prepared are rolled back with it."""
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("against")
    before = len(peer.values(one)), len(peer.values(two))
    assert peer.transact(two, peer.publish(tx, 1, b"y"), peer.prepare(tx, 1, one))[1] == Prepared(1)
    incomplete = Finished(Outcome.INCOMPLETE)
    decision = peer.publish(tx, 1, b"x"), peer.commit(tx, 2, two)
    assert peer.transact(one, *decision) == [Staged(1), incomplete]
    assert not peer.look(two, tx).branches and peer.look(two, tx).outcome == Outcome.INCOMPLETE
    assert (len(peer.values(one)), len(peer.values(two))) == before
    assert peer.transact(one, peer.commit(tx, 1, two)) == [incomplete]


def test_the_shard_that_decides_rolls_back_for_all(peer: Peer) -> None:
    """One has voted against it, or nobody waits any longer: the others need not be asked."""
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("rolled back for all")
    peer.transact(two, peer.publish(tx, 1, b"y"), peer.prepare(tx, 1, one))
    assert peer.transact(one, peer.publish(tx, 1, b"x"), peer.abort(tx, two)) == [
        Staged(1),
        Finished(Outcome.ROLLED_BACK),
    ]
    assert peer.look(two, tx).outcome == Outcome.ROLLED_BACK and not peer.look(two, tx).branches
    assert peer.transact(one, peer.commit(tx, 1, two)) == [Finished(Outcome.ROLLED_BACK)]


def test_two_that_wait_for_each_other_are_rolled_back(peer: Peer) -> None:
    """No client that means well prepares them so."""
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("in a circle")
    for shard, coordinator in ((one, two), (two, one)):
        assert peer.transact(shard, peer.publish(tx, 1, b"circle"), peer.prepare(tx, 1, coordinator))[
            1
        ] == Prepared(1)
    until(lambda: not peer.look(one, tx).branches and not peer.look(two, tx).branches, "an end of both")
    for shard in (one, two):
        assert peer.look(shard, tx).outcome == Outcome.ROLLED_BACK and b"circle" not in peer.values(shard)


def test_what_is_prepared_is_rolled_back_when_the_shard_that_decides_is_deleted(
    cluster: RunningCluster, peer: Peer
) -> None:
    """It has nothing of the transaction yet, so nothing keeps it."""
    peer.create("gone")
    one, coordinator, tx = peer.shard("one"), peer.shard("gone"), lane("deleted")
    assert peer.transact(one, peer.publish(tx, 1, b"deleted"), peer.prepare(tx, 1, coordinator))[
        1
    ] == Prepared(1)
    assert cluster.delete("gone").done
    until(lambda: not peer.look(one, tx).branches, "the prepared branch has found out")
    assert peer.look(one, tx).outcome == Outcome.ROLLED_BACK and b"deleted" not in peer.values(one)


def test_what_is_closed_again_is_answered_and_not_written(cluster: RunningCluster, peer: Peer) -> None:
    shard, tx, repeats = peer.shard("one"), task("closed again"), 20
    coordinator = peer.coordinator(tx.xid)
    peer.transact(shard, peer.publish(tx, 1, b"x"))
    close = peer.close(tx, {shard: 1})
    assert peer.transact(coordinator, close) == [Prepared(1)]
    leader = cluster._nodes[cluster.run(peer.leader(coordinator))]
    before = leader.shards[coordinator].replica.machine.applied
    assert all(peer.transact(coordinator, close) == [Prepared(1)] for _ in range(repeats))
    assert leader.shards[coordinator].replica.machine.applied - before < repeats
    assert peer.transact(coordinator, batch_of_task(tx)) == [COMMITTED]


def batch_of_task(tx: TransactionId) -> wire.Labelled:
    """The application commits this branch alone."""
    batch = CoordinatorBatch(tx.xid.global_id, QUERY, 1, (tx.xid.branch_id,))
    return entry(Kind.HOME_BATCH, batch)


def test_a_vote_of_a_client_waits_for_nothing(peer: Peer) -> None:
    tx = lane("too early")
    vote = peer.prepare(tx, 1, peer.shard("two"))
    assert peer.transact(peer.shard("one"), vote) == [Finished(Outcome.INCOMPLETE)]


def test_a_vote_waits_for_operations_that_are_on_their_way(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "_HOLD_SECONDS", LIMIT_SECONDS)
    one, two, tx = peer.shard("one"), peer.shard("two"), task("late")
    coordinator = peer.coordinator(tx.xid)
    closing = peer.begin(wire.Transact(coordinator, (peer.close(tx, {one: 1, two: 1}),)))
    until(lambda: bool(peer.look(coordinator, tx).records), "home knows of it")
    peer.transact(one, peer.publish(tx, 1, b"late"))
    peer.transact(two, peer.publish(tx, 1, b"late"))
    answer = closing.result()
    assert isinstance(answer, wire.Transacted)
    assert [decode_result(each) for each in answer.results] == [Prepared(2)]
    assert peer.transact(coordinator, batch_of_task(tx)) == [COMMITTED]
    assert peer.values(one)[-1] == peer.values(two)[-1] == b"late"


def test_a_vote_does_not_wait_for_ever(peer: Peer) -> None:
    one, two, tx = peer.shard("one"), peer.shard("two"), task("lost")
    peer.transact(one, peer.publish(tx, 1, b"never"))
    assert peer.transact(peer.coordinator(tx.xid), peer.close(tx, {one: 1, two: 1})) == [
        Finished(Outcome.INCOMPLETE)
    ]
    assert not peer.look(one, tx).branches and peer.look(one, tx).outcome == Outcome.INCOMPLETE
    assert b"never" not in peer.values(one)


def test_a_shard_that_is_not_there_holds_nothing_up_for_ever(peer: Peer) -> None:
    one, xid = peer.shard("one"), Xid(7, b"nowhere", b"")
    coordinator = peer.coordinator(xid)
    (started,) = peer.transact(coordinator, call(xid, Call.START))
    assert isinstance(started, Answered)
    tx = TransactionId(xid, started.incarnation)
    peer.transact(coordinator, call(tx, Call.END, participants=((one, 1), ("no shard", 1), (coordinator, 1))))
    peer.transact(coordinator, call(tx, Call.ROLLBACK))
    until(lambda: not peer.look(coordinator, tx).records, "the shards that there are have heard")


def call(of: Xid | TransactionId, what: Call, session: str = "client", **fields: Any) -> wire.Labelled:
    transaction = of if isinstance(of, TransactionId) else TransactionId(of, 0)
    return entry(Kind.HOME_CALL, CoordinatorCall(to_fields(transaction), what, session, **fields))


def test_what_is_prepared_waits_for_a_word(peer: Peer) -> None:
    one, two, xid = peer.shard("one"), peer.shard("two"), Xid(7, b"outside", b"b")
    coordinator = peer.coordinator(xid)
    (started,) = peer.transact(coordinator, call(xid, Call.START))
    assert isinstance(started, Answered) and started.code == Code.OK
    tx = TransactionId(xid, started.incarnation)
    before = len(peer.values(two))
    for shard in (one, two):
        label = Label(tx, 1, started.worker, peer.owner)
        assert peer.transact(shard, entry(Kind.BATCH, batch_of(b"xa"), label)) == [Staged(1)]
    peer.transact(coordinator, call(tx, Call.END, participants=((one, 1), (two, 1))))
    (prepared,) = peer.transact(coordinator, call(tx, Call.PREPARE))
    assert isinstance(prepared, Answered) and prepared.code == Code.OK
    (record,) = peer.look(coordinator, tx).records
    assert (record.state, record.participants) == (State.PREPARED, {one: 1, two: 1})
    (branch,) = peer.look(one, tx).branches
    assert (branch.prepared, branch.coordinator, branch.operations) == (True, coordinator, 1)
    decide = CoordinatorDecide(to_fields(tx), Outcome.COMMITTED, heuristic="the coordinator is gone")
    assert peer.transact(coordinator, entry(Kind.HOME_DECIDE, decide)) == [COMMITTED]
    assert peer.values(two)[before:] == [b"xa"]
    (record,) = peer.look(coordinator, tx).records
    assert (record.state, record.heuristic) == (State.HEURISTIC_COMMIT, "the coordinator is gone")
    (forgotten,) = peer.transact(coordinator, call(tx, Call.FORGET))
    assert isinstance(forgotten, Answered) and forgotten.code == Code.OK


def test_what_a_batch_commits_is_there_when_it_is_told_so(peer: Peer) -> None:
    one, two = peer.shard("one"), peer.shard("two")
    branches = [task("application", name) for name in (b"a", b"b", b"unnamed")]
    coordinator = peer.coordinator(branches[0].xid)
    for tx, shard in zip(branches, (one, two, one), strict=True):
        peer.transact(shard, peer.publish(tx, 1, tx.xid.branch_id))
        assert peer.transact(coordinator, peer.close(tx, {shard: 1})) == [Prepared(1)]
    batch = entry(Kind.HOME_BATCH, CoordinatorBatch(b"application", QUERY, 1, (b"a", b"b")))
    assert peer.transact(coordinator, batch) == peer.transact(coordinator, batch) == [COMMITTED]
    assert peer.values(one)[-1] == b"a" and peer.values(two)[-1] == b"b"
    until(lambda: not peer.look(one, branches[2]).branches, "the end of what the batch does not name")
    assert peer.look(one, branches[2]).outcome == Outcome.DROPPED


def move(peer: Peer, shard: str) -> None:
    """Have another node lead it."""
    cluster = peer.cluster
    leader = cluster.run(peer.leader(shard))
    cluster.transfer(shard, next(node for node in cluster.nodes if node != leader))
    until(lambda: cluster.run(peer.leader(shard)) != leader, f"another leader of {shard}")


def test_other_leaders_go_on_where_these_were(peer: Peer) -> None:
    """Of a shard with something open and something prepared, and of home while it waits for votes."""
    one, two, tx, other = peer.shard("one"), peer.shard("two"), task("moving"), lane("moved")
    coordinator = peer.coordinator(tx.xid)
    peer.transact(one, peer.publish(tx, 1, b"moving"))
    peer.transact(one, peer.publish(other, 1, b"moved"), peer.prepare(other, 1, two))
    move(peer, one)
    (branch,) = peer.look(one, other).branches
    assert branch.prepared and peer.look(one, tx).branches
    closing = peer.begin(wire.Transact(coordinator, (peer.close(tx, {one: 1, two: 1}),)))
    until(lambda: bool(peer.look(coordinator, tx).records), "home knows of it")
    move(peer, coordinator)
    peer.transact(two, peer.publish(tx, 1, b"moving"))
    # The vote was perhaps asked for before the operation came, by the leader before.
    answer = closing.result()
    assert isinstance(answer, wire.Transacted)
    (result,) = map(decode_result, answer.results)
    assert result in (Prepared(2), Finished(Outcome.INCOMPLETE))
    if result == Prepared(2):
        assert peer.transact(coordinator, batch_of_task(tx)) == [COMMITTED]
    is_there = [b"moving" in peer.values(shard) for shard in (one, two)]
    assert is_there == [result == Prepared(2)] * 2
    # The one that decides has an operation already, and another leader.
    peer.transact(two, peer.publish(other, 1, b"moved"))
    move(peer, two)
    assert peer.transact(two, peer.commit(other, 1, one)) == [COMMITTED]
    assert b"moved" in peer.values(one) and b"moved" in peer.values(two)


def test_another_leader_tells_what_was_decided(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of the shard that decides is gone once its entry is committed, and has told nobody."""
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("told by another")
    peer.transact(two, peer.publish(tx, 1, b"told by another"), peer.prepare(tx, 1, one))
    leader = cluster.run(peer.leader(one))
    silent = cluster._nodes[leader].shards[one]._services.peers
    real, kept = PeerClient.tell, list[Any]()

    def tell(self: PeerClient, request: Any, heard: Any) -> None:
        concerns = request.shard in (one, two)
        if self is silent and concerns:
            kept.append(request)
        elif not (concerns and isinstance(request, wire.TransactionLook)):
            real(self, request, heard)

    # Nor does the prepared branch hear by asking.
    monkeypatch.setattr(PeerClient, "tell", tell)
    waiting = peer.begin(wire.Transact(one, (peer.publish(tx, 1, b"decided"), peer.commit(tx, 1, two))))
    until(lambda: bool(kept), "the leader is about to tell")
    assert peer.look(one, tx).records[0].waiting == (two,) and peer.look(two, tx).branches
    cluster.stop(leader)
    try:
        answer = waiting.result()
        assert isinstance(answer, wire.Transacted), answer
        assert decode_result(answer.results[1]) == COMMITTED
        until(lambda: not peer.look(two, tx).branches, "the new leader has told")
        assert peer.look(two, tx).outcome == Outcome.COMMITTED
        assert b"told by another" in peer.values(two) and b"decided" in peer.values(one)
        until(lambda: not peer.look(one, tx).records, "the new leader has heard that all is over")
        assert {type(each) for each in kept} == {wire.Transact}
    finally:
        cluster.start(leader)
        peer.come_again()


# Messages.


def get(peer: Peer, session: str, number: int, received: Token = NO_TOKEN, wait: float = 0.0) -> Any:
    shard = peer.shard("jobs")
    return wire.QueueGet(shard, 0, session, number, received, 1, 1 << 20, 60.0, wait)


def lock(peer: Peer, tx: TransactionId, number: int, session: str, token: Token) -> wire.Labelled:
    payload = wire.encode(wire.QueueLock(0, session, ((token.epoch, token.number, 1),)))
    return wire.Labelled(Kind.QUEUE_SETTLE, payload, peer.label(tx, number).encode())


def test_a_message_is_accepted_with_the_transaction_or_comes_back(peer: Peer) -> None:
    shard = peer.shard("jobs")
    peer.ask(wire.QueuePut(shard, batch_of(b"job")))
    (delivery_batch,) = peer.ask(get(peer, "s1", 1)).delivery_batches
    tx = lane("rolled back")
    accept = lock(peer, tx, 1, "s1", delivery_batch.token)
    assert peer.transact(shard, accept, peer.put(tx, 2, b"result")) == [Staged(1), Staged(2)]
    assert peer.transact(shard, accept) == [Staged(1)]
    # Nobody else has it, by its token or by another transaction.
    other = lane("other")
    not_held = Rejected(Reason.NOT_HELD)
    assert peer.transact(shard, lock(peer, other, 1, "s1", delivery_batch.token)) == [not_held]
    assert peer.transact(shard, lock(peer, other, 1, "s2", delivery_batch.token)) == [not_held]
    waiting = peer.begin(get(peer, "s2", 1, wait=30.0))
    assert peer.transact(shard, peer.abort(tx)) == [Finished(Outcome.ROLLED_BACK)]
    (again,) = waiting.result().delivery_batches
    assert (again.offset, again.delivery_count) == (delivery_batch.offset, 2)
    tx = lane("done")
    request = lock(peer, tx, 1, "s2", again.token), peer.put(tx, 2, b"result"), peer.commit(tx, 2)
    assert peer.transact(shard, *request) == [Staged(1), Staged(2), COMMITTED]
    (result,) = peer.ask(get(peer, "s1", 2, delivery_batch.token)).delivery_batches
    assert result.offset == delivery_batch.offset + 1
    settle = wire.QueueSettle(shard, 0, "s1", 1, 1, ((result.token.epoch, result.token.number, 1),))
    assert isinstance(peer.ask(settle), wire.Executed)


def test_messages_of_a_request_that_is_refused_are_held_as_before(peer: Peer) -> None:
    shard = peer.shard("jobs")
    peer.ask(wire.QueuePut(shard, batch_of(b"held")))
    (delivery_batch,) = peer.ask(get(peer, "s3", 1)).delivery_batches
    tx = lane("refused")
    of_another_leader = lock(peer, tx, 2, "s3", Token(delivery_batch.token.epoch + 1, 1))
    refused = peer.cluster.run(
        peer.asked_once(
            wire.Transact(shard, (lock(peer, tx, 1, "s3", delivery_batch.token), of_another_leader))
        )
    )
    assert isinstance(refused, wire.Failed) and refused.code is wire.Code.NOT_LEADER
    settle = wire.QueueSettle(
        shard, 0, "s3", 1, 1, ((delivery_batch.token.epoch, delivery_batch.token.number, 1),)
    )
    assert isinstance(peer.ask(settle), wire.Executed)


# Who may ask what.

_TX = lane("not allowed")
_XA = TransactionId(Xid(7, b"not allowed", b""), 1)
_TASK = TransactionId(Xid(APPLICATION_FORMAT, b"not allowed", b""), 1)
_LABEL = Label(_TX, 0, 0, 0)
_NUMBERED = Label(_TX, 1)

NOT_FOR_CLIENTS = {
    "a vote of xa": entry(Kind.BRANCH_PREPARE, BranchPrepare(((0, 1),), "home"), Label(_XA)),
    "commit": entry(Kind.BRANCH_COMMIT, BranchCommit(), _LABEL),
    "a commit of xa": entry(Kind.BRANCH_COMMIT, BranchCommit(((0, 1),)), Label(_XA)),
    "an abort of xa for others": entry(
        Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, others=("two",)), Label(_XA)
    ),
    "the last of xa": entry(Kind.BATCH, batch_of(b"x"), Label(_XA, 1, 1, last=True)),
    "the last of a task": entry(Kind.BATCH, batch_of(b"x"), Label(_TASK, 1, last=True)),
    "abort": entry(Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, decided=True), _LABEL),
    "limit": entry(Kind.BRANCH_LIMIT, BranchLimit(0, 0, 0, 0)),
    "forget": entry(Kind.BRANCH_FORGET, BranchForget(())),
    "trim": entry(Kind.TRIM, TrimTo(1), _NUMBERED),
    "carried": entry(Kind.BATCH, batch_of(b"x"), _NUMBERED._replace(carried=True)),
    "no label": entry(Kind.BATCH, batch_of(b"x")),
    "bad label": wire.Labelled(Kind.BATCH, batch_of(b"x"), b"label"),
    "no number": entry(Kind.BATCH, batch_of(b"x"), _LABEL),
    "a number": entry(Kind.BRANCH_COMMIT, BranchCommit(((0, 1),)), _NUMBERED),
    "no batch": entry(Kind.BATCH, b"x", _NUMBERED),
    "no command": entry(Kind.GROUP_COMMIT, b"\xc1", _NUMBERED),
    "home elsewhere": entry(Kind.HOME_DECIDE, CoordinatorDecide(to_fields(_TX), Outcome.ROLLED_BACK)),
    "for a queue": entry(Kind.QUEUE_PUT, batch_of(b"x"), _NUMBERED),
    "no such kind": entry(200, b"", _NUMBERED),
}
NOT_AT_HOME = {
    "votes": entry(Kind.HOME_VOTES, CoordinatorVotes(to_fields(_TX), ("one",))),
    "told": entry(Kind.HOME_TOLD, CoordinatorTold(())),
    "forget at home": entry(Kind.HOME_FORGET, CoordinatorForget((to_fields(_TX),))),
    "an operation": entry(Kind.BATCH, batch_of(b"x"), _NUMBERED),
    "a commit of a lane": entry(Kind.BRANCH_COMMIT, BranchCommit(((0, 1),), ("one",)), _LABEL),
    "an abort of a lane": entry(Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK, others=("one",)), _LABEL),
    "a position": entry(Kind.GROUP_COMMIT, GroupCommit("g", "m", 1, 1, 2), _NUMBERED),
}


@pytest.mark.parametrize("what", [*NOT_FOR_CLIENTS, *NOT_AT_HOME])
def test_what_a_client_may_not_ask_for_is_refused_whole(peer: Peer, what: str) -> None:
    at_home = what in NOT_AT_HOME
    shard = peer.coordinator(_TX.xid) if at_home else peer.shard("one")
    asked = (NOT_AT_HOME if at_home else NOT_FOR_CLIENTS)[what]
    good = () if at_home else (peer.publish(_TX, 1, b"not written"),)
    answer = peer.ask(wire.Transact(shard, (*good, asked)))
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BAD_REQUEST, answer
    assert peer.look(shard, _TX).incarnation == 0


def test_what_nobody_would_decide_is_not_prepared(peer: Peer) -> None:
    """With the same shard for its home, or one of those that decide for others, it would stay for ever."""
    shard = peer.shard("one")
    for coordinator in (shard, peer.coordinator(_TX.xid)):
        answer = peer.ask(
            wire.Transact(shard, (peer.publish(_TX, 1, b"x"), peer.prepare(_TX, 1, coordinator)))
        )
        assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BAD_REQUEST, answer
        assert peer.look(shard, _TX).incarnation == 0


def test_only_an_operator_closes_a_shard(cluster: RunningCluster, peer: Peer) -> None:
    shard, tx = peer.shard("two"), lane("closed")
    operator = Peer(cluster, "operator", PeerRole.OPERATOR)
    operator.transact(shard, entry(Kind.BRANCH_LIMIT, BranchLimit(0, 0, 0, 0)))
    (refused,) = peer.transact(shard, peer.publish(tx, 1, b"x"))
    assert isinstance(refused, Rejected) and refused.reason is Reason.TOO_MANY_TRANSACTIONS
    operator.transact(shard, entry(Kind.BRANCH_LIMIT, DEFAULT_LIMIT))
    operator.leave()
    assert peer.transact(shard, peer.publish(tx, 1, b"x"), peer.abort(tx))[0] == Staged(1)


# What nobody ends.


def test_what_lasts_too_long_is_rolled_back(peer: Peer) -> None:
    shard, tx = peer.shard("one"), lane("slow")
    peer.transact(shard, peer.publish(tx, 1, b"x", timeout_seconds=1))
    until(lambda: peer.look(shard, tx).outcome is not None, "the end of a transaction that takes too long")
    assert peer.look(shard, tx).outcome == Outcome.TIMED_OUT


def test_a_shard_whose_retention_fails_still_ends_what_lasts_too_long(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError("a block of the index cannot be read")

    monkeypatch.setattr(Shard, "retain", fail)
    shard, tx = peer.shard("one"), lane("slow beside a fault")
    peer.transact(shard, peer.publish(tx, 1, b"x", timeout_seconds=1))
    until(lambda: peer.look(shard, tx).outcome is not None, "the end of a transaction that takes too long")
    assert peer.look(shard, tx).outcome == Outcome.TIMED_OUT


_KILLED = """
import asyncio, sys
from tests.support.transactions import lane, stage_and_stay
asyncio.run(stage_and_stay(sys.argv[1], sys.argv[2], sys.argv[3]))
"""


def end_work(session: Peer, shard: str, xid: Xid, value: bytes) -> TransactionId:
    """The session works in a branch of XA, and ends that."""
    coordinator = session.coordinator(xid)
    (started,) = session.transact(coordinator, call(xid, Call.START, "leaver", seconds=3600))
    assert isinstance(started, Answered)
    transaction = TransactionId(xid, started.incarnation)
    label = Label(transaction, 1, started.worker, session.owner, 3600)
    session.transact(shard, entry(Kind.BATCH, batch_of(value), label))
    ended = call(transaction, Call.END, "leaver", participants=((shard, 1),))
    assert session.transact(coordinator, ended) == [Answered(Code.OK, started.incarnation)]
    return transaction


def test_a_client_that_is_killed_takes_its_open_work_with_it(cluster: RunningCluster, peer: Peer) -> None:
    """And nothing that is prepared, unless home has not decided; nor work of a session that was ended; and
    nothing of those who live, but an XA branch whose time is over at home, which does not know yet where it
    is."""
    shard, mine, killed, prepared = peer.shard("one"), lane("mine"), lane("killed"), lane("prepared")
    waiting, xid = lane("waiting"), Xid(7, b"hangs", b"")
    (started,) = peer.transact(peer.coordinator(xid), call(xid, Call.START, "stranger", seconds=1))
    assert isinstance(started, Answered)
    hanging = TransactionId(xid, started.incarnation)
    label = Label(hanging, 1, started.worker, peer.owner, 3600)
    peer.transact(shard, entry(Kind.BATCH, batch_of(b"hangs"), label))
    peer.transact(shard, peer.publish(mine, 1, b"mine"))
    leader = cluster.run(peer.leader(shard))
    arguments = [sys.executable, "-c", _KILLED, peer.address(leader), shard, "killed"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"staged\n"
        assert peer.look(shard, killed).branches
        process.kill()
    # As a client leaves it that dies before it decides; and as one has it whose other votes take long.
    coordinator = peer.shard("two")
    leaver = Peer(cluster, "leaver")
    ended = end_work(leaver, shard, Xid(7, b"ended", b""), b"ended")
    leaver.transact(shard, leaver.publish(prepared, 1, b"prepared"), leaver.prepare(prepared, 1, coordinator))
    leaver.leave()
    peer.transact(shard, peer.publish(waiting, 1, b"waiting"), peer.prepare(waiting, 1, coordinator))
    assert peer.look(shard, prepared).branches[0].prepared
    until(lambda: peer.look(shard, killed).outcome is not None, "the end of a lost session's transaction")
    assert peer.look(shard, killed).outcome == Outcome.SESSION_LOST
    until(lambda: peer.look(shard, prepared).outcome is not None, "what home has not decided is over")
    assert peer.look(shard, prepared).outcome == Outcome.SESSION_LOST
    late = peer.publish(prepared, 1, b"late"), peer.commit(prepared, 1, shard)
    assert peer.transact(coordinator, *late)[1] == Finished(Outcome.SESSION_LOST)
    until(lambda: peer.look(shard, hanging).outcome is not None, "the end of an XA branch that hangs")
    assert peer.look(shard, hanging).outcome == Outcome.TIMED_OUT
    # Its session has no link to any node: it is not kept for that.
    until(
        lambda: not peer.look(peer.coordinator(xid), hanging).records,
        "the session that hangs to be forgotten",
    )
    in_time = peer.publish(waiting, 1, b"in time"), peer.commit(waiting, 1, shard)
    assert peer.transact(coordinator, *in_time) == [Staged(1), COMMITTED]
    assert b"waiting" in peer.values(shard)
    (vote,) = peer.transact(peer.coordinator(ended.xid), call(ended, Call.PREPARE))
    (answer,) = peer.transact(peer.coordinator(ended.xid), call(ended, Call.COMMIT))
    assert isinstance(vote, Answered) and isinstance(answer, Answered)
    assert (vote.code, answer.code) == (Code.OK, Code.OK)
    assert b"ended" in peer.values(shard)
    assert peer.look(shard, mine).branches
    assert peer.transact(shard, peer.commit(mine, 1)) == [COMMITTED]
