"""Moments at which a transaction could come apart, one by one, on real nodes that are killed."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.log.entry import Kind
from hawser.log.queue.claims import NO_TOKEN
from hawser.log.state.results import Finished, Outcome, Prepared, Reason, Rejected, Staged
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.transaction.identity import Xid as RawXid
from hawser.xa import XAError, Xid
from tests.cluster.transaction_wire import RawTransactions
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, records, until
from tests.support.transactions import batch_of, entry

RecordProperty = Callable[[str, object], None]
_numbers = count(1)

pytestmark = pytest.mark.timeout(900)


@contextmanager
def killed(cluster: ClusterProcesses, names: Iterable[str]) -> Iterator[None]:
    """They are dead in the block, and serve behind it."""
    gone = [cluster.nodes[name] for name in set(names)]
    for node in gone:
        node.kill()
    try:
        yield
    finally:
        for node in gone:
            node.begin()
        for node in gone:
            node.wait_until_ready()
        cluster.wait_until_alive(*cluster.nodes)


def new_xid() -> Xid:
    return Xid(5, f"race-{next(_numbers)}".encode(), b"")


def new_lane() -> RawXid:
    return RawXid(LANE_FORMAT, f"lane-{next(_numbers)}".encode(), b"")


def places(bus: hawser.Bus) -> tuple[Any, Any]:
    """A topic and a queue that nobody else uses."""
    number = next(_numbers)
    return bus.topic(f"topic{number}"), bus.queue(f"queue{number}")


def prepared(bus: hawser.Bus, topic: Any, queue: Any, value: bytes, taken: bool = True) -> Xid:
    """A branch that has taken a message, written to both, and is prepared."""
    xid = new_xid()
    branch = bus.xa.start(xid)
    if taken:
        branch.accept(branch.get_many(queue, 1, timeout=LIMIT_SECONDS))
    branch.publish(topic, value)
    branch.publish(queue, value)
    bus.xa.end(xid)
    assert bus.xa.prepare(xid) == "ok"
    return xid


def messages(queue: Any) -> list[bytes]:
    """All that are there; they are gone then."""
    found: list[bytes] = []
    while queue.info().ready or queue.info().claimed:
        some = queue.get_many(100, timeout=0.2)
        found += map(bytes, some)
        some.accept()
    return found


def leaders(bus: hawser.Bus, xid: Any, *names: str) -> set[str]:
    """Of these, and of the home of the transaction."""
    raw = RawTransactions(bus)
    return {raw.leader(shard) for shard in (raw.coordinator(xid), *map(raw.shard, names))}


def test_leaders_of_home_and_participants_die_together(processes: ClusterProcesses, bus: hawser.Bus) -> None:
    """Between prepare and the decision; both are asked for while nobody leads."""
    topic, queue = places(bus)
    queue.put_many([b"first", b"second"])
    kept, dropped = prepared(bus, topic, queue, b"kept"), prepared(bus, topic, queue, b"dropped")
    dead = leaders(bus, kept, topic.name, queue.name) | leaders(bus, dropped)
    with processes.connect() as other, ThreadPoolExecutor(2) as threads:
        with killed(processes, dead):
            coordinator = [threads.submit(other.xa.commit, kept), threads.submit(bus.xa.rollback, dropped)]
        for each in coordinator:
            each.result(LIMIT_SECONDS)
        other.xa.commit(kept)
    until(lambda: not RawTransactions(bus).unfinished(), "an end of both")
    assert records(topic) == [b"kept"]
    assert messages(queue) == [b"second", b"kept"]


def test_all_nodes_restart_with_prepared_branches(processes: ClusterProcesses, bus: hawser.Bus) -> None:
    topic, queue = places(bus)
    queue.put_many([b"first", b"second"])
    with processes.connect() as coordinator:
        mine = coordinator.topic(topic.name), coordinator.queue(queue.name)
        kept, dropped = prepared(coordinator, *mine, b"kept"), prepared(coordinator, *mine, b"dropped")
    with killed(processes, processes.nodes):
        pass
    with processes.connect() as other:
        until(lambda: {kept, dropped} <= set(other.xa.recover()), "both, found again")
        topic, queue = other.topic(topic.name), other.queue(queue.name)
        assert records(topic) == []
        other.xa.commit(kept)
        other.xa.rollback(dropped)
        assert not {kept, dropped} & set(other.xa.recover())
        until(lambda: not RawTransactions(other).unfinished(), "an end of both")
        assert records(topic) == [b"kept"]
        assert messages(queue) == [b"second", b"kept"]


def test_an_undecided_transaction_delays_nobody(bus: hawser.Bus) -> None:
    """Others publish, put, get and commit on its shards, and their messages are read; its own come when it is
    committed, behind them."""
    topic, queue = places(bus)
    queue.put_many([b"locked", b"free"])
    xid = prepared(bus, topic, queue, b"late")
    values = [str(number).encode() for number in range(20)]
    for value in values[:10]:
        topic.publish(value)
        queue.put(value)
    for value in values[10:]:
        with bus.transaction() as transaction:
            transaction.publish(topic, value)
            transaction.publish(queue, value)
    got = [bytes(each) for each in taken(queue, 1 + len(values))]
    assert got == [b"free", *values]
    assert records(topic) == values
    assert xid in bus.xa.recover()
    bus.xa.commit(xid)
    assert records(topic) == [*values, b"late"]
    assert messages(queue) == [b"late"]


def taken(queue: Any, number: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < number:
        some = queue.get_many(number - len(found), timeout=LIMIT_SECONDS)
        assert some
        found += some
    for each in found:
        each.accept()
    return found


def test_commit_and_rollback_at_once(processes: ClusterProcesses, record_property: RecordProperty) -> None:
    """Of one xid, by two clients: one of them wins, and both learn which."""
    wins = {"commit": 0, "rollback": 0}
    with processes.connect() as one, processes.connect() as other, ThreadPoolExecutor(2) as threads:
        topic, queue = places(one)
        expected: list[bytes] = []
        for number in range(20):
            value = str(number).encode()
            xid = prepared(one, topic, queue, value, taken=False)
            # Who does not know the use of the xid asks first, and comes too late.
            assert other.xa.recover() == [xid]
            start = threading.Barrier(2)
            committing = threads.submit(_outcome, start, one.xa.commit, xid)
            rolling_back = threads.submit(_outcome, start, other.xa.rollback, xid)
            outcomes = committing.result(LIMIT_SECONDS), rolling_back.result(LIMIT_SECONDS)
            assert outcomes in (("ok", "illegal-state"), ("rb-rollback", "ok")), outcomes
            if outcomes[0] == "ok":
                expected.append(value)
            wins["commit" if outcomes[0] == "ok" else "rollback"] += 1
        until(lambda: not RawTransactions(one).unfinished(), "an end of all")
        assert records(topic) == messages(queue) == expected
    for winner, times in wins.items():
        record_property(f"won by the {winner}", times)


def _outcome(start: threading.Barrier, call: Callable[[Xid], object], xid: Xid) -> str:
    start.wait(LIMIT_SECONDS)
    try:
        call(xid)
    except XAError as error:
        return error.code
    return "ok"


def test_requests_of_an_old_incarnation(processes: ClusterProcesses, bus: hawser.Bus) -> None:
    """Repeated, late and of another leader's time: each is answered for its own use of the id, and the next
    one is untouched."""
    raw, (topic, _) = RawTransactions(bus), places(bus)
    shard, xid = raw.shard(topic.name), new_lane()
    first, second = TransactionId(xid, 1), TransactionId(xid, 2)
    whole = [raw.publish(first, 1, b"1"), raw.publish(first, 2, b"2"), raw.commit(first, 2)]
    done = [Staged(1), Staged(2), Finished(Outcome.COMMITTED)]
    over = Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert raw.transact(shard, *whole) == done
    with killed(processes, [raw.leader(shard)]):
        assert raw.transact(shard, *whole) == [over, over, done[-1]]
    assert raw.transact(shard, raw.publish(second, 1, b"3")) == [Staged(1)]
    late = [*whole, raw.publish(first, 3, b"late"), raw.abort(first, Outcome.ROLLED_BACK)]
    assert raw.transact(shard, *late) == [over, over, done[-1], over, done[-1]]
    assert raw.transact(shard, raw.commit(second, 1)) == [Finished(Outcome.COMMITTED)]
    assert records(topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("decides", ["the topic", "the queue"])
def test_an_operation_that_is_lost_in_a_failover(
    processes: ClusterProcesses, bus: hawser.Bus, decides: str
) -> None:
    """It was sent to the topic, and its leader dies without having seen it. That shard is told how many there
    must be, to decide or to prepare, and is against it; nothing of the transaction happens, and the message
    that it had accepted comes again."""
    raw, (topic, queue) = RawTransactions(bus), places(bus)
    queue.put(b"message")
    transaction = TransactionId(new_lane(), 1)
    shards = raw.shard(topic.name), raw.shard(queue.name)
    lent = raw.ask(shards[1], wire.QueueGet(shards[1], 0, "raw", 1, NO_TOKEN, 1, 1000, 60.0, 60.0))
    token = lent.delivery_batches[0].token
    tokens = wire.QueueLock(0, "raw", ((token.epoch, token.number, 1),))
    lock = entry(Kind.QUEUE_SETTLE, msgspec.msgpack.encode(tokens), raw.label(transaction, 1))
    assert raw.transact(shards[1], lock) == [Staged(1)]
    assert raw.transact(shards[0], raw.publish(transaction, 1, b"1")) == [Staged(1)]
    if decides == "the topic":
        assert raw.transact(shards[1], raw.prepare(transaction, 1, shards[0])) == [Prepared(1)]
    leader = raw.leader(shards[0])
    processes.nodes[leader].pause()
    raw.send(shards[0], raw.publish(transaction, 2, b"lost"))
    incomplete = Finished(Outcome.INCOMPLETE)
    with killed(processes, [leader]):
        if decides == "the topic":
            assert raw.transact(shards[0], raw.commit(transaction, 2, shards[1])) == [incomplete]
        else:
            assert raw.transact(shards[0], raw.prepare(transaction, 2, shards[1])) == [incomplete]
            abort = raw.abort(transaction, Outcome.INCOMPLETE, shards[0])
            assert raw.transact(shards[1], abort) == [incomplete]
    until(lambda: not raw.unfinished(), "an end of it")
    assert records(topic) == []
    message = queue.get(timeout=LIMIT_SECONDS)
    assert bytes(message) == b"message" and message.redelivered
    message.accept()


def test_a_decision_outlives_the_leader_that_told_nobody(
    processes: ClusterProcesses, bus: hawser.Bus
) -> None:
    """Whoever is to be told stands still, and the leader that has decided is killed: the next one tells."""
    raw = RawTransactions(bus)
    topics: list[Any] = [bus.topic(f"topic{next(_numbers)}") for _ in range(2)]
    coordinator, shard = (raw.shard(topic.name) for topic in topics)
    if raw.leader(coordinator) == raw.leader(shard):
        other = next(name for name in processes.nodes if name != raw.leader(shard))
        processes.run("cluster", "transfer", f"{topics[0].name}/0", other)
        until(lambda: raw.leader(coordinator) != raw.leader(shard), "another leader")
    transaction = TransactionId(new_lane(), 1)
    entries = raw.publish(transaction, 1, b"prepared"), raw.prepare(transaction, 1, coordinator)
    assert raw.transact(shard, *entries) == [Staged(1), Prepared(1)]
    decides, is_told = raw.leader(coordinator), raw.leader(shard)
    processes.nodes[is_told].pause()
    raw.send(coordinator, raw.publish(transaction, 1, b"decided"), raw.commit(transaction, 1, shard))
    until(lambda: raw.outcome(coordinator, transaction) is Outcome.COMMITTED, "the decision")
    with killed(processes, [decides]):
        processes.nodes[is_told].resume()
        until(lambda: not raw.unfinished(), "an end of it")
        assert [records(topic) for topic in topics] == [[b"decided"], [b"prepared"]]


class Closing:
    """Transactions of one operation on each of two shards, which are committed at moments of their own. The
    first shard decides about one, the second about the next."""

    def __init__(self, bus: hawser.Bus) -> None:
        self.raw = RawTransactions(bus)
        self.topics: list[Any] = [bus.topic(f"topic{next(_numbers)}") for _ in range(2)]
        self.shards = [self.raw.shard(topic.name) for topic in self.topics]
        self.outcomes: dict[bytes, Outcome] = {}
        self._hurry = threading.Event()
        self._runs = count()

    def run(self, timeout_seconds: int, seconds: float, votes: bool) -> None:
        """Committed after so many seconds. With `votes` the other shard is prepared before that, and the one
        that decides has its operation with the commit."""
        raw, transaction = self.raw, TransactionId(new_lane(), 1)
        value, number = transaction.xid.global_id, next(self._runs) % 2
        coordinator, other = self.shards[number], self.shards[1 - number]
        operation = entry(Kind.BATCH, batch_of(value), raw.label(transaction, 1, timeout_seconds))
        prepare, commit = raw.prepare(transaction, 1, coordinator), raw.commit(transaction, 1, other)
        begun = raw.transact(other, operation, prepare) if votes else raw.transact(other, operation)
        begun += [] if votes else raw.transact(coordinator, operation)
        if Rejected(Reason.TRANSACTION_OVER, Outcome.TIMED_OUT) in begun:
            # The answer was lost with a leader, and the time was over when it was asked for again.
            self.outcomes[value] = Outcome.TIMED_OUT
            return
        assert begun == ([Staged(1), Prepared(1)] if votes else [Staged(1), Staged(1)])
        self._hurry.wait(seconds)
        if votes:
            _, result = raw.transact(coordinator, operation, commit)
        else:
            (vote,) = raw.transact(other, prepare)
            against = vote.outcome if isinstance(vote, Finished) else None
            end = commit if against is None else raw.abort(transaction, against, other)
            (result,) = raw.transact(coordinator, end)
        assert isinstance(result, Finished), result
        self.outcomes[value] = result.outcome

    def hurry(self) -> None:
        """Commit what waits."""
        self._hurry.set()

    def judge(self) -> dict[str, int]:
        """All of it is there or nothing, on both shards, as whoever committed it was told."""
        until(lambda: not self.raw.unfinished(), "an end of all")
        committed = sorted(value for value, outcome in self.outcomes.items() if outcome is Outcome.COMMITTED)
        assert [sorted(records(topic)) for topic in self.topics] == [committed, committed]
        return Counter(outcome.name.lower() for outcome in self.outcomes.values())


def test_a_commit_races_time_outs_and_changes_of_leaders(
    processes: ClusterProcesses, bus: hawser.Bus, record_property: RecordProperty
) -> None:
    """Some may stay open for a second, and are committed before that or behind it. Of some one shard is
    prepared, and the other decides at about the time when that, having heard nothing for long, has it rolled
    back."""
    closing, random = Closing(bus), Random(7)
    with ThreadPoolExecutor(40) as threads:
        running = [threads.submit(closing.run, 1, random.uniform(0, 3), False) for _ in range(20)]
        running += [threads.submit(closing.run, 2, random.uniform(1, 6), True) for _ in range(20)]
        for shard in (*closing.shards, closing.shards[0]):
            with killed(processes, [closing.raw.leader(shard)]):
                closing.raw.look(shard)
        for each in running:
            each.result(LIMIT_SECONDS)
    for outcome, times in closing.judge().items():
        record_property(outcome, times)


def test_votes_that_nobody_brings_home(bus: hawser.Bus) -> None:
    """Whoever had them prepared is silent: they are rolled back, and then it is too late."""
    closing = Closing(bus)
    closing.run(60, 0, votes=True)
    late = threading.Thread(target=closing.run, args=(2, LIMIT_SECONDS, True))
    late.start()
    until(lambda: len(closing.raw.look(closing.shards[0]).branches) == 1, "a prepared branch")
    until(lambda: not closing.raw.unfinished(), "its end, without a word of its client")
    closing.hurry()
    late.join()
    assert [each is Outcome.COMMITTED for each in closing.outcomes.values()] == [True, False]
    closing.judge()


def test_commits_that_nobody_answers(processes: ClusterProcesses, record_property: RecordProperty) -> None:
    """All nodes stand still in the middle of commits, on one shard and on two, for longer than their clients
    wait. What was said to be rolled back never happens, also when late requests are read; the rest is there
    as a whole or not at all; and the same clients go on."""
    outcomes: dict[bytes, str] = {}
    names = [f"topic{next(_numbers)}" for _ in range(2)]
    with processes.connect() as patient:
        for name in names:
            patient.topic(name).info()
    with processes.connect(timeout=3.0) as bus, ThreadPoolExecutor(12) as threads:
        topics: list[Any] = [bus.topic(name) for name in names]
        for pause_seconds in (0.0, 0.002, 0.004):
            wanted, may_fail = len(outcomes) + 24, threading.Event()
            running = [
                threads.submit(_commit_until_it_fails, bus, topics, outcomes, may_fail) for _ in range(12)
            ]
            until(partial(_are_more, outcomes, wanted), "commits")
            may_fail.set()
            threading.Event().wait(pause_seconds)
            for node in processes.nodes.values():
                node.pause()
            for each in running:
                each.result(LIMIT_SECONDS)
            for node in processes.nodes.values():
                node.resume()
        raw = RawTransactions(bus)
        until(lambda: not raw.unfinished(), "an end of all")
        there = [Counter(records(topic)) for topic in topics]
    for value, outcome in outcomes.items():
        times = {each[value] for each in there[value.startswith(b"one") :]}
        possible = {"committed": [{1}], "none": [{0}]}.get(outcome, [{0}, {1}])
        assert times in possible, (value, outcome, times)
    for outcome, number in Counter(outcomes.values()).items():
        record_property(outcome, number)


def _are_more(outcomes: dict[bytes, str], wanted: int) -> bool:
    return len(outcomes) > wanted


def _commit_until_it_fails(
    bus: hawser.Bus, topics: list[Any], outcomes: dict[bytes, str], may_fail: threading.Event
) -> None:
    """On both shards, and on the second one alone. What fails before it may is one of many."""
    outcome = ""
    while outcome in ("", "committed") or not may_fail.is_set():
        number = next(_numbers)
        value = f"{'one' if number % 2 else 'both'} {number}".encode()
        try:
            with bus.transaction() as transaction:
                for topic in topics[number % 2 :]:
                    transaction.publish(topic, value)
            outcome = "committed"
        except hawser.HawserError as error:
            outcome = error.outcome
        outcomes[value] = outcome


def test_a_branch_that_timed_out_frees_its_messages(processes: ClusterProcesses, bus: hawser.Bus) -> None:
    """Also if its session lives and says nothing, so that home does not know which shards it touched."""
    _, queue = places(bus)
    queue.put(b"message")
    xid = new_xid()
    branch = bus.xa.start(xid)
    branch.accept(branch.get_many(queue, 1, timeout=LIMIT_SECONDS))
    bus.xa.set_timeout(xid, 1)
    with processes.connect() as other:
        message = other.queue(queue.name).get(timeout=LIMIT_SECONDS)
        assert message is not None and bytes(message) == b"message"
        message.accept()
    with pytest.raises(XAError) as caught:
        bus.xa.end(xid)
    assert caught.value.code == "rb-timeout"
