"""Messages that go with the commit of another shard: there once, whoever is killed or cannot be reached."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.log.entry import Kind
from hawser.log.state.results import Finished, Outcome
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.transaction.commands import BranchCommit
from tests.cluster.transaction_wire import RawTransactions
from tests.cluster.worker import PATIENT
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, records, until
from tests.support.transactions import batch_of, entry, lane

RecordProperty = Callable[[str, object], None]
COMMITTED = Finished(Outcome.COMMITTED)
_numbers = count(1)

pytestmark = pytest.mark.timeout(900)


class Orders:
    """A queue that has three copies, and a topic that has one, on a node that does not lead the queue."""

    def __init__(self, processes: ClusterProcesses, bus: hawser.Bus) -> None:
        number = next(_numbers)
        self.queue: Any = bus.queue(f"orders{number}", replication=3)
        self.queue.put(b"order")
        for attempt in range(20):
            self.topic: Any = bus.topic(f"invoices{number}-{attempt}", replication=1)
            if processes.leader(self.topic.name) != processes.leader(self.queue.name):
                break
        self.coordinator = processes.leader(self.queue.name)
        self.away = processes.nodes[processes.leader(self.topic.name)]
        assert processes.nodes[self.coordinator] is not self.away
        self.raw = RawTransactions(bus)
        self.shard, self.target = self.raw.shard(self.queue.name), self.raw.shard(self.topic.name)

    def entries(self, name: str, value: bytes) -> tuple[wire.Labelled, wire.Labelled]:
        """A transaction that puts one into the queue, and publishes one."""
        transaction = lane(f"{self.queue.name} {name}")
        put = entry(Kind.QUEUE_PUT, batch_of(b"handled"), self.raw.label(transaction, 1))
        commit = BranchCommit(((0, 1),), (), {self.target: batch_of(value)})
        return put, entry(Kind.BRANCH_COMMIT, commit, self.raw.label(transaction))

    def commit(self, name: str, value: bytes) -> None:
        assert self.raw.transact(self.shard, *self.entries(name, value))[1] == COMMITTED

    @property
    def waiting(self) -> list[list[str]]:
        """Who is to be told of what was committed."""
        records = self.raw.look(self.shard).records
        assert all(each.outcome == Outcome.COMMITTED for each in records)
        assert all(each.participants[self.target] == 1 for each in records), "one publish each"
        return [list(each.waiting) for each in records]


def test_what_a_topic_has_to_take_waits_for_it_and_outlives_who_decided(
    processes: ClusterProcesses, bus: hawser.Bus
) -> None:
    orders = Orders(processes, bus)
    values = [b"%d" % number for number in range(5)]
    orders.away.pause()
    try:
        for value in values:
            orders.commit(str(value), value)
        assert orders.waiting == [[orders.target]] * len(values)
        with pytest.raises(hawser.HawserError, match=r"unfinished transactions"):
            orders.queue.delete()
        processes.nodes[orders.coordinator].kill()
    finally:
        orders.away.resume()
        if not processes.nodes[orders.coordinator].runs:
            processes.nodes[orders.coordinator].start()
    processes.wait_until_alive(*processes.nodes)
    until(lambda: records(orders.topic) == values, "the messages of transactions that were committed")
    until(lambda: not orders.waiting, "home to know that")
    assert records(orders.topic) == values and orders.queue.info().ready == 1 + len(values)
    orders.queue.delete()


def test_a_topic_that_is_deleted_takes_with_it_what_it_was_to_get(
    processes: ClusterProcesses, bus: hawser.Bus
) -> None:
    orders = Orders(processes, bus)
    orders.away.pause()
    try:
        orders.commit("first", b"invoice")
    finally:
        orders.away.resume()
    with processes.connect() as other:
        other.topic(orders.topic.name, create=False).delete()
    until(lambda: not orders.waiting, "home to have nobody to tell")
    # Whoever has not heard of that is told before anything is committed.
    with pytest.raises(hawser.HawserError, match="deleted"):
        orders.commit("second", b"too late")
    assert orders.queue.info().ready == 2


def test_a_commit_that_is_sent_again_and_again_delivers_once(
    processes: ClusterProcesses, bus: hawser.Bus
) -> None:
    """Also to the next leader, and the one behind it."""
    orders = Orders(processes, bus)
    put, commit = orders.entries("again", b"invoice")
    assert orders.raw.transact(orders.shard, put, commit)[1] == COMMITTED
    for _ in range(2):
        node = processes.nodes[processes.leader(orders.queue.name)]
        node.kill()
        assert orders.raw.transact(orders.shard, commit) == [COMMITTED]
        node.start()
        processes.wait_until_alive(*processes.nodes)
        assert orders.raw.transact(orders.shard, commit, commit) == [COMMITTED] * 2
    until(lambda: not orders.waiting, "home to know that it is there")
    assert records(orders.topic) == [b"invoice"] and orders.queue.info().ready == 2


def test_a_client_that_lies_breaks_nothing(processes: ClusterProcesses, bus: hawser.Bus) -> None:
    """It commits an earlier transaction of its lane than others were told of, and what nobody would take."""
    orders = Orders(processes, bus)
    raw, shard = orders.raw, orders.shard
    earlier, later = (lane(f"{orders.queue.name} liar", number) for number in (4, 5))
    raw.transact(shard, entry(Kind.QUEUE_PUT, batch_of(b"x"), raw.label(earlier, 1)))
    raw.transact(shard, raw.abort(later, Outcome.ROLLED_BACK, orders.target))
    for batch in (batch_of(b"y"), bytes(Batch.of([Record(b"z")], Stamp(b"producer", 1, 1)).data)):
        commit = BranchCommit(((0, 1),), (), {orders.target: batch})
        with suppress(hawser.HawserError):
            result = raw.transact(shard, entry(Kind.BRANCH_COMMIT, commit, raw.label(earlier)))
            assert not isinstance(result[0], Finished)
    with bus.transaction() as tx:
        message = tx.get(orders.queue, timeout=LIMIT_SECONDS)
        assert message is not None and message.value == b"order"
        tx.publish(orders.topic, b"invoice")
        tx.accept(message)
    assert records(orders.topic) == [b"invoice"]


@pytest.mark.slow
def test_nodes_are_killed_while_many_are_delivered(
    processes: ClusterProcesses, record_property: RecordProperty
) -> None:
    """Each order is handled once, and has one invoice in each topic, in whatever order."""
    orders, threads, kills = 400, 4, 3
    random = Random("deliveries")
    with processes.connect("setup") as bus:
        queue = bus.queue("storm", replication=3)
        topics = [bus.topic(f"storm-{number}", replication=1 + 2 * (number > 0)) for number in range(3)]
        queue.put_many([b"%d" % number for number in range(orders)])
        for topic in topics:
            assert topic.info().partitions

    def work(name: str) -> int:
        done = 0
        with processes.connect(name, **PATIENT) as bus:
            queue = bus.queue("storm", create=False)
            topics = [bus.topic(f"storm-{number}", create=False) for number in range(3)]

            def handle(tx: Any) -> bool:
                message = tx.get(queue, timeout=1)
                if message is not None:
                    for topic in topics:
                        tx.publish(topic, bytes(message))
                    tx.accept(message)
                return message is not None

            while True:
                if bus.run_transaction(handle, retries=50):
                    done += 1
                elif not queue.info().ready + queue.info().claimed:
                    return done

    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work, f"worker{number}") for number in range(threads)]
        killed = 0
        while killed < kills and not all(each.done() for each in working):
            time.sleep(random.uniform(0.1, 0.5))
            node = processes.nodes[random.choice(sorted(processes.nodes))]
            node.kill()
            time.sleep(random.uniform(0, 2))
            node.start()
            killed += 1
            processes.wait_until_alive(*processes.nodes)
        done = sum(each.result() for each in working)
    record_property("kills", killed)
    record_property("transactions", done)
    assert killed
    with processes.connect("judge") as bus:
        raw = RawTransactions(bus)
        until(lambda: not raw.unfinished(), "everything to be delivered", lambda: raw.unfinished())
        queue = bus.queue("storm", create=False)
        left = queue.info().ready + queue.info().claimed
        handled = Counter(b"%d" % number for number in range(orders))
        for number in range(3):
            found = Counter(records(bus.topic(f"storm-{number}", create=False)))
            assert found == handled, (number, left, found - handled, handled - found)
        assert left == 0
