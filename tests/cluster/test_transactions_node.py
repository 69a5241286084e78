"""Transactions at the nodes, entry by entry over the wire: what each request gets, who may ask what, and what
becomes of work that nobody ends."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
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
    HomeBatch,
    HomeCall,
    HomeDecide,
    HomeForget,
    HomeTold,
    HomeVotes,
    to_fields,
)
from hawser.transaction.identity import APPLICATION_FORMAT, Label, TransactionId, Xid
from hawser.transaction.xa import Call, Code, State
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.transactions import Peer, batch_of, entry, lane

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


def test_a_transaction_over_two_shards_is_decided_at_home(peer: Peer) -> None:
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("double")
    before = len(peer.values(one)), len(peer.values(two))
    assert peer.transact(one, peer.publish(tx, 1, b"x")) == [Staged(1)]
    assert peer.transact(two, peer.publish(tx, 1, b"y")) == [Staged(1)]
    assert (len(peer.values(one)), len(peer.values(two))) == before
    home = peer.home(tx.xid)
    close = peer.close(tx, {one: 1, two: 1})
    assert peer.transact(home, close) == [COMMITTED]
    assert peer.values(one)[before[0] :] == [b"x"]
    assert peer.values(two)[before[1] :] == [b"y"]
    assert peer.transact(home, close) == [COMMITTED]
    seen = peer.look(home, tx)
    assert (seen.outcome, seen.incarnation) == (Outcome.COMMITTED, 1)
    until(lambda: not peer.look(home).records, "home has heard that all is over")
    for incarnation in (0, 1):
        seen = peer.look(home, lane("never heard of", incarnation))
        assert (seen.outcome, seen.incarnation) == (None, 0)


def test_a_client_may_have_its_votes_before_home_hears_of_it(peer: Peer) -> None:
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("voted")
    home = peer.home(tx.xid)
    before = len(peer.values(two))
    for shard in (one, two):
        request = peer.publish(tx, 1, b"voted"), peer.prepare(tx, 1)
        assert peer.transact(shard, *request) == [Staged(1), Prepared(1)]
    assert peer.transact(home, peer.close(tx, {one: 1, two: 1}, voted=True)) == [COMMITTED]
    assert peer.values(two)[before:] == [b"voted"]
    assert not peer.look(one, tx).branches


def test_what_its_client_gives_up_is_over_although_it_is_prepared(peer: Peer) -> None:
    shard, tx = peer.shard("one"), lane("given up")
    peer.transact(shard, peer.publish(tx, 1, b"given up"), peer.prepare(tx, 1))
    assert peer.transact(shard, peer.abort(tx)) == [Prepared(1)]
    until(lambda: peer.look(shard, tx).outcome is not None, "home has said that it is rolled back")
    assert peer.look(shard, tx).outcome == Outcome.ROLLED_BACK
    late = peer.close(tx, {shard: 1}, voted=True)
    assert peer.transact(peer.home(tx.xid), late) == [Finished(Outcome.ROLLED_BACK)]


def test_what_is_closed_again_is_answered_and_not_written(cluster: RunningCluster, peer: Peer) -> None:
    shard, tx, repeats = peer.shard("one"), lane("closed again"), 20
    home = peer.home(tx.xid)
    peer.transact(shard, peer.publish(tx, 1, b"x"), peer.prepare(tx, 1))
    # The other one cannot be told, so home has to remember it.
    close = peer.close(tx, {shard: 1, "nowhere@0/0": 1}, voted=True)
    assert peer.transact(home, close) == [COMMITTED]
    leader = cluster._nodes[cluster.run(peer.leader(home))]
    before = leader.shards[home].replica.machine.applied
    assert all(peer.transact(home, close) == [COMMITTED] for _ in range(repeats))
    assert leader.shards[home].replica.machine.applied - before < repeats


def test_a_vote_of_a_client_waits_for_nothing(peer: Peer) -> None:
    tx = lane("too early")
    assert peer.transact(peer.shard("one"), peer.prepare(tx, 1)) == [Finished(Outcome.INCOMPLETE)]


def test_a_vote_waits_for_operations_that_are_on_their_way(peer: Peer) -> None:
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("late")
    home = peer.home(tx.xid)
    closing = peer.begin(wire.Transact(home, (peer.close(tx, {one: 1, two: 1}),)))
    until(lambda: bool(peer.look(home, tx).records), "home knows of it")
    peer.transact(one, peer.publish(tx, 1, b"late"))
    peer.transact(two, peer.publish(tx, 1, b"late"))
    answer = closing.result()
    assert isinstance(answer, wire.Transacted)
    assert [decode_result(each) for each in answer.results] == [COMMITTED]


def test_a_vote_does_not_wait_for_ever(peer: Peer) -> None:
    one, two, tx = peer.shard("one"), peer.shard("two"), lane("lost")
    peer.transact(one, peer.publish(tx, 1, b"never"))
    assert peer.transact(peer.home(tx.xid), peer.close(tx, {one: 1, two: 1})) == [
        Finished(Outcome.INCOMPLETE)
    ]
    assert not peer.look(one, tx).branches and peer.look(one, tx).outcome == Outcome.INCOMPLETE
    assert b"never" not in peer.values(one)


def test_a_shard_that_is_not_there_holds_nothing_up_for_ever(peer: Peer) -> None:
    one, xid = peer.shard("one"), Xid(7, b"nowhere", b"")
    home = peer.home(xid)
    (started,) = peer.transact(home, call(xid, Call.START))
    assert isinstance(started, Answered)
    tx = TransactionId(xid, started.incarnation)
    peer.transact(home, call(tx, Call.END, participants=((one, 1), ("no shard", 1), (home, 1))))
    peer.transact(home, call(tx, Call.ROLLBACK))
    until(lambda: not peer.look(home, tx).records, "the shards that there are have heard")


def call(of: Xid | TransactionId, what: Call, **fields: Any) -> wire.Labelled:
    transaction = of if isinstance(of, TransactionId) else TransactionId(of, 0)
    return entry(Kind.HOME_CALL, HomeCall(to_fields(transaction), what, "client", **fields))


def test_what_is_prepared_waits_for_a_word(peer: Peer) -> None:
    one, two, xid = peer.shard("one"), peer.shard("two"), Xid(7, b"outside", b"b")
    home = peer.home(xid)
    (started,) = peer.transact(home, call(xid, Call.START))
    assert isinstance(started, Answered) and started.code == Code.OK
    tx = TransactionId(xid, started.incarnation)
    before = len(peer.values(two))
    for shard in (one, two):
        label = Label(tx, 1, started.worker, peer.owner)
        assert peer.transact(shard, entry(Kind.BATCH, batch_of(b"xa"), label)) == [Staged(1)]
    peer.transact(home, call(tx, Call.END, participants=((one, 1), (two, 1))))
    (prepared,) = peer.transact(home, call(tx, Call.PREPARE))
    assert isinstance(prepared, Answered) and prepared.code == Code.OK
    (record,) = peer.look(home, tx).records
    assert (record.state, record.participants) == (State.PREPARED, {one: 1, two: 1})
    (branch,) = peer.look(one, tx).branches
    assert (branch.prepared, branch.home, branch.operations) == (True, home, 1)
    decide = HomeDecide(to_fields(tx), Outcome.COMMITTED, heuristic="the coordinator is gone")
    assert peer.transact(home, entry(Kind.HOME_DECIDE, decide)) == [COMMITTED]
    assert peer.values(two)[before:] == [b"xa"]
    (record,) = peer.look(home, tx).records
    assert (record.state, record.heuristic) == (State.HEURISTIC_COMMIT, "the coordinator is gone")
    (forgotten,) = peer.transact(home, call(tx, Call.FORGET))
    assert isinstance(forgotten, Answered) and forgotten.code == Code.OK


def test_what_a_batch_commits_is_there_when_it_is_told_so(peer: Peer) -> None:
    one, two = peer.shard("one"), peer.shard("two")
    branches = [
        TransactionId(Xid(APPLICATION_FORMAT, b"application", name), 1) for name in (b"a", b"b", b"unnamed")
    ]
    home = peer.home(branches[0].xid)
    for tx, shard in zip(branches, (one, two, one), strict=True):
        peer.transact(shard, peer.publish(tx, 1, tx.xid.branch_id))
        assert peer.transact(home, peer.close(tx, {shard: 1}, one_phase=False)) == [Prepared(1)]
    batch = entry(Kind.HOME_BATCH, HomeBatch(b"application", b"", 0, (b"a", b"b")))
    assert peer.transact(home, batch) == peer.transact(home, batch) == [COMMITTED]
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
    one, two, tx, other = peer.shard("one"), peer.shard("two"), lane("moving"), lane("moved")
    home = peer.home(tx.xid)
    peer.transact(one, peer.publish(tx, 1, b"moving"))
    peer.transact(one, peer.publish(other, 1, b"moved"), peer.prepare(other, 1))
    move(peer, one)
    (branch,) = peer.look(one, other).branches
    assert branch.prepared and peer.look(one, tx).branches
    closing = peer.begin(wire.Transact(home, (peer.close(tx, {one: 1, two: 1}),)))
    until(lambda: bool(peer.look(home, tx).records), "home knows of it")
    move(peer, home)
    peer.transact(two, peer.publish(tx, 1, b"moving"))
    # The vote was perhaps asked for before the operation came, by the leader before.
    answer = closing.result()
    assert isinstance(answer, wire.Transacted)
    (result,) = map(decode_result, answer.results)
    assert result in (COMMITTED, Finished(Outcome.INCOMPLETE))
    is_there = [b"moving" in peer.values(shard) for shard in (one, two)]
    assert is_there == [result == COMMITTED] * 2
    close = peer.close(other, {one: 1}, voted=True)
    assert peer.transact(peer.home(other.xid), close) == [COMMITTED]
    assert b"moved" in peer.values(one)


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
    (parcel,) = peer.ask(get(peer, "s1", 1)).parcels
    tx = lane("rolled back")
    accept = lock(peer, tx, 1, "s1", parcel.token)
    assert peer.transact(shard, accept, peer.put(tx, 2, b"result")) == [Staged(1), Staged(2)]
    assert peer.transact(shard, accept) == [Staged(1)]
    # Nobody else has it, by its token or by another transaction.
    other = lane("other")
    not_held = Rejected(Reason.NOT_HELD)
    assert peer.transact(shard, lock(peer, other, 1, "s1", parcel.token)) == [not_held]
    assert peer.transact(shard, lock(peer, other, 1, "s2", parcel.token)) == [not_held]
    waiting = peer.begin(get(peer, "s2", 1, wait=30.0))
    assert peer.transact(shard, peer.abort(tx)) == [Finished(Outcome.ROLLED_BACK)]
    (again,) = waiting.result().parcels
    assert (again.offset, again.delivery_count) == (parcel.offset, 2)
    tx = lane("done")
    request = lock(peer, tx, 1, "s2", again.token), peer.put(tx, 2, b"result"), peer.commit(tx, 2)
    assert peer.transact(shard, *request) == [Staged(1), Staged(2), COMMITTED]
    (result,) = peer.ask(get(peer, "s1", 2, parcel.token)).parcels
    assert result.offset == parcel.offset + 1
    settle = wire.QueueSettle(shard, 0, "s1", 1, 1, ((result.token.epoch, result.token.number, 1),))
    assert isinstance(peer.ask(settle), wire.Executed)


def test_messages_of_a_request_that_is_refused_are_held_as_before(peer: Peer) -> None:
    shard = peer.shard("jobs")
    peer.ask(wire.QueuePut(shard, batch_of(b"held")))
    (parcel,) = peer.ask(get(peer, "s3", 1)).parcels
    tx = lane("refused")
    of_another_leader = lock(peer, tx, 2, "s3", Token(parcel.token.epoch + 1, 1))
    refused = peer.cluster.run(
        peer.asked_once(wire.Transact(shard, (lock(peer, tx, 1, "s3", parcel.token), of_another_leader)))
    )
    assert isinstance(refused, wire.Failed) and refused.code is wire.Code.NOT_LEADER
    settle = wire.QueueSettle(shard, 0, "s3", 1, 1, ((parcel.token.epoch, parcel.token.number, 1),))
    assert isinstance(peer.ask(settle), wire.Executed)


# Who may ask what.

_TX = lane("not allowed")
_XA = TransactionId(Xid(7, b"not allowed", b""), 1)
_TASK = TransactionId(Xid(APPLICATION_FORMAT, b"not allowed", b""), 1)
_LABEL = Label(_TX, 0, 0, 0)
_NUMBERED = Label(_TX, 1)

NOT_FOR_CLIENTS = {
    "another home": entry(Kind.BRANCH_PREPARE, BranchPrepare(((0, 1),), "home"), _LABEL),
    "a vote of xa": entry(Kind.BRANCH_PREPARE, BranchPrepare(((0, 1),), "home"), Label(_XA)),
    "commit": entry(Kind.BRANCH_COMMIT, BranchCommit(), _LABEL),
    "a commit of xa": entry(Kind.BRANCH_COMMIT, BranchCommit(((0, 1),)), Label(_XA)),
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
    "home elsewhere": entry(Kind.HOME_DECIDE, HomeDecide(to_fields(_TX), Outcome.ROLLED_BACK)),
    "for a queue": entry(Kind.QUEUE_PUT, batch_of(b"x"), _NUMBERED),
    "no such kind": entry(200, b"", _NUMBERED),
}
NOT_AT_HOME = {
    "votes": entry(Kind.HOME_VOTES, HomeVotes(to_fields(_TX), ("one",))),
    "told": entry(Kind.HOME_TOLD, HomeTold(())),
    "forget at home": entry(Kind.HOME_FORGET, HomeForget((to_fields(_TX),))),
    "an operation": entry(Kind.BATCH, batch_of(b"x"), _NUMBERED),
    "a position": entry(Kind.GROUP_COMMIT, GroupCommit("g", "m", 1, 1, 2), _NUMBERED),
}


@pytest.mark.parametrize("what", [*NOT_FOR_CLIENTS, *NOT_AT_HOME])
def test_what_a_client_may_not_ask_for_is_refused_whole(peer: Peer, what: str) -> None:
    at_home = what in NOT_AT_HOME
    shard = peer.home(_TX.xid) if at_home else peer.shard("one")
    asked = (NOT_AT_HOME if at_home else NOT_FOR_CLIENTS)[what]
    good = () if at_home else (peer.publish(_TX, 1, b"not written"),)
    answer = peer.ask(wire.Transact(shard, (*good, asked)))
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BAD_REQUEST, answer
    assert peer.look(shard, _TX).incarnation == 0


def test_only_an_operator_closes_a_shard(cluster: RunningCluster, peer: Peer) -> None:
    shard, tx = peer.shard("two"), lane("closed")
    usual = BranchLimit(4096, 256 << 20, 4096, 1 << 30)
    operator = Peer(cluster, "operator", PeerRole.OPERATOR)
    operator.transact(shard, entry(Kind.BRANCH_LIMIT, BranchLimit(0, 0, 0, 0)))
    (refused,) = peer.transact(shard, peer.publish(tx, 1, b"x"))
    assert isinstance(refused, Rejected) and refused.reason is Reason.TOO_MANY_TRANSACTIONS
    operator.transact(shard, entry(Kind.BRANCH_LIMIT, usual))
    operator.leave()
    assert peer.transact(shard, peer.publish(tx, 1, b"x"), peer.abort(tx))[0] == Staged(1)


# What nobody ends.


def test_what_lasts_too_long_is_rolled_back(peer: Peer) -> None:
    shard, tx = peer.shard("one"), lane("slow")
    peer.transact(shard, peer.publish(tx, 1, b"x", timeout_seconds=1))
    until(lambda: peer.look(shard, tx).outcome is not None, "the end of a transaction that takes too long")
    assert peer.look(shard, tx).outcome == Outcome.TIMED_OUT


_KILLED = """
import asyncio, sys
from tests.support.transactions import lane, stage_and_stay
asyncio.run(stage_and_stay(sys.argv[1], sys.argv[2], sys.argv[3]))
"""


def test_a_client_that_is_killed_takes_its_open_work_with_it(cluster: RunningCluster, peer: Peer) -> None:
    """And nothing that is prepared, unless home knows nothing of it; and nothing of those who live, but an XA
    branch whose time is over at home, which does not know yet where it is."""
    shard, mine, killed, prepared = peer.shard("one"), lane("mine"), lane("killed"), lane("prepared")
    waiting, xid = lane("waiting"), Xid(7, b"hangs", b"")
    (started,) = peer.transact(peer.home(xid), call(xid, Call.START, seconds=1))
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
    # As a client leaves it that dies before it tells home; and as one has it whose other votes take long.
    leaver = Peer(cluster, "leaver")
    leaver.transact(shard, leaver.publish(prepared, 1, b"prepared"), leaver.prepare(prepared, 1))
    leaver.leave()
    peer.transact(shard, peer.publish(waiting, 1, b"waiting"), peer.prepare(waiting, 1))
    assert peer.look(shard, prepared).branches[0].prepared
    until(lambda: peer.look(shard, killed).outcome is not None, "the end of a lost session's transaction")
    assert peer.look(shard, killed).outcome == Outcome.SESSION_LOST
    until(lambda: peer.look(shard, prepared).outcome is not None, "what home knows nothing of is over")
    assert peer.look(shard, prepared).outcome == Outcome.SESSION_LOST
    late = peer.close(prepared, {shard: 1}, voted=True)
    assert peer.transact(peer.home(prepared.xid), late) == [Finished(Outcome.SESSION_LOST)]
    until(lambda: peer.look(shard, hanging).outcome is not None, "the end of an XA branch that hangs")
    assert peer.look(shard, hanging).outcome == Outcome.TIMED_OUT
    in_time = peer.close(waiting, {shard: 1}, voted=True)
    assert peer.transact(peer.home(waiting.xid), in_time) == [COMMITTED]
    assert peer.look(shard, mine).branches
    assert peer.transact(shard, peer.commit(mine, 1)) == [COMMITTED]
