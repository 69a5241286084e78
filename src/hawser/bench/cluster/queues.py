"""Queues of a cluster compared with its topics: three nodes and an operator as processes, 100-byte
messages."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import hawser
from hawser import aio
from hawser.bench.cluster import writes
from hawser.bench.cluster.loads import VALUE, Load, rate_in_flight
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.cluster.writes import IN_FLIGHT
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, now_ns, run_sides
from hawser.bench.report import Row, at_least

QUEUE = "measured-queue"
BATCH = 5_000


def cluster_queue(plan: Plan) -> Iterator[Row]:
    """The figures of queues on a cluster."""
    load = Load(0.4 if plan.quick else 1.0, IN_FLIGHT)
    with hawser_servers() as servers:
        found = plan.medians(
            {
                name: partial(_rate, side, servers.url, load)
                for name, side in {
                    "publish": writes.publish_in_flight,
                    "put": put_in_flight,
                    "get": get_in_flight,
                }.items()
            }
        )
        published = found["publish"]
        for verb, name in (("put", "put"), ("get", "get and accept")):
            target = at_least("half the rate of publishes", found[verb] / published, 0.5)
            figure = f"cluster queue: {name}, {IN_FLIGHT} in flight"
            yield Row(figure, found[verb], "msg/s", {"publishes to a topic": published}, (target,))
        count = plan.scaled(200_000) // BATCH * BATCH
        rates = plan.turns({"batches": partial(_through, servers.url, count)}, most=5)["batches"]
    rate = statistics.median(rates)
    target = at_least("50 thousand messages a second", rate, 50_000)
    name = f"cluster queue: put, got and accepted in lists of {BATCH:,}"
    yield Row(name, rate, "msg/s", {"the slowest turn": min(rates)}, (target,))


def _rate(side: Any, url: str, load: Load) -> float:
    # Not pinned: there are more processes than cores.
    return float(run_sides([(side, None)], url, load)[0])


def _through(url: str, count: int) -> float:
    """Messages per second from the first put to the last accept."""
    finished, started = run_sides([(get_lists, None), (put_lists, None)], url, count)
    return float(count * 1e9 / (finished - started))


# One call a message.


def put_in_flight(url: str, load: Load, gate: Gate) -> None:
    """Messages acknowledged per second."""
    asyncio.run(_put_in_flight(url, load, gate))


async def _put_in_flight(url: str, load: Load, gate: Gate) -> None:
    async with aio.connect(url) as bus:
        queue: aio.AsyncQueue[Any] = bus.queue(QUEUE, replication=3)
        await queue.put(VALUE)
        calls = 0

        async def put(number: int) -> None:
            nonlocal calls
            calls = max(calls, number)
            await queue.put(VALUE)

        gate.start()
        rate = await rate_in_flight(put, load)
        ready = (await queue.info()).ready
        if ready != 1 + calls:
            raise RuntimeError(f"{1 + calls} messages were acknowledged, but the queue has {ready}")
        gate.finish(rate)
        await queue.delete()


def get_in_flight(url: str, load: Load, gate: Gate) -> None:
    """Messages got and accepted per second, of a queue with more messages than can be got in that time."""
    asyncio.run(_get_in_flight(url, load, gate))


async def _get_in_flight(url: str, load: Load, gate: Gate) -> None:
    async with aio.connect(url) as bus:
        queue: aio.AsyncQueue[Any] = bus.queue(QUEUE, replication=3)
        total = int(load.seconds * 100_000)
        for _ in range(0, total, BATCH):
            await queue.put_many([VALUE] * BATCH)
        total = -(-total // BATCH) * BATCH
        calls = 0

        async def get(number: int) -> None:
            nonlocal calls
            calls = max(calls, number)
            message = await queue.get()
            assert message is not None
            await message.accept()

        gate.start()
        rate = await rate_in_flight(get, load)
        info = await queue.info()
        if info.ready + info.claimed != total - calls:
            raise RuntimeError(f"of {total} messages {calls} were accepted; the queue says {info}")
        gate.finish(rate)
        await queue.delete()


# In lists.


def put_lists(url: str, count: int, gate: Gate) -> None:
    """Put lists; the result is the time of the first."""
    with hawser.connect(url) as bus:
        queue: hawser.Queue[Any] = bus.queue(QUEUE, replication=3)
        values = [VALUE] * BATCH
        gate.start()
        started = now_ns()
        for _ in range(count // BATCH):
            queue.put_many(values)
        gate.finish(started)


def get_lists(url: str, count: int, gate: Gate) -> None:
    """Get lists; the result is the time of the last accept."""
    with hawser.connect(url) as bus:
        queue: hawser.Queue[Any] = bus.queue(QUEUE, replication=3)
        gate.start()
        got = 0
        while got < count:
            messages = queue.get_values(BATCH)
            got += len(messages)
            messages.accept()
        finished = now_ns()
        info = queue.info()
        if got != count or info.ready or info.claimed:
            raise RuntimeError(f"of {count} messages {got} were got; the queue says {info}")
        gate.finish(finished)
        queue.delete()
