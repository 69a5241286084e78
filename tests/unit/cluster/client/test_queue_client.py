"""The client's half of queues on a cluster, when things cross: threads, answers, leases, room and closing."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client import rpc
from hawser.cluster.client.publish.stamped import StampedPartition
from hawser.cluster.client.queue import session
from hawser.cluster.client.queue.session import MOST_HELD, QueueSession
from hawser.cluster.transport import Link
from hawser.log.state.producers import Producers
from tests.support.cluster import RunningCluster
from tests.unit.api.cluster.test_queue import SECONDS, got, new_queue, unused_name, wait_until
from tests.unit.api.cluster.test_queue_faults import Thief


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("tester", session_seconds=60.0)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as running:
        yield running


class Attempt:
    """A call in a thread of its own, and what became of it."""

    def __init__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, arguments, named), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], arguments: Any, named: Any) -> None:
        try:
            self.result = call(*arguments, **named)
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> "Attempt":
        self._thread.join(SECONDS)
        assert self.is_over, "it hangs"
        return self


# Sessions.


def test_threads_that_begin_together_share_a_session(bus: hawser.Bus) -> None:
    queue = new_queue(bus)
    queue.put_many([b"x"] * 8)
    barrier = threading.Barrier(8)

    def work() -> hawser.Message:
        barrier.wait()
        return got(queue)

    attempts = [Attempt(work) for _ in range(8)]
    messages = [attempt.end().result for attempt in attempts]
    assert [each.claimed for each in queue.info().owners] == [8]
    for message in messages:
        message.accept()


def test_a_message_outlives_its_iteration_but_nothing_is_got_ahead_any_more(bus: hawser.Bus) -> None:
    queue = new_queue(bus)
    queue.put_many([b"1", b"2", b"3"])
    job = next(iter(queue.consume(prefetch=8)))
    gc.collect()
    wait_until(lambda: (queue.info().ready, queue.info().claimed) == (2, 1))
    job.accept()
    assert [each.delivery_count for each in queue.get_many(9, timeout=SECONDS)] == [1, 1]
    del job
    gc.collect()
    wait_until(lambda: len(queue.info().participants) == 1)


def test_a_message_outlives_its_iteration_in_a_loop(cluster: RunningCluster) -> None:
    async def story() -> None:
        async with aio.connect(cluster.url, name="loop") as bus:
            queue: aio.AsyncQueue[Any] = bus.queue(unused_name())
            await queue.put_many([b"1", b"2"])
            job = await anext(queue.consume())
            gc.collect()
            while (await queue.info()).ready != 1:
                await asyncio.sleep(0.01)
            await job.accept()

    asyncio.run(asyncio.wait_for(story(), SECONDS))


def test_letters_are_given_back_when_the_bus_closes(cluster: RunningCluster, bus: hawser.Bus) -> None:
    queue = new_queue(bus)
    queue.put(b"x")
    got(queue).reject()
    with hawser.connect(cluster.url, name="leaving", session_seconds=600.0) as leaving:
        letter = got(leaving.queue(queue.name).dead_letters())
    assert bytes(got(queue.dead_letters())) == bytes(letter)


def test_letters_can_be_opened_again(bus: hawser.Bus) -> None:
    queue = new_queue(bus)
    queue.put(b"x")
    got(queue).reject()
    with queue.dead_letters() as dead_letters:
        assert dead_letters.info().ready == 1
    assert bytes(got(queue.dead_letters())) == b"x"


# One request after the other.


def test_a_session_has_one_request_under_way(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers take longer than the session may be silent."""
    ask = rpc.ask
    under_way = most = 0

    async def slow(link: Link, body: bytes, timeout_seconds: float) -> wire.Answer:
        nonlocal under_way, most
        request = wire.decode_request(body)
        assert isinstance(request, wire.QueueGet)
        if not request.session.startswith("slow"):
            return await ask(link, body, timeout_seconds)
        under_way += 1
        most = max(most, under_way)
        try:
            answer = await ask(link, body, timeout_seconds)
            await asyncio.sleep(0.25)
            return answer
        finally:
            under_way -= 1

    monkeypatch.setattr(session, "ask", slow)
    theirs: Any = cluster.connect("slow", session_seconds=3.0).queue(unused_name())
    theirs.put(b"held")
    held = got(theirs)
    waiting = Attempt(got, theirs)
    # Long enough for it to be silent for too long.
    assert theirs.get(timeout=2.0) is None
    theirs.put(b"new")
    found = waiting.end().result
    assert bus.queue(theirs.name).get(timeout=0) is None, "two consumers were lent one message"
    held.accept()
    found.accept()
    assert most == 1


def test_what_is_given_back_reaches_the_one_who_waits(cluster: RunningCluster) -> None:
    async def story() -> None:
        patient = aio.connect(cluster.url, name="patient", fetch_wait_seconds=60.0, session_seconds=600.0)
        async with patient as bus:
            queue: Any = bus.queue(unused_name())
            await queue.put(b"x")
            held = await queue.get()
            waiting = asyncio.create_task(queue.get())
            while not queue._sessions[False].queue_session._is_polling:
                await asyncio.sleep(0.01)
            queue._sessions[False].queue_session.give_back([held._held_message])
            again = await waiting
            assert (bytes(again), again.delivery_count) == (b"x", 1)

    asyncio.run(asyncio.wait_for(story(), SECONDS))


def test_a_session_ends_though_its_request_is_interrupted_meanwhile(cluster: RunningCluster) -> None:
    async def story() -> None:
        async with aio.connect(cluster.url, name="patient", fetch_wait_seconds=60.0) as bus:
            queue: Any = bus.queue(unused_name())
            waiting = asyncio.create_task(queue.get())
            while False not in queue._sessions or not queue._sessions[False].queue_session._is_polling:
                await asyncio.sleep(0.01)
            queue_session = queue._sessions[False].queue_session
            task = queue_session._task
            queue_session._interrupt()
            await queue_session.close()
            assert task.cancelled()
            with pytest.raises(hawser.Closed):
                await waiting

    asyncio.run(asyncio.wait_for(story(), SECONDS))


def test_what_a_lost_answer_lent_is_back_though_nobody_asks(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(bus)
    gone: Any = cluster.connect("gone", fetch_wait_seconds=60.0, session_seconds=600.0).queue(queue.name)
    thief = Thief(monkeypatch, wire.QueueGet, 0)
    assert gone.get(timeout=0.05) is None
    thief.most = 1
    queue.put(b"x")
    wait_until(lambda: thief.stolen == 1)
    assert got(queue).delivery_count == 1


def test_one_who_holds_as_much_as_he_may_is_told(bus: hawser.Bus) -> None:
    queue = new_queue(bus)
    queue.put_many([b""] * (MOST_HELD + 1))
    held = queue.get_many(MOST_HELD + 1, timeout=SECONDS)
    assert len(held) == MOST_HELD
    with pytest.raises(hawser.Full, match="accept or release some"):
        queue.get(timeout=0)
    held[0].accept()
    assert queue.get(timeout=0) is not None
    held.accept()


# Leases.


def test_nothing_is_got_ahead_by_itself_under_a_lease(bus: hawser.Bus) -> None:
    for settings, claimed in (({}, 5), ({"lease": 30.0}, 1)):
        queue = new_queue(bus, **settings)
        queue.put_many([b"x"] * 5)
        with queue.consume() as consumer:
            message = next(consumer)
            assert queue.info().claimed == claimed
            message.accept()


def test_what_lies_ahead_does_not_use_up_its_deliveries(bus: hawser.Bus) -> None:
    queue = new_queue(bus, lease=1.0, max_deliveries=1)
    queue.put_many([b"1", b"2", b"3", b"4"])
    with queue.consume(prefetch=8) as consumer:
        first = next(consumer)
        wait_until(lambda: queue.info().dead == 1)
        with pytest.raises(hawser.Fenced):
            first.accept()
        for expected in (b"2", b"3", b"4"):
            with next(consumer) as job:
                assert (bytes(job), job.delivery_count) == (expected, 1)
    info = queue.info()
    assert (info.ready, info.claimed, info.dead) == (0, 0, 1)


def test_what_another_leader_lent_is_not_handed_out(cluster: RunningCluster) -> None:
    queue = new_queue(cluster.connect("moved", session_seconds=3.0))
    queue.put_many([b"1", b"2", b"3", b"4"])
    with queue.consume(prefetch=8) as consumer:
        held = next(consumer)
        partition = queue.info().partitions[0]
        cluster.transfer(partition.shard, next(each for each in cluster.nodes if each != partition.leader))
        with pytest.raises(hawser.Fenced):
            held.accept()
        queue_session = consumer._session.queue_session  # type: ignore[attr-defined]
        epoch = held._held_message.epoch  # type: ignore[attr-defined]
        wait_until(lambda: all(each.epoch > epoch for each, *_ in list(queue_session._ahead)))
        for _ in range(4):
            next(consumer).accept()


# Settling.


def test_an_accept_ends_when_the_queue_is_closed(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(cluster.connect("closing", timeout=600.0))
    queue.put_many([b"1", b"2"])
    first, second = got(queue), got(queue)
    thief = Thief(monkeypatch, wire.QueueSettle, inf)
    accepts = [Attempt(first.accept)]
    wait_until(lambda: thief.stolen > 0)
    accepts.append(Attempt(second.accept))
    wait_until(lambda: second._held_message.state.value != "held")  # type: ignore[attr-defined]
    queue.close()
    errors = [attempt.end().error for attempt in accepts]
    assert [type(error) for error in errors] == [hawser.OutcomeUnknown, hawser.Closed], errors


def test_after_the_end_of_the_bus_nothing_is_begun(cluster: RunningCluster) -> None:
    async def story() -> None:
        bus = aio.connect(cluster.url, name="ended")
        queue: aio.AsyncQueue[Any] = bus.queue(unused_name())
        await queue.put_many([b"1", b"2"])
        held: list[Any] = [await queue.get(), await queue.get()]
        await bus.close()
        with pytest.raises(hawser.Closed, match="delivered again"):
            await held[0].accept()
        before = asyncio.all_tasks()
        held.clear()
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(story(), SECONDS))


# Putting.


def test_everybody_waits_for_room_as_long_as_he_said(cluster: RunningCluster) -> None:
    """However short the time to hear of an outcome is, and however much waits."""
    name = new_queue(cluster.connect("maker"), capacity_bytes=1000).name
    queue: Any = cluster.connect("crowd", timeout=2.0, queue_bytes=500).queue(name)
    queue.put(b"x" * 900)
    waiting = [Attempt(queue.put, b"y" * 900) for _ in range(3)]
    putter = queue._queue.publisher._producers[0]
    wait_until(lambda: putter._pause is not None and len(putter._queue) == 3)
    for timeout in (3.0, 0.05, 0):
        with pytest.raises(hawser.Full, match="has no room"):
            queue.put(b"z" * 900, timeout=timeout)
    assert not any(attempt.is_over for attempt in waiting)
    for _ in range(4):
        got(queue).accept()
    assert [attempt.end().error for attempt in waiting] == [None] * 3


def test_a_short_wait_behind_a_long_one_is_short(cluster: RunningCluster) -> None:
    queue = new_queue(cluster.connect("short", timeout=600.0), capacity_bytes=1000)
    queue.put(b"x" * 900)
    long = Attempt(queue.put, b"y" * 900)
    putter = queue._queue.publisher._producers[0]  # type: ignore[attr-defined]
    wait_until(lambda: putter._pause is not None)
    short = [Attempt(queue.put, b"z" * 900, timeout=timeout) for timeout in (0.2, 0, 0.3, 0)]
    assert {type(attempt.end().error) for attempt in short} == {hawser.Full}
    got(queue).accept()
    assert long.end().error is None


def test_whoever_waits_for_room_hears_that_nobody_answers(own_cluster: RunningCluster) -> None:
    name = new_queue(own_cluster.connect("patient"), capacity_bytes=1000).name
    queue = own_cluster.connect("waiting", timeout=3.0).queue(name)
    queue.put(b"x" * 900)
    waiting = [Attempt(queue.put, b"y" * 900) for _ in range(2)]
    putter = queue._queue.publisher._producers[0]  # type: ignore[attr-defined]
    wait_until(lambda: len(putter._queue) == 2)
    for node in own_cluster.nodes:
        own_cluster.stop(node)
    errors = [attempt.end().error for attempt in waiting]
    assert all(isinstance(each, hawser.Unavailable | hawser.OutcomeUnknown) for each in errors), errors


# Letters.


def test_letters_come_back_once_though_the_one_who_retries_dies(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After they were put, before they are accepted; and few producers stay behind."""
    queue = new_queue(bus, dead_letter=unused_name())
    count = 150
    queue.put_many([str(number).encode() for number in range(count)])
    queue.get_many(count, timeout=SECONDS).reject()
    dead_letters = queue.dead_letters()
    wait_until(lambda: dead_letters.info().ready == count)
    settle, deaths = QueueSession.settle, 0

    async def die(queue_session: QueueSession, *arguments: Any) -> None:
        nonlocal deaths
        deaths += 1
        if deaths % 2:
            raise hawser.HawserError("killed")
        await settle(queue_session, *arguments)

    monkeypatch.setattr(QueueSession, "settle", die)
    for _ in range(10):
        try:
            queue.retry_dead_letters()
        except hawser.HawserError:
            continue
        break
    monkeypatch.undo()
    found = queue.get_many(1000, timeout=SECONDS)
    assert [int(bytes(each)) for each in found] == list(range(count))
    assert deaths > 3 and dead_letters.info().ready + dead_letters.info().claimed == 0
    partition = queue.info().partitions[0]
    assert partition.leader is not None
    shard = cluster._nodes[partition.leader].shards[partition.shard]
    names = [name for name, _, _ in shard.replica.machine.part(Producers)]
    assert len([name for name in names if name.startswith(b"retry:")]) <= 4


def test_letters_that_could_not_be_put_are_as_before(
    bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(bus, dead_letter=unused_name())
    queue.put_many([b"1", b"2"])
    queue.get_many(2, timeout=SECONDS).reject()
    dead_letters = queue.dead_letters()
    wait_until(lambda: dead_letters.info().ready == 2)

    async def full(*_: Any) -> None:
        raise hawser.Full("no room")

    monkeypatch.setattr(StampedPartition, "publish", full)
    with pytest.raises(hawser.Full):
        queue.retry_dead_letters()
    assert [each.delivery_count for each in dead_letters.get_many(9, timeout=SECONDS)] == [1, 1]
