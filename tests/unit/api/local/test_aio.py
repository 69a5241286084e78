"""Event loops: one thread waits for all, nothing is lost by cancelling, nobody is held up."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import hawser
from hawser import aio
from hawser.api.local.waiter_thread import until_space
from hawser.testing import LocalBus

Body = Callable[[LocalBus], Awaitable[None]]


class Order(msgspec.Struct):
    identity: int


def run(body: Body) -> None:
    """Run `body` in a loop of its own, with a domain of its own."""
    with LocalBus() as local:
        asyncio.run(asyncio.wait_for(body(local), 60))


def waiting_threads() -> int:
    return sum(thread.name == "hawser-waiting" for thread in threading.enumerate())


def test_everything_that_opens_can_be_awaited_or_entered() -> None:
    async def body(local: LocalBus) -> None:
        async with aio.connect(local.url, name="a") as bus, bus.topic("t") as topic:
            assert (await topic.publish(b"x", key=b"k")).first_offset == 1
            async with topic.subscribe(history=1) as subscription:
                sample = await subscription.take()
                assert sample is not None
                assert (bytes(sample), sample.key) == (b"x", b"k")
                sample.release()
        bus = await aio.connect(local.url)
        topic = await bus.topic("t")
        assert await bus.topic("t") is topic
        publisher = await topic.publisher()
        assert (await publisher.publish(b"y")).first_offset == 2
        subscription = await topic.subscribe(history=1)
        assert [bytes(each) for each in await subscription.take_many(5)] == [b"y"]
        assert await bus.topics() == ["t"]
        assert len(await bus.participants()) == 2
        assert await bus.recover() == []
        assert (await topic.info()).head == 2
        assert (await topic.read_oldest(9)).last == (await topic.read_newest(9)).last == 2
        await topic.delete()
        await bus.close()
        with pytest.raises(hawser.Closed):
            await bus.topics()

    run(body)


def test_taking_waits_without_holding_up_the_loop() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic = bus.topic("t")
        subscription = topic.subscribe()
        assert await subscription.take(0) is None
        assert await subscription.take(0.01) is None
        assert await subscription.take_many(3, 0.01) == []
        taking = asyncio.create_task(subscription.take())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not taking.done()
        await topic.publish(b"x")
        sample = await taking
        assert sample is not None
        assert bytes(sample) == b"x"
        await bus.close()

    run(body)


def test_a_plain_subscription_can_be_iterated_in_a_loop() -> None:
    async def body(local: LocalBus) -> None:
        bus = local.connect()
        topic = bus.topic("t")
        subscription = topic.subscribe(max_held=1)

        async def publish() -> None:
            for number in range(200):
                topic.publish(b"%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        seen = 0
        async for _ in subscription:
            seen += 1
            if seen + subscription.missed == 200:
                subscription.close()
        await publishing
        assert seen == subscription.received

    run(body)


def test_a_cancelled_take_loses_nothing() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic = bus.topic("t", history=0, depth=1000)
        subscription = topic.subscribe()
        found = []
        for number in range(300):
            taking = asyncio.create_task(subscription.take())
            if number % 3:
                await asyncio.sleep(0)
            await topic.publish(b"%d" % number)
            if number % 2:
                await asyncio.sleep(0.0005 if number % 5 == 0 else 0)
            taking.cancel()
            try:
                sample = await taking
            except asyncio.CancelledError:
                continue
            assert sample is not None
            found.append(int(bytes(sample)))
            sample.release()
        while (sample := await subscription.take(0)) is not None:
            found.append(int(bytes(sample)))
            sample.release()
        assert found == list(range(300))
        await bus.close()

    run(body)


def test_publishing_awaits_space() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic = bus.topic("t", history=0, depth=2)
        subscription = topic.subscribe(reliable=True)
        found: list[int] = []

        async def take() -> None:
            async for sample in subscription:
                found.append(int(bytes(sample)))
                if len(found) == 130:
                    return

        for number in range(2):
            await topic.publish(b"%d" % number)
        for timeout in (0, 0.01):
            with pytest.raises(hawser.Full):
                await topic.publish(b"late", timeout=timeout)
        taking = asyncio.create_task(take())
        for number in range(2, 50):
            await topic.publish(b"%d" % number)
        receipts = await topic.publish_many(b"%d" % number for number in range(50, 100))
        assert receipts == [("t", 0, 51, 50, "process")]
        for number in range(100, 120):
            async with topic.loan(3) as buffer:
                buffer[:] = b"%d" % number
        futures = [topic.publish_nowait(b"%d" % number) for number in range(120, 129)]
        await topic.publish(b"129")
        assert [future.result().first_offset for future in futures] == list(range(121, 130))
        await taking
        assert found == list(range(130))
        assert subscription.missed == 0
        await bus.close()

    run(body)


def test_a_batch_that_runs_out_of_time_leaves_a_prefix() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic: aio.AsyncTopic[Any] = bus.topic("t", history=0, depth=3)
        subscription = topic.subscribe(reliable=True)
        with pytest.raises(hawser.Full) as caught:
            await topic.publish_many([b"x"] * 5, timeout=0.01)
        assert (caught.value.published, caught.value.outcome) == (3, "applied")
        await subscription.close()
        with pytest.raises(hawser.UsageError) as refused:
            await topic.publish_many([b"x", b"y", "text"])
        assert refused.value.published == 2
        assert (await topic.publish_many([]))[0].count == 0
        await bus.close()

    run(body)


def test_nothing_overtakes_what_waits_for_space() -> None:
    async def body(local: LocalBus) -> None:
        bus = local.connect()
        subscription = bus.topic("t", history=0, depth=1).subscribe(reliable=True)
        topic = aio.connect(local.url).topic("t")
        await topic.publish(b"first")
        waiting = topic.publish_nowait(b"second")
        await asyncio.sleep(0.01)
        assert bytes(next(subscription)) == b"first"
        later = topic.publish_nowait(b"third")
        await asyncio.wait([waiting])
        assert bytes(next(subscription)) == b"second"
        assert (await later).first_offset == 3
        await topic.close()

    run(body)


def test_full_for_another_reason_is_not_waited_for() -> None:
    async def body(local: LocalBus) -> None:
        publisher: Any = local.connect().topic("t").publisher()

        def no_memory() -> None:
            raise hawser.Full("no memory left")

        with pytest.raises(hawser.Full, match="no memory left"):
            await until_space(no_memory, publisher._native(), None)

    run(body)


def test_loans_follow_the_rules_of_plain_ones() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic = bus.topic("t")
        loan = topic.loan_array((2, 2), "<u2")
        async with loan as array:
            array[:] = 3
        assert loan.receipt is not None
        assert not array.flags.writeable
        with pytest.raises(KeyError):
            async with topic.loan(1):
                raise KeyError
        with pytest.raises(BufferError):
            async with topic.loan(3) as buffer:
                kept = buffer[1:]
        del kept
        assert (await topic.info()).head == 1
        await bus.close()

    run(body)


def test_typed_topics_give_values() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        topic = bus.topic("t", schema=Order)
        await topic.publish(Order(1))
        await topic.publish_many([Order(2)])
        found = []
        async for order in topic.subscribe(history=2).values():
            found.append(order)
            if len(found) == 2:
                break
        assert found == [Order(1), Order(2)]
        await bus.close()

    run(body)


def test_closing_ends_whoever_waits() -> None:
    async def body(local: LocalBus) -> None:
        bus = aio.connect(local.url)
        subscription = bus.topic("t").subscribe()

        async def count() -> int:
            return sum([1 async for _ in subscription])

        counting = asyncio.create_task(count())
        taking = asyncio.create_task(subscription.take())
        await asyncio.sleep(0.01)
        await subscription.close()
        assert await counting == 0
        with pytest.raises(hawser.Closed):
            await taking
        await bus.close()

    run(body)


def test_one_thread_waits_for_many_loops() -> None:
    with LocalBus() as local:
        topic = local.connect().topic("t", depth=1000)
        most_threads = []
        received: list[int] = []
        ready = threading.Barrier(5)

        async def take_all() -> None:
            bus = aio.connect(local.url)
            subscriptions = [bus.topic("t").subscribe() for _ in range(5)]
            ready.wait()

            async def take(subscription: aio.AsyncSubscription[Any]) -> None:
                for _ in range(50):
                    sample = await subscription.take()
                    assert sample is not None
                    sample.release()
                    received.append(1)
                most_threads.append(waiting_threads())

            await asyncio.gather(*map(take, subscriptions))
            await bus.close()

        threads = [threading.Thread(target=lambda: asyncio.run(take_all())) for _ in range(4)]
        for thread in threads:
            thread.start()
        ready.wait()
        for _ in range(50):
            topic.publish(b"x")
        for thread in threads:
            thread.join(60)
        assert len(received) == 4 * 5 * 50
        assert max(most_threads) <= 1


def test_a_loop_left_waiting_does_not_hold_up_the_end() -> None:
    program = (
        "import asyncio, sys, hawser\n"
        "from hawser import aio\n"
        "async def main():\n"
        "    subscription = aio.connect(sys.argv[1]).topic('t').subscribe()\n"
        "    tasks = [asyncio.create_task(subscription.take()) for _ in range(3)]\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())\n"
    )
    with LocalBus() as local:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, local.url],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert local.connect().participants() == []


def test_event_loops_are_imported_on_demand() -> None:
    program = "import sys, hawser; assert 'asyncio' not in sys.modules; hawser.aio.connect; import hawser.aio"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
