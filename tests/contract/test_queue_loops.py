"""Loops over one consumer: each lets go of its own message, and of no other. Both scopes."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import hawser
from hawser import aio
from tests.contract.test_queues import PATIENCE_SECONDS, contents, counts
from tests.support.processes import until

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"loops {next(_numbers)}"


def test_a_loop_lets_go_of_its_own_message_only(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"%d" % number for number in range(4)])
    consumer = queue.consume(prefetch=0)
    one, other = iter(consumer), iter(consumer)
    direct, first, second = next(consumer), next(one), next(other)
    assert [bytes(each) for each in (direct, first, second)] == [b"0", b"1", b"2"]
    with next(other) as again:
        assert bytes(again) in (b"2", b"3")
    until(lambda: counts(seen) == (1, 2, 0), "the second is released, and nothing else")
    with direct, first:
        pass
    assert counts(seen) == (1, 0, 0)


@pytest.mark.parametrize("how", ["a loop", "the consumer"])
def test_a_block_fails_if_its_loop_has_gone_on(worker: Any, bus: hawser.Bus, name: str, how: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1", b"2"])
    consumer = queue.consume(prefetch=0)
    loop: Iterator[Any] = iter(consumer) if how == "a loop" else consumer
    with pytest.raises(hawser.Fenced), next(loop) as first:
        second = next(loop)
    for settle in (first.accept, first.reject, first.release):
        with pytest.raises(hawser.Fenced):
            settle()
    with pytest.raises(ZeroDivisionError), first:
        _ = 1 / 0
    second.accept()
    until(lambda: counts(seen) == (2, 0, 0), "one was accepted, and the other released")
    with pytest.raises(hawser.Fenced), next(loop) as third:
        next(loop).release()
    assert third.delivery_count >= 1


def test_what_a_loop_was_at_stays_when_the_loop_is_left(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1"])
    consumer = queue.consume(prefetch=0)
    loop = iter(consumer)
    first = next(loop)
    del loop
    second = next(iter(consumer))
    assert [bytes(first), bytes(second)] == [b"0", b"1"]
    first.accept()
    second.accept()
    assert counts(seen) == (0, 0, 0)


class Work:
    """What became of messages: how often each block ended well, and how often with Fenced."""

    def __init__(self, count: int) -> None:
        self.items = [b"%d" % number for number in range(count)]
        self.well: Counter[bytes] = Counter()
        self.fenced = 0

    @property
    def is_done(self) -> bool:
        return set(self.well) == set(self.items)


@pytest.mark.parametrize("prefetch", [0, 8])
def test_threads_loop_over_one_consumer(bus: hawser.Bus, name: str, prefetch: int) -> None:
    queue, work = bus.queue(name), Work(40)
    queue.put_many(work.items)
    consumer = queue.consume(prefetch=prefetch)

    def loop(seconds: float) -> None:
        for job in consumer:
            data = bytes(job)
            with job:
                threading.Event().wait(seconds)
            work.well[data] += 1

    threads = [threading.Thread(target=loop, args=(each,)) for each in (0.05, 0.005, 0.0)]
    for thread in threads:
        thread.start()
    until(lambda: work.is_done, "all were worked on")
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert (set(work.well.values()), counts(queue)) == ({1}, (0, 0, 0))


def test_tasks_loop_over_one_consumer(url: str, name: str) -> None:
    async def story() -> None:
        async with aio.connect(url, name="worker") as bus:
            queue, work = bus.queue(name), Work(40)
            await queue.put_many(work.items)
            consumer = queue.consume(prefetch=8)

            async def loop(seconds: float) -> None:
                async for job in consumer:
                    data = bytes(job)
                    async with job:
                        await asyncio.sleep(seconds)
                    work.well[data] += 1

            tasks = [asyncio.create_task(loop(each)) for each in (0.05, 0.005, 0.0)]
            while not work.is_done:
                await asyncio.sleep(0.01)
            await consumer.close()
            await asyncio.wait(tasks)
            assert [task.exception() for task in tasks] == [None] * 3
            assert (set(work.well.values()), (await queue.info()).ready) == ({1}, 0)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_threads_that_share_one_loop_hear_of_it(bus: hawser.Bus, name: str) -> None:
    queue, work = bus.queue(name), Work(20)
    queue.put_many(work.items)
    consumer = queue.consume(prefetch=0)

    def loop(seconds: float) -> None:
        with suppress(StopIteration):
            while True:
                job = next(consumer)
                data = bytes(job)
                try:
                    with job:
                        threading.Event().wait(seconds)
                    work.well[data] += 1
                except hawser.Fenced:
                    work.fenced += 1

    threads = [threading.Thread(target=loop, args=(each,)) for each in (0.02, 0.005)]
    for thread in threads:
        thread.start()
    until(lambda: work.is_done, "all were worked on")
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert (set(work.well.values()), contents(queue)) == ({1}, [])
    assert work.fenced
