"""The leader of a queue: who is answered, with what, and who is told when something goes wrong."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.node.queue import dead_letter_forwarder
from hawser.cluster.node.shard import Shard
from hawser.cluster.shard_map import ShardMap
from hawser.log.entry import Kind
from hawser.log.journal.errors import Damaged
from hawser.log.protocol.events import Serve
from hawser.log.protocol.leader import Leadership
from hawser.log.queue import dispatcher as dispatcher_module
from hawser.log.queue.claims import NO_TOKEN, Token
from hawser.log.state.results import Reason, Rejected, decode_result
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.identity import Label
from tests.support.cluster import RunningCluster
from tests.support.transactions import entry, lane
from tests.unit.api.cluster.test_queue import SECONDS, got, new_queue, unused_name, wait_until


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("tester", session_seconds=60.0)


class Counter:
    """The leader of a queue, asked as clients do."""

    def __init__(self, cluster: RunningCluster, bus: hawser.Bus, **settings: Any) -> None:
        self.queue = new_queue(bus, **settings)
        self.cluster = cluster
        info = self.queue.info().partitions[0]
        self.name = info.shard
        assert info.leader is not None
        self.leader: str = info.leader
        self.shard: Shard = cluster._nodes[self.leader].shards[self.name]
        self._pool = ThreadPoolExecutor(4)

    def get(
        self, session: str, request: int, most: int = 1, received: Token = NO_TOKEN, wait_seconds: float = 0.0
    ) -> Any:
        wanted = wire.QueueGet(self.name, 0, session, request, received, most, 1 << 20, 600.0, wait_seconds)
        return self.cluster.ask(wanted, self.leader)

    def waiting(self, session: str, request: int) -> "Future[Any]":
        """The answer to somebody who stands in line already."""
        asked = self._pool.submit(self.get, session, request, 1, NO_TOKEN, 60.0)
        wait_until(lambda: session in self._line)
        return asked

    @property
    def _line(self) -> dict[str, Any]:
        assert self.shard.current_delivery is not None
        return dict(self.shard.current_delivery._lines[0])

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def counter(cluster: RunningCluster, bus: hawser.Bus) -> Iterator[Counter]:
    made = Counter(cluster, bus)
    yield made
    made.close()


def count_of(answer: Any) -> int:
    assert isinstance(answer, wire.Delivered), answer
    return sum(delivery_batch.count for delivery_batch in answer.delivery_batches)


def test_what_is_taken_back_from_one_wakes_the_next(counter: Counter) -> None:
    counter.queue.put_many([b"1", b"2"])
    assert count_of(counter.get("a", 1, most=2)) == 2
    other = counter.waiting("b", 1)
    # Nothing of the first answer has arrived.
    assert count_of(counter.get("a", 2, most=1)) == 1
    assert count_of(other.result(SECONDS)) == 1


def test_whoever_asks_anew_has_nothing_else_to_wait_for(counter: Counter) -> None:
    earlier = counter.waiting("a", 1)
    assert count_of(counter.get("a", 2, most=0)) == 0
    assert count_of(earlier.result(SECONDS)) == 0
    counter.queue.put(b"1")
    assert count_of(counter.get("a", 1, wait_seconds=60.0)) == 0
    assert counter.queue.info().claimed == 0
    assert count_of(counter.get("a", 3)) == 1


def test_whoever_waits_is_told_that_another_one_leads(counter: Counter) -> None:
    asked = counter.waiting("a", 1)
    other = next(node for node in counter.cluster.nodes if node != counter.leader)
    counter.cluster.transfer(counter.name, other)
    answer = asked.result(SECONDS)
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.NOT_LEADER
    assert answer.text.startswith(f"node {counter.leader} does not lead shard {counter.name}; ")


def test_a_new_leader_lends_nothing_before_it_has_applied_what_was_there(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter.queue.put(b"1")
    other = next(node for node in counter.cluster.nodes if node != counter.leader)
    shard = counter.cluster._nodes[other].shards[counter.name]
    with monkeypatch.context() as patched:
        patched.setattr(Leadership, "ready", property(lambda self: False))
        counter.cluster.transfer(counter.name, other)
        wait_until(lambda: shard.leads)
        counter.leader = other
        answer = counter.get("a", 1)
        assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BUSY and answer.retryable
        assert shard.current_delivery is None
    leadership = shard.replica.node.leadership
    assert leadership is not None
    wait_until(lambda: leadership.ready)
    assert count_of(counter.get("a", 2)) == 1


def test_what_cannot_be_read_is_said_and_stays_with_nobody(counter: Counter) -> None:
    counter.queue.put(b"1")
    counter.queue.put(b"2")
    assert counter.shard.current_delivery is not None
    dispatcher = counter.shard.current_delivery._dispatchers[0]
    read = dispatcher._read
    second = counter.shard.replica.machine.applied

    def fail(index: int) -> Any:
        if index == second:
            raise Damaged("segment", 1, index, "bad checksum")
        return read(index)

    dispatcher._decoded, dispatcher._read = None, fail
    answer = counter.get("a", 1, most=2)
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.DAMAGED, answer
    assert "bad checksum" in answer.text and not answer.retryable
    assert counter.queue.info().claimed == 0
    with pytest.raises(hawser.Corrupt, match="bad checksum"):
        counter.queue.peek(2)
    dispatcher._read = read
    message = got(counter.queue)
    assert (bytes(message), message.delivery_count, message.redelivered) == (b"1", 1, False)


def test_who_cannot_be_told_does_not_keep_others_from_it(
    counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    class Deaf:
        def done(self) -> bool:
            return False

        def set_result(self, _: object) -> None:
            raise RuntimeError("deaf")

    async def tell() -> object:
        future = asyncio.get_running_loop().create_future()
        counter.shard._carry_out([Serve(Deaf()), Serve(future)])
        return await future

    assert counter.cluster.run(tell()) is None
    assert "could not be delivered" in caplog.text


def test_what_is_too_much_to_move_is_held_as_before(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter.queue.put_many([b"1", b"2"])
    (delivery_batch,) = counter.get("a", 1, most=2).delivery_batches
    monkeypatch.setattr(dispatcher_module, "MOST_MOVED_BYTES", 10)
    runs = ((delivery_batch.token.epoch, delivery_batch.token.number, 2),)
    wanted = wire.QueueSettle(counter.name, 0, "a", 1, 1, rejected=runs)
    answer = counter.cluster.ask(wanted, counter.leader)
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BAD_REQUEST
    assert "settle fewer at once" in answer.text and counter.queue.info().claimed == 2


def test_nothing_is_put_before_it_is_known_how_much_a_queue_holds(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unused_name()
    with monkeypatch.context() as patched:
        patched.setattr(ShardMap, "on", lambda self, shard: {})
        queue: hawser.Queue[Any] = bus.queue(name, capacity_bytes=4096)
        shard = next(each for node in cluster._nodes.values() for each in node.shards if name in each)
        wait_until(lambda: any(node.shards[shard].leads for node in cluster._nodes.values()))
        leader = next(node.name for node in cluster._nodes.values() if node.shards[shard].leads)
        put = wire.QueuePut(shard, bytes(Batch.of([Record(b"x")]).data))
        answer = cluster.ask(put, leader)
        assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BUSY and answer.retryable
    with pytest.raises(hawser.Full):
        for _ in range(20):
            queue.put(bytes(1000), timeout=0)
    assert 1 <= queue.info().ready <= 4


def test_a_shard_is_not_that_of_another_topic_of_its_name() -> None:
    shards = ShardMap()
    old, new = "1" * 32, "2" * 32
    shard = wire.shard_of("jobs", old, 3)
    for uuid, is_deleted, is_known in ((old, False, True), (old, True, False), (new, False, False)):
        shards.topics["jobs"] = wire.TopicEntry(1, uuid, 4, {}, is_deleted, "queue")
        assert bool(shards.on(shard)) is is_known
    assert not shards.on("other@11111111/0")


def test_a_topic_named_none_is_nobodys_dead_letters(bus: hawser.Bus) -> None:
    bus.topic("None")
    new_queue(bus, dead_letter=None).put(b"1")
    bus.topic(unused_name())
    with pytest.raises(hawser.HawserError, match="dead_letter='None' is a topic"):
        new_queue(bus, dead_letter="None")


def test_letters_pause_whatever_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, counter: Counter
) -> None:
    tries = 0

    async def fail(self: dead_letter_forwarder.DeadLetterForwarder, shard: Shard) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("unforeseen")

    async def send_twice() -> None:
        forwarder = dead_letter_forwarder.DeadLetterForwarder("n", list)
        for _ in range(5):
            forwarder.send(counter.shard)
            await asyncio.sleep(0)
        await forwarder.close()

    monkeypatch.setattr(dead_letter_forwarder, "_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(dead_letter_forwarder.DeadLetterForwarder, "_send_all", fail)
    with caplog.at_level(logging.WARNING):
        counter.cluster.run(send_twice())
    assert tries == 1 and "unforeseen" in caplog.text


def test_what_is_shown_of_a_session_does_not_speak_for_it(cluster: RunningCluster) -> None:
    with cluster.connect("victim", session_seconds=60.0) as bus:
        queue = new_queue(bus)
        queue.put_many([b"1", b"2", b"3"])
        messages = queue.get_many(2, timeout=SECONDS)
        info = queue.info()
        (owner,), (place,) = info.owners, info.partitions
        secret = queue._session().queue_session.session  # type: ignore[attr-defined]
        assert owner.session.startswith("victim#") and secret not in str(info)
        assert secret.startswith("victim#") and len(secret) >= len("victim#") + 16
        held, shard, label = ((place.epoch, 1, 2),), place.shard, Label(lane("liar"), 1, 0, 1, 60)
        for name in (owner.session, owner.name):
            answer = cluster.ask(wire.QueueSettle(shard, 0, name, 1, 1, held), place.leader)
            assert isinstance(answer, wire.Turned) and len(answer.tokens) == 2
            lock = entry(Kind.QUEUE_SETTLE, wire.encode(wire.QueueLock(0, name, held)), label)
            (result,) = cluster.ask(wire.Transact(shard, (lock,)), place.leader).results
            assert decode_result(result) == Rejected(Reason.NOT_HELD)
            get = wire.QueueGet(shard, 0, name, 1 << 40, NO_TOKEN, 0, 1, 60.0, unseen=held, is_last=True)
            assert cluster.ask(get, place.leader) == wire.Delivered()
        assert [(each.session, each.claimed) for each in queue.info().owners] == [(owner.session, 2)]
        messages.accept()
        info = queue.info()
        assert (info.ready, info.claimed) == (1, 0)
        assert bytes(got(queue)) == b"3"
