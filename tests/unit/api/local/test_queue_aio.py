"""Queues in event loops: claims happen in the loop, nothing is lost by cancelling, nobody is held up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import hawser
from hawser import aio
from hawser.testing import LocalBus
from tests.support.children import Channel, sleep_for_ever, victim

Body = Callable[[LocalBus], Awaitable[None]]
SETTINGS: dict[str, Any] = {"slot_size": 64, "capacity": 4, "max_held": 4}


class Order(msgspec.Struct):
    identity: int


def run(body: Body) -> None:
    """Run `body` in a loop of its own, with a domain of its own."""
    with LocalBus() as local:
        asyncio.run(asyncio.wait_for(body(local), 60))


async def got(queue: aio.AsyncQueue[Any], timeout: float | None = 0) -> aio.AsyncMessage:
    message = await queue.get(timeout)
    assert message is not None
    return message


def test_the_whole_of_a_queue() -> None:
    async def body(local: LocalBus) -> None:
        async with aio.connect(local.url, name="worker") as bus, bus.queue("jobs", **SETTINGS) as queue:
            assert bus.queue("jobs") is queue
            assert (await queue.put(b"1", key=b"k", headers={"h": b"v"})).first_offset == 1
            assert (await queue.put_many([b"2", b"3"], keys=[b"a", None])).count == 2
            assert (await queue.put_many([b"4"])).first_offset == 4
            message = await got(queue)
            facts = (bytes(message), len(message), message.offset, message.key, message.headers)
            assert facts == (b"1", 1, 1, b"k", {"h": b"v"})
            assert (message.delivery_count, message.redelivered, message.publisher) == (1, False, "worker")
            assert (message.array("u1").tolist(), bytes(message.data)) == ([49], b"1")
            await message.release()
            async with await got(queue) as message:
                assert message.redelivered
            with pytest.raises(ZeroDivisionError):
                async with await queue.get_many(2, 0) as messages:
                    _ = 1 / 0
            messages = await queue.get_many(9)
            assert [bytes(each) for each in messages] == [b"2", b"3", b"4"]
            await messages[1].reject()
            await messages.accept()
            assert await queue.get(0.01) is None
            assert await queue.get_many(2, 0.01) == []
            dead_letters = await queue.dead_letters()
            assert [bytes(each) for each in await dead_letters.peek(5)] == [b"3"]
            assert dead_letters.dead_letters() is dead_letters
            assert await queue.retry_dead_letters() == 1
            assert (await queue.info()).ready == 1
            assert await bus.queues() == ["jobs", "jobs.dead"]
            assert await queue.forget("nobody") is False
            await queue.delete()
            with pytest.raises(hawser.Closed):
                await queue.put(b"x")

    run(body)


def test_iterating() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        orders = bus.queue("orders", schema=Order)
        await orders.put_many([Order(number) for number in range(5)])
        seen = []
        async with orders.consume(prefetch=2) as jobs:
            async for job in jobs:
                seen.append((job.value.identity, job.delivery_count))
                if seen[-1] == (1, 1):
                    continue
                async with job:
                    pass
                if len(seen) == 6:
                    break
        assert seen == [(0, 1), (1, 1), (2, 1), (1, 2), (3, 1), (4, 1)]
        jobs = await orders.consume()

        async def end() -> None:
            await asyncio.sleep(0)
            await jobs.close()

        ending = asyncio.create_task(end())
        assert [each async for each in jobs] == []
        await ending
        await bus.close()

    run(body)


def test_getting_and_putting_wait_without_holding_up_the_loop() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        queue = bus.queue("jobs", **SETTINGS)
        getting = asyncio.create_task(queue.get())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not getting.done()
        await queue.put(b"0")
        message = await getting
        assert message is not None
        await message.accept()
        await queue.put_many([b"1", b"2", b"3", b"4"])
        with pytest.raises(hawser.Full):
            await queue.put(b"5", timeout=0)
        with pytest.raises(hawser.Full):
            await queue.put(b"5", timeout=0.01)
        putting = asyncio.create_task(queue.put(b"5"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not putting.done()
        await (await got(queue)).accept()
        assert (await putting).first_offset == 6
        many = asyncio.create_task(queue.put_many([b"%d" % number for number in range(6, 16)]))
        for number in range(2, 16):
            async with await got(queue, None) as message:
                assert int(bytes(message)) == number
        assert (await many).count == 10
        await bus.close()

    run(body)


def test_a_cancelled_get_holds_nothing() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        queue = bus.queue("jobs", capacity=300)
        found = []
        for number in range(200):
            getting = asyncio.create_task(queue.get())
            if number % 3:
                await asyncio.sleep(0)
            await queue.put(b"%d" % number)
            if number % 2:
                getting.cancel()
            try:
                message = await getting
            except asyncio.CancelledError:
                continue
            assert message is not None
            found.append(int(bytes(message)))
            await message.accept()
        while (message := await queue.get(0)) is not None:
            found.append(int(bytes(message)))
            await message.accept()
        assert sorted(found) == list(range(200))
        await bus.close()

    run(body)


def test_many_tasks_share_a_queue() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        queue = bus.queue("jobs", **SETTINGS)
        found: list[int] = []

        async def work() -> None:
            async for job in queue.consume():
                async with job:
                    if bytes(job) == b"end":
                        return
                    found.append(int(bytes(job)))
                    await asyncio.sleep(0)

        workers = [asyncio.create_task(work()) for _ in range(5)]
        for number in range(100):
            await queue.put(b"%d" % number)
        await queue.put_many([b"end"] * 5)
        await asyncio.gather(*workers)
        assert sorted(found) == list(range(100))
        await bus.close()

    run(body)


def test_awaiting_the_message_of_a_dead_one_needs_nobody_else() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        queue = bus.queue("jobs", **SETTINGS)
        await queue.put(b"1")
        with victim(hold(local.url)) as child:
            child.hear()
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            child.kill()
            message = await getting
        assert message is not None
        assert (bytes(message), message.delivery_count) == (b"1", 2)
        await bus.close()

    def hold(url: str) -> Callable[[Channel], None]:
        def work(channel: Channel) -> None:
            message = hawser.connect(url).queue("jobs").get()
            channel.tell("holding")
            sleep_for_ever()
            del message

        return work

    run(body)


def test_values() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        orders = bus.queue("orders", schema=Order)
        await orders.put_many([Order(number) for number in range(5)])
        async with await orders.get_values(3) as values:
            assert values == [Order(0), Order(1), Order(2)]
        values = await orders.get_values(9)
        await values.release()
        await (await orders.get_values(1)).reject()
        assert await orders.get_values(9) == [Order(4)]
        assert (await orders.info()).dead == 1
        async with await orders.get_values(9, 0.01) as values:
            assert values == [Order(4)]
        assert await orders.get_values(9, 0) == []
        await bus.close()

    run(body)
