"""Puts and publishes that were cancelled, or interrupted, before they were sent, and were sent all the same.
Found by review."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster.transport import TransportError
from tests.support.cluster import RunningCluster
from tests.support.processes import until

PATIENCE_SECONDS = 60
LARGE = bytes(60_000)
MINE = b"mine"
_numbers = itertools.count()


class Interrupted(Exception):
    """A signal came."""


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Whatever the block waits for is interrupted by a signal, as by Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.wait_for(_until_so(condition), PATIENCE_SECONDS)
    assert condition(), what


async def _until_so(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_put_that_was_cancelled_for_want_of_room(cluster: RunningCluster) -> None:
    """It waited in the client for up to 366 days, and went out as soon as there was room."""

    async def story() -> None:
        async with aio.connect(cluster.url) as bus:
            queue: Any = bus.queue(f"full {next(_numbers)}", capacity_bytes=1 << 20)
            with pytest.raises(hawser.Full):
                while True:
                    await queue.put(LARGE, timeout=0)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.put(MINE + LARGE), 0.2)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.put_many([MINE + LARGE, MINE]), 0.2)
            many = [asyncio.create_task(queue.put(MINE + LARGE)) for _ in range(100)]
            waits = asyncio.create_task(queue.put(b"wanted" + LARGE))
            await asyncio.sleep(0.1)
            for task in many:
                task.cancel()
            await asyncio.wait(many)
            (producer,) = queue._queue.publisher._producers
            await _until(lambda: len(producer._queue) <= 1, "the client keeps only what is waited for")
            assert producer._queued_bytes <= 2 * len(LARGE)
            found: list[bytes] = []
            while not found or not found[-1].startswith(b"wanted"):
                message = await queue.get(PATIENCE_SECONDS)
                found.append(bytes(message)[:6])
                await message.accept()
            await waits
            assert await queue.get(0) is None
            assert not [each for each in found if each.startswith(MINE)]
            assert (producer.is_idle, producer._queued_bytes) == (True, 0)

    asyncio.run(story())


def test_a_put_that_was_interrupted_for_want_of_room(cluster: RunningCluster) -> None:
    bus = cluster.connect()
    queue: Any = bus.queue(f"full {next(_numbers)}", capacity_bytes=1 << 20)
    with pytest.raises(hawser.Full):
        while True:
            queue.put(LARGE, timeout=0)
    with interrupted(0.3):
        queue.put(MINE + LARGE)
    with interrupted(0.3):
        queue.put_many([MINE + LARGE])
    (producer,) = queue._queue.publisher._producers
    until(lambda: producer.is_idle, "the client keeps nothing")
    found = []
    while (message := queue.get(1)) is not None:
        found.append(bytes(message)[:4])
        message.accept()
    assert found and MINE not in found


def test_a_publish_that_was_cancelled_while_nobody_led(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited in the client for up to its time, and went out with the next leader."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=PATIENCE_SECONDS) as bus:
            topic: Any = bus.topic(f"led {next(_numbers)}", partitions=2)
            await topic.publish(b"first", key=b"k")
            partitioner = topic._topic.partitioner._producers
            with monkeypatch.context() as patched:
                patched.setattr(topic._topic.router, "leader_link", lambda shard: None)
                kept = asyncio.create_task(topic.publish(b"kept", key=b"k"))
                calls = [
                    topic.publish(MINE, key=b"k"),
                    topic.publish_many([MINE, MINE, MINE], keys=[b"k", b"l", b"m"]),
                    topic.publish_nowait(MINE, key=b"k"),
                    _filled(topic.loan(4, key=b"k")),
                ]
                tasks = [asyncio.ensure_future(each) for each in calls]
                await asyncio.sleep(0.2)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
            await asyncio.wait_for(kept, PATIENCE_SECONDS)
            await topic.publish(b"last", key=b"k")
            await topic.flush()
            found = [
                bytes(each)
                for partition in range(2)
                for each in (await topic.read_oldest(100, partition=partition)).samples
            ]
            assert found == [b"first", b"kept", b"last"]
            assert all(each.is_idle and not each._queued_bytes for each in partitioner)

    asyncio.run(story())


async def _filled(loan: Any) -> None:
    async with loan as buffer:
        buffer[:] = MINE


def test_what_publish_nowait_began_and_was_cancelled_keeps_no_memory(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages stayed until their time was over, and took the room of others."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=PATIENCE_SECONDS) as bus:
            topic: Any = bus.topic(f"cancelled {next(_numbers)}")
            await topic.publish(b"first")
            (producer,) = topic._topic.partitioner._producers
            with monkeypatch.context() as patched:
                patched.setattr(topic._topic.router, "leader_link", lambda shard: None)
                begun = [topic.publish_nowait(LARGE) for _ in range(3)]
                begun[0].cancel()
                begun[2].cancel()
                await _until(lambda: len(producer._queue) == 1, "only one is kept")
                assert producer._queued_bytes < 2 * len(LARGE)
                begun[1].cancel()
                await asyncio.wait_for(topic.flush(), PATIENCE_SECONDS / 2)

    asyncio.run(story())


def test_a_publish_that_was_interrupted_while_nobody_led(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = cluster.connect(timeout=PATIENCE_SECONDS)
    topic: Any = bus.topic(f"led {next(_numbers)}")
    topic.publish(b"first")
    with monkeypatch.context() as patched:
        patched.setattr(topic._topic.router, "leader_link", lambda shard: None)
        with interrupted(0.2):
            topic.publish(MINE)
        with interrupted(0.2):
            topic.publish_many([MINE])
        with interrupted(0.2), topic.loan(4) as buffer:
            buffer[:] = MINE
    topic.publish(b"last")
    topic.flush()
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"first", b"last"]


def test_a_batch_that_could_not_be_sent_goes_without_what_was_cancelled(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent again as it was, though it certainly had not been there."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=PATIENCE_SECONDS) as bus:
            topic: Any = bus.topic(f"led {next(_numbers)}")
            await topic.publish(b"first")
            (producer,) = topic._topic.partitioner._producers
            failed = asyncio.Event()

            async def fail(*_: object) -> bytes:
                failed.set()
                raise TransportError("not now", was_sent=False)

            with monkeypatch.context() as patched:
                patched.setattr("hawser.cluster.client.publish.partition_producer.ask", fail)
                together = [topic.publish_nowait(each) for each in (b"kept", MINE)]
                alone = [topic.publish_nowait(MINE)]
                await failed.wait()
                for future in (together[1], alone[0]):
                    future.cancel()
            await asyncio.wait_for(together[0], PATIENCE_SECONDS)
            await topic.publish(b"last")
            assert [bytes(each) for each in (await topic.read_oldest(9)).samples] == [
                b"first",
                b"kept",
                b"last",
            ]
            assert producer.is_idle

    asyncio.run(story())


def test_gets_that_were_cancelled_behind_one_that_waits(cluster: RunningCluster) -> None:
    """They stayed in the line: memory, and the time of each request, grew."""

    async def story() -> None:
        async with aio.connect(cluster.url) as bus:
            queue: Any = bus.queue(f"line {next(_numbers)}")
            waits = asyncio.create_task(queue.get())
            while not any(each.queue_session._waiters._line for each in queue._sessions.values()):
                await asyncio.sleep(0.01)
            (session,) = queue._sessions.values()
            for _ in range(100):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.get(), 0.001)
            assert len(session.queue_session._waiters._line) == 1
            await queue.put(b"1")
            message = await asyncio.wait_for(waits, PATIENCE_SECONDS)
            assert (bytes(message), message.delivery_count) == (b"1", 1)
            await message.accept()
            assert (await queue.info()).claimed == 0

    asyncio.run(story())


def test_an_interrupted_publish_does_not_stop_those_behind_it(cluster: RunningCluster) -> None:
    """Interrupted between noting that the loop is called and calling it, nothing was sent from then on."""
    with hawser.connect(cluster.url) as bus:
        topic: Any = bus.topic("interrupted publish")
        partitioner = topic._topic.partitioner
        post = partitioner._post

        def interrupt(*_: object) -> None:
            partitioner._post = post
            raise KeyboardInterrupt

        partitioner._post = interrupt
        with pytest.raises(KeyboardInterrupt):
            topic.publish(b"1")
        topic.publish_nowait(b"2").result(60)
        found = [bytes(each) for each in topic.read_oldest(9).samples]
    assert found == [b"2"]
