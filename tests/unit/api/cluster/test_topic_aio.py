"""The API for event loops on a cluster: the same names, awaited."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

import hawser
from hawser import aio
from tests.support.cluster import RunningCluster

SECONDS = 20.0

Story = Callable[[aio.AsyncBus], Coroutine[Any, Any, None]]


@pytest.fixture
def play(cluster: RunningCluster) -> Callable[[Story], None]:
    """Runs a story with a bus in a loop of its own."""

    def run(story: Story) -> None:
        async def tell() -> None:
            async with asyncio.timeout(120), aio.connect(cluster.url, name="tester") as bus:
                await story(bus)

        asyncio.run(tell())

    return run


def test_a_message_goes_in_and_comes_out(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: aio.AsyncTopic[Any] = bus.topic("simple")
        assert bus.topic("simple") is topic
        receipt = await topic.publish(b"one", key=b"k", headers={"a": b"1"})
        assert receipt == hawser.Receipt("simple", 0, 1, 1, "majority")
        assert (await topic.publish_many([b"two", b"three"]))[0].count == 2
        async with topic.subscribe(start="earliest") as subscription:
            sample = await subscription.take(timeout=SECONDS)
            assert sample is not None and isinstance(sample, hawser.Sample)
            assert (bytes(sample), sample.key, sample.publisher) == (b"one", b"k", "tester")
            rest = [bytes(each) for each in await subscription.take_many(5, timeout=SECONDS)]
            assert rest == [b"two", b"three"]
            assert await subscription.take(timeout=0) is None
            assert await subscription.take(timeout=0.01) is None
            assert (subscription.received, subscription.position, subscription.missed) == (3, 3, 0)
        with pytest.raises(hawser.Closed):
            await subscription.take()

    play(story)


def test_pipelined_messages_keep_their_order(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: aio.AsyncTopic[Any] = bus.topic("pipelined")
        # The first ones have to open the topic; the others find it open.
        futures = [topic.publish_nowait(str(number).encode()) for number in range(5)]
        await asyncio.wait(futures)
        futures += [topic.publish_nowait(str(number).encode()) for number in range(5, 1000)]
        await topic.flush()
        assert [future.result().first_offset for future in futures] == list(range(1, 1001))
        seen = []
        async for sample in topic.subscribe(start="earliest"):
            seen.append(int(bytes(sample)))
            if len(seen) == 1000:
                break
        assert seen == list(range(1000))

    play(story)


def test_nothing_overtakes_what_has_to_open_the_topic_first(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        publishing: list[Any] = [bus.topic("overtaken"), bus.topic("overtaken").publisher()]
        for each in publishing:
            first = each.publish_nowait(b"1")
            second = await each.publish(b"2")
            assert (await first).first_offset < second.first_offset
        publisher = bus.topic("overtaken").publisher()
        first = publisher.publish_nowait(b"1")
        (second,) = await publisher.publish_many([b"2"])
        assert (await first).first_offset < second.first_offset
        publisher = bus.topic("overtaken").publisher()
        first = publisher.publish_nowait(b"1")
        loan = publisher.loan(1)
        async with loan as buffer:
            buffer[:] = b"2"
        assert loan.receipt is not None and (await first).first_offset < loan.receipt.first_offset

    play(story)


def test_a_waiting_take_wakes_up_and_can_be_cancelled(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: aio.AsyncTopic[Any] = bus.topic("waiting")
        subscription = await topic.subscribe()
        task = asyncio.create_task(subscription.take())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(subscription.take())
        await topic.publish(b"x")
        sample = await task
        assert sample is not None and bytes(sample) == b"x"
        await subscription.close()
        assert [each async for each in subscription] == []

    play(story)


class Order(msgspec.Struct):
    number: int


def test_values_batches_and_reading(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        orders = bus.topic("orders", schema=Order)
        await orders.publish_many([Order(number) for number in range(5)])
        async with orders.subscribe(start="earliest") as subscription:
            assert await subscription.take_value(timeout=SECONDS) == Order(0)
            assert await subscription.take_values(2, timeout=SECONDS) == [Order(1), Order(2)]
            (batch,) = await subscription.take_batches(timeout=SECONDS)
            assert batch.column("offset").to_pylist() == [4, 5]
            assert await subscription.take_batches(timeout=0) == []
        async with orders.subscribe(start=5) as subscription:
            async for value in subscription.values():
                assert value == Order(4)
                break
        assert [each.value for each in (await orders.read_oldest(2)).samples] == [Order(0), Order(1)]
        assert (await orders.read_newest(1)).last == 5

    play(story)


def test_publishers_and_loans(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: aio.AsyncTopic[Any] = bus.topic("loans")
        async with topic.publisher() as publisher:
            assert (await publisher.publish(b"a")).first_offset == 1
            assert publisher.publish_nowait(b"b") is not None
            assert publisher.incarnation == 1
        with pytest.raises(hawser.Closed):
            await publisher.publish(b"c")
        loan = topic.loan(3)
        async with loan as buffer:
            buffer[:] = b"abc"
        assert loan.receipt is not None and loan.receipt.first_offset == 3
        async with topic.loan_array(2, "u1") as array:
            array[:] = [1, 2]
        with pytest.raises(ZeroDivisionError):
            async with topic.loan(1):
                raise ZeroDivisionError
        samples = (await topic.read_oldest(10)).samples
        assert [bytes(each) for each in samples] == [b"a", b"b", b"abc", b"\1\2"]

    play(story)


def test_a_publisher_that_nobody_has_any_more_ends(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: Any = bus.topic("dropped")
        for number in range(1, 6):
            assert (await topic.publisher().publish(b"x")).first_offset == number
        while len(topic._topic._dependents) > 1:
            await asyncio.sleep(0)

    play(story)


def test_groups_commit(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic: aio.AsyncTopic[Any] = bus.topic("grouped", partitions=2)
        await topic.publish_many([b"x"] * 20, keys=[str(number).encode() for number in range(20)])
        async with topic.subscribe(group="g", start="earliest") as subscription:
            for _ in range(20):
                assert await subscription.take(timeout=SECONDS) is not None
            await subscription.commit()
            assert {each.state for each in await bus.participants()} >= {"group g"}
        info = await topic.info()
        assert [each.mark for each in info.records] == [each.end - 1 for each in info.partitions]
        assert await topic.forget("group:g")

    play(story)


def test_topics_are_listed_and_deleted(play: Callable[[Story], None]) -> None:
    async def story(bus: aio.AsyncBus) -> None:
        topic = await bus.topic("listed", partitions=2)
        assert "listed" in await bus.topics()
        assert (await bus.files(), await bus.recover()) == ([], [])
        with pytest.raises(hawser.SettingsMismatch):
            await bus.topic("listed", partitions=3)
        await topic.delete()
        assert "listed" not in await bus.topics()
        with pytest.raises(hawser.Closed):
            await topic.publish(b"x")
        with pytest.raises(hawser.NotFound):
            await bus.topic("listed", create=False)

    play(story)


def test_an_unreachable_cluster_is_told_in_time() -> None:
    async def connect() -> None:
        await aio.connect("hawser://127.0.0.1:1", connect_timeout=0.2)

    with pytest.raises(hawser.Unavailable, match="cannot be reached"):
        asyncio.run(connect())


def test_plain_subscriptions_work_in_loops(cluster: RunningCluster) -> None:
    topic: Any = cluster.connect().topic("plain")
    topic.publish_many([b"a", b"b"])

    async def take() -> list[bytes]:
        seen = []
        subscription = topic.subscribe(start="earliest")
        async for sample in subscription:
            seen.append(bytes(sample))
            if len(seen) == 2:
                subscription.close()
        return seen

    assert asyncio.run(take()) == [b"a", b"b"]
