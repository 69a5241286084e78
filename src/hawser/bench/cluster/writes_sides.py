"""hawser as its clients use it: the public API, a topic of one partition with three replicas."""

from __future__ import annotations

import asyncio
from typing import Any

import hawser
from hawser import aio
from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time, rate_in_flight
from hawser.bench.processes import Gate, now_ns

TOPIC = "measured"


def _check(topic: hawser.TopicInfo, count: int) -> None:
    """Refuse a figure for records that are not there."""
    (partition,) = topic.partitions
    if partition.end - partition.start != count:
        raise RuntimeError(
            f"{count} records were acknowledged and {partition.end - partition.start} are there"
        )


def publish_one_at_a_time(url: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each publish."""
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        topic.publish(VALUE)
        gate.start()
        times = one_at_a_time(lambda _: topic.publish(VALUE), load)
        _check(topic.info(), 1 + len(times))
        gate.finish(times)
        topic.delete()


def publish_in_flight(url: str, load: Load, gate: Gate) -> None:
    """Records acknowledged a second: publishes, or lists of them if the load has batches."""
    asyncio.run(_publish_in_flight(url, load, gate))


async def _publish_in_flight(url: str, load: Load, gate: Gate) -> None:
    async with aio.connect(url) as bus:
        topic: aio.AsyncTopic[Any] = bus.topic(TOPIC, replication=3)
        await topic.publish(VALUE)
        values, calls = [VALUE] * load.batch, 0

        async def publish(number: int) -> None:
            nonlocal calls
            calls = max(calls, number)
            await (topic.publish(VALUE) if load.batch == 1 else topic.publish_many(values))

        gate.start()
        rate = await rate_in_flight(publish, load)
        _check(await topic.info(), 1 + calls * load.batch)
        gate.finish(rate)
        await topic.delete()


def read_batches(url: str, case: tuple[int, int], gate: Gate) -> None:
    """Bytes of values read a second, of so many batches of so many records."""
    batches, size = case
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        for _ in range(batches):
            topic.publish_many([VALUE] * size)
        # What is done once, such as importing Arrow, is done before.
        _read(topic, size)
        gate.start()
        started = now_ns()
        count = _read(topic, batches * size)
        gate.finish(count * len(VALUE) / (now_ns() - started) * 1e9)
        topic.delete()


def _read(topic: hawser.Topic[Any], wanted: int) -> int:
    """How many records were taken as Arrow, from the start of the topic on: `wanted` or somewhat more."""
    count = 0
    with topic.subscribe(start="earliest") as subscription:
        while count < wanted:
            for batch in subscription.take_batches(64):
                count += batch.num_rows
                last = batch.column("value")[-1].as_py()
                if last != VALUE or batch.column("offset")[-1].as_py() != count:
                    raise RuntimeError(f"another record than number {count} was read in its place")
    return count
