"""Transactions as clients use them: the public API, every topic and queue with three replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hawser
from hawser import aio
from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time, rate_in_flight
from hawser.bench.processes import Gate

QUEUE = "measured-orders"
TOPIC = "measured-invoices"
PLAIN = "measured-plain"
STAGED = "measured-staged"
# Beside which transactions that have two shards write to another topic.
BESIDE = "measured-beside"
LIST, SHORT_LIST = 1_000, 100
# So many lists are written in each way to count their bytes.
LISTS = 20
_PUT_AT_ONCE = 5_000
# More than are taken.
_MOST_A_SECOND = 20_000
_MOST_ONE_AT_A_TIME = 2_000


def transact_one_at_a_time(url: str, case: tuple[Load, int], gate: Gate) -> None:
    """The nanoseconds of each transaction over so many shards: that of the queue and those of topics, or the
    one that both are on."""
    load, shards = case
    with hawser.connect(url) as bus:
        topics = [bus.topic(f"{TOPIC}-{number}", replication=3) for number in range(max(1, shards - 1))]
        together = {"colocate": topics[0].name} if shards == 1 else {"replication": 3}
        queue: hawser.Queue[Any] = bus.queue(QUEUE, **together)
        total = _put_sync(queue, load)

        def transact(_: int) -> None:
            with bus.transaction() as tx:
                message = tx.get(queue)
                assert message is not None
                for topic in topics:
                    tx.publish(topic, VALUE)
                tx.accept(message)

        transact(0)
        gate.start()
        times = one_at_a_time(transact, load)
        done = 1 + len(times)
        _check(done, total - done, queue.info(), [topic.info() for topic in topics])
        gate.finish(times)
        if shards > 1:
            queue.delete()
        for topic in topics:
            topic.delete()


def _put_sync(queue: hawser.Queue[Any], load: Load) -> int:
    lists = 1 + int(load.seconds * _MOST_ONE_AT_A_TIME) // _PUT_AT_ONCE
    for _ in range(lists):
        queue.put_many([VALUE] * _PUT_AT_ONCE)
    return lists * _PUT_AT_ONCE


def _check(done: int, left: int, queue: hawser.QueueInfo, topics: Sequence[hawser.TopicInfo]) -> None:
    """Refuse a figure for transactions of which not everything is there."""
    published = [partition.end - 1 for topic in topics for partition in topic.partitions]
    if queue.ready + queue.claimed != left or published != [done] * len(topics):
        raise RuntimeError(
            f"{done} messages were published to each topic and {left} are left in the queue; the topics have "
            f"{published}, and the queue says {queue}"
        )


def transact_in_flight(url: str, case: tuple[Load, bool], gate: Gate) -> None:
    """Transactions on one shard committed a second: each publishes, and takes from a queue there if that is
    said."""
    asyncio.run(_transact_in_flight(url, *case, gate))


async def _transact_in_flight(url: str, load: Load, with_queue: bool, gate: Gate) -> None:
    async with aio.connect(url) as bus:
        topic: aio.AsyncTopic[Any] = bus.topic(TOPIC, replication=3)
        await topic.info()
        queue: aio.AsyncQueue[Any] = bus.queue(QUEUE, colocate=TOPIC)
        lists = 1 + int(load.seconds * _MOST_A_SECOND) // _PUT_AT_ONCE if with_queue else 0
        for _ in range(lists):
            await queue.put_many([VALUE] * _PUT_AT_ONCE)
        done = 0

        async def transact(_: int) -> None:
            nonlocal done
            async with bus.transaction() as tx:
                message = await tx.get(queue) if with_queue else None
                await tx.publish(topic, VALUE)
                if message is not None:
                    await tx.accept(message)
            done += 1

        await transact(0)
        gate.start()
        rate = await rate_in_flight(transact, load)
        left = lists * _PUT_AT_ONCE - done if with_queue else 0
        _check(done, left, await queue.info(), [await topic.info()])
        gate.finish(rate)
        await topic.delete()


def publish_lists(url: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each list that is published."""
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        values = [VALUE] * LIST
        topic.publish_many(values)
        gate.start()
        gate.finish(one_at_a_time(lambda _: topic.publish_many(values), load))
        topic.delete()


def transact_lists(url: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each transaction with a list in it."""
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        values = [VALUE] * LIST

        def transact(_: int) -> None:
            with bus.transaction() as tx:
                tx.publish_many(topic, values)

        transact(0)
        gate.start()
        gate.finish(one_at_a_time(transact, load))
        topic.delete()


def write_both_ways(url: str, length: int, gate: Gate) -> None:
    """So many lists of this length into one topic, as many into another in transactions; short ones with a
    message for a third."""
    with hawser.connect(url) as bus:
        plain, staged, beside = (bus.topic(name, replication=3) for name in topics_of(length))
        values = [VALUE] * length
        gate.start()
        for _ in range(LISTS):
            plain.publish_many(values)
            with bus.transaction() as tx:
                tx.publish_many(staged, values)
                if length == SHORT_LIST:
                    tx.publish(beside, VALUE)
        gate.finish()


def topics_of(length: int) -> tuple[str, str, str]:
    """Where lists of this length go: plainly, in transactions, and what these have beside them."""
    return f"{PLAIN}-{length}", f"{STAGED}-{length}", f"{BESIDE}-{length}"
