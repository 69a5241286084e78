"""Queues on a cluster in an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import hawser
from hawser import aio
from tests.support.cluster import RunningCluster
from tests.unit.api.cluster.test_queue import SECONDS, unused_name


def play(cluster: RunningCluster, story: Callable[[aio.AsyncBus], Awaitable[None]]) -> None:
    async def tell() -> None:
        async with aio.connect(cluster.url, name="loop") as bus:
            await story(bus)

    asyncio.run(tell())


def test_the_same_in_an_event_loop(cluster: RunningCluster) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        queue: aio.AsyncQueue[Any] = bus.queue(unused_name(), max_deliveries=9)
        assert (await queue.put(b"1", key=b"k")).first_offset == 1
        await queue.put_many([b"2", b"3", b"4", b"5"])
        assert queue.name in await bus.queues()
        message = await queue.get(SECONDS)
        assert message is not None and isinstance(message, aio.AsyncMessage)
        assert (bytes(message), message.key, message.delivery_count) == (b"1", b"k", 1)
        await message.accept()
        async with await queue.get_many(2, SECONDS) as messages:
            assert [bytes(each) for each in messages] == [b"2", b"3"]
        rejected = await queue.get(SECONDS)
        assert rejected is not None
        await rejected.reject()
        dead_letters = queue.dead_letters()
        assert queue.dead_letters(create=False) is dead_letters
        assert [bytes(each) for each in await dead_letters.peek(3)] == [b"4"]
        assert ((await queue.info()).dead, (await dead_letters.info()).ready) == (1, 1)
        assert await queue.retry_dead_letters() == 1
        seen = []
        async with queue.consume() as consumer:
            async for job in consumer:
                async with job:
                    seen.append(bytes(job))
                if len(seen) == 2:
                    break
        assert seen == [b"5", b"4"]
        assert await queue.get(0) is None
        with pytest.raises(hawser.UsageError, match="take no new messages"):
            await dead_letters.put(b"x")
        assert not await queue.forget("x")
        await queue.delete()
        with pytest.raises(hawser.Closed):
            await queue.put(b"x")

    play(cluster, story)


def test_a_cancelled_get_holds_nothing(cluster: RunningCluster) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        queue: aio.AsyncQueue[Any] = bus.queue(unused_name())
        for _ in range(20):
            waiting = asyncio.create_task(queue.get())
            putting = asyncio.create_task(queue.put(b"x"))
            await putting
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            found = waiting.result() if not waiting.cancelled() else await queue.get(SECONDS)
            assert found is not None and found.delivery_count == 1
            await found.accept()

    play(cluster, story)


def test_two_in_a_loop_share_a_settlement(cluster: RunningCluster) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        queue: aio.AsyncQueue[Any] = bus.queue(unused_name())
        await queue.put_many([b"x"] * 50)
        messages = await queue.get_many(50, SECONDS)
        await asyncio.gather(*(each.accept() for each in messages), *(each.accept() for each in messages))
        info = await queue.info()
        assert (info.ready, info.claimed) == (0, 0)

    play(cluster, story)


def test_what_is_under_way_when_a_bus_is_closed_is_told_so(cluster: RunningCluster) -> None:
    """It is not cancelled: nobody has cancelled it."""

    async def run() -> int:
        told = 0
        for _ in range(20):
            bus = await hawser.aio.connect(cluster.url)
            await bus.queues()
            asking = asyncio.create_task(bus.queues())
            await asyncio.sleep(0)
            await bus.close()
            try:
                await asking
            except hawser.Closed:
                told += 1
        return told

    assert asyncio.run(run()) > 0
