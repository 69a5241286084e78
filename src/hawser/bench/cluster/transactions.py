"""Transactions compared with plain publishes: three nodes and an operator as processes, 100-byte messages.

A transaction takes a message from a queue, publishes a message, and accepts the first. Like a plain publish,
it is acknowledged after a majority has synced it.
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

# The maximum latency of a transaction, relative to a plain publish, by its number of shards.
BOUNDS = {1: 2.0, 2: 4.0, 4: 6.0}
QUEUE = "measured-orders"
TOPIC = "measured-invoices"
PLAIN = "measured-plain"
STAGED = "measured-staged"
# The second topic of transactions over two shards.
BESIDE = "measured-beside"
LIST, SHORT_LIST = 1_000, 100
# Lists that are written in each way to count their bytes.
LISTS = 20
_PUT_AT_ONCE = 5_000
# Upper bounds of the transactions per second, to put enough messages.
_MOST_A_SECOND = 20_000
_MOST_ONE_AT_A_TIME = 2_000


def transact_one_at_a_time(url: str, case: tuple[Load, int], gate: Gate) -> None:
    """The nanoseconds of each transaction over so many shards: one of the queue and the others of topics, or
    one shared shard."""
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
    """RuntimeError unless the topics and the queue show every transaction."""
    published = [partition.end - 1 for topic in topics for partition in topic.partitions]
    if queue.ready + queue.claimed != left or published != [done] * len(topics):
        raise RuntimeError(
            f"expected {done} messages in each topic and {left} in the queue; the topics have {published}, "
            f"and the queue is {queue}"
        )


def transact_in_flight(url: str, case: tuple[Load, bool], gate: Gate) -> None:
    """Transactions committed per second on one shard. Each publishes, and with `True` in `case` takes a
    message of a queue."""
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
    """The nanoseconds of each published list."""
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        values = [VALUE] * LIST
        topic.publish_many(values)
        gate.start()
        gate.finish(one_at_a_time(lambda _: topic.publish_many(values), load))
        topic.delete()


def transact_lists(url: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each transaction that publishes a list."""
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
    """Write LISTS lists of this length to one topic plainly and to another in transactions; the transactions
    of short lists also write a message to a third topic."""
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
    """The topics of lists of this length: written plainly, in transactions, and beside those."""
    return f"{PLAIN}-{length}", f"{STAGED}-{length}", f"{BESIDE}-{length}"


def transactions(plan: Plan) -> Iterator[Row]:
    """The figures of transactions on a cluster."""
    with hawser_servers() as servers:
        yield from _latencies(plan, servers.url)
        yield _in_flight(plan, servers.url)
        yield _lists(plan, servers.url)
        yield from _bytes(servers)


def _run(side: Side, url: str, case: Any) -> Any:
    # Not pinned: there are more processes than cores.
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
    """The bytes in the log of a node, read after the node is killed."""
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
    """The bytes and records in a node's logs, by topic."""

    nbytes: Counter[str]
    records: Counter[str]

    def bytes_of_a_record(self, *topics: str) -> float:
        """The bytes of a record with everything that is written for it."""
        return sum(self.nbytes[topic] for topic in topics) / sum(self.records[topic] for topic in topics)


def read_log(directory: Path) -> Log:
    """Read the logs of a node that does not run."""
    command = [sys.executable, "-m", "hawser", "log", "scan", "--dir", str(directory), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    log = Log(Counter(), Counter())
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        topic = entry["shard"].rpartition("@")[0]
        log.nbytes[topic] += entry["bytes"]
        log.records[topic] += entry["records"] or 0
    return log
