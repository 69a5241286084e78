"""Transactions beside plain publishes: three nodes and an operator as processes, 100-byte messages.

The transaction that is measured takes a message from a queue, publishes one and accepts the first. All of it
is acknowledged when a majority has synced it, as a plain publish is.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hawser
from hawser import aio
from hawser.bench.cluster import writes
from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time, rate_in_flight
from hawser.bench.cluster.servers import HawserServers, hawser_servers
from hawser.bench.cluster.writes import IN_FLIGHT
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, Side, run_sides
from hawser.bench.report import Row, at_least, at_most

# How many times a plain publish a transaction over so many shards may take.
BOUNDS = {1: 2.0, 2: 4.0, 4: 6.0}
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


def transactions(plan: Plan) -> Iterator[Row]:
    """The figures of transactions on a cluster."""
    with hawser_servers() as servers:
        yield from _latencies(plan, servers.url)
        yield _in_flight(plan, servers.url)
        yield _lists(plan, servers.url)
        yield from _bytes(servers)


def _run(side: Side, url: str, case: Any) -> Any:
    # On no core of its own: there are more processes than cores, and the kernel places them best.
    return run_sides([(side, None)], url, case)[0]


def _latencies(plan: Plan, url: str) -> Iterator[Row]:
    load = Load(0.4 if plan.quick else 1.0)
    found = plan.turns(
        {"publish": partial(_run, writes.publish_one_at_a_time, url, load)}
        | {
            f"{shards} shards": partial(_run, transact_one_at_a_time, url, (load, shards))
            for shards in BOUNDS
        }
    )
    medians = {
        name: statistics.median(time for turn in turns for time in turn) for name, turns in found.items()
    }
    publish = medians["publish"]
    for shards, bound in BOUNDS.items():
        spent = medians[f"{shards} shards"]
        where = "one colocated shard" if shards == 1 else f"{shards} shards"
        target = at_most(f"{bound:.0f} x a plain publish", spent / publish, bound)
        name = f"transactions: take, publish, accept over {where}, p50"
        yield Row(name, spent, "ns", {"a plain publish": publish}, (target,))


def _in_flight(plan: Plan, url: str) -> Row:
    load = Load(0.4 if plan.quick else 1.0, IN_FLIGHT)
    rates = plan.medians(
        {
            "plain publishes": partial(_run, writes.publish_in_flight, url, load),
            "take, publish, accept": partial(_run, transact_in_flight, url, (load, True)),
            "publish": partial(_run, transact_in_flight, url, (load, False)),
        }
    )
    rate = rates.pop("publish")
    target = at_least("a quarter of plain publishes", rate / rates["plain publishes"], 0.25)
    name = f"transactions: of one publish on one shard, {IN_FLIGHT} at a time"
    return Row(name, rate, "tx/s", rates, (target,))


def _lists(plan: Plan, url: str) -> Row:
    load = Load(0.4 if plan.quick else 1.0)
    found = plan.turns(
        {
            "publish": partial(_run, publish_lists, url, load),
            "transact": partial(_run, transact_lists, url, load),
        }
    )
    medians = {
        name: statistics.median(time for turn in turns for time in turn) for name, turns in found.items()
    }
    target = at_most("1.5 x publish_many", medians["transact"] / medians["publish"], 1.5)
    name = f"transactions: {LIST:,} messages in one, p50"
    return Row(name, medians["transact"], "ns", {"publish_many of them": medians["publish"]}, (target,))


def _bytes(servers: HawserServers) -> Iterator[Row]:
    """By what is in the log of a node that was killed after it."""
    for length in (LIST, SHORT_LIST):
        _run(write_both_ways, servers.url, length)
    name, node = next(iter(servers.nodes.items()))
    node.kill()
    log = read_log(servers.directory / name)
    for length in (LIST, SHORT_LIST):
        plain, *staged = topics_of(length)
        usual, spent = log.bytes_of_a_record(plain), log.bytes_of_a_record(*staged)
        where = "" if length == LIST else " over two shards"
        figure = f"transactions: bytes in the log for a message, in lists of {length:,}{where}"
        yield Row(figure, spent, "B", {"plain": usual}, (at_most("1.2 x a plain one", spent / usual, 1.2),))


class Log(NamedTuple):
    """What a node has in its logs for each topic: how many bytes, and how many records."""

    nbytes: Counter[str]
    records: Counter[str]

    def bytes_of_a_record(self, *topics: str) -> float:
        """With all that is there because of it."""
        return sum(self.nbytes[topic] for topic in topics) / sum(self.records[topic] for topic in topics)


def read_log(directory: Path) -> Log:
    """Of a node that does not run."""
    command = [sys.executable, "-m", "hawser", "log", "scan", "--dir", str(directory), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log = Log(Counter(), Counter())
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        topic = entry["shard"].rpartition("@")[0]
        log.nbytes[topic] += entry["bytes"]
        log.records[topic] += entry["records"] or 0
    return log
