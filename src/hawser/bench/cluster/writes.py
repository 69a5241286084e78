"""Writes, reads and failover of a cluster: three nodes and an operator, compared with three etcd and three
JetStream servers.

Each cluster acknowledges a write after a majority has synced it, on the same disk. Servers and clients are
processes that share all cores. All clusters run at the same time and take turns; the others are idle.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import hawser
from hawser import aio
from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time, rate_in_flight
from hawser.bench.cluster.servers import Process, first_words, hawser_servers
from hawser.bench.peers import etcd, jetstream
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, Side, now_ns, run_sides
from hawser.bench.report import Row, at_least, at_most, ratio

IN_FLIGHT = 64
BATCH = 5_000
SHARDS = 20
IDLE_SHARDS = 200
# The default maximum of operations in an etcd transaction.
TRANSACTION = 128
TOPIC = "measured"


def _check(topic: hawser.TopicInfo, count: int) -> None:
    """RuntimeError unless the partition has `count` records."""
    (partition,) = topic.partitions
    if partition.end - partition.start != count:
        raise RuntimeError(
            f"{count} records were acknowledged, but the partition has {partition.end - partition.start}"
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
    """Records acknowledged per second, one per call, or a list per call if the load has batches."""
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
    """Bytes of values read per second. `case` has the number of batches and the records of each."""
    batches, size = case
    with hawser.connect(url) as bus:
        topic = bus.topic(TOPIC, replication=3)
        for _ in range(batches):
            topic.publish_many([VALUE] * size)
        # A first read does the one-time work, such as the import of Arrow.
        _read(topic, size)
        gate.start()
        started = now_ns()
        count = _read(topic, batches * size)
        gate.finish(count * len(VALUE) / (now_ns() - started) * 1e9)
        topic.delete()


def _read(topic: hawser.Topic[Any], wanted: int) -> int:
    """Read at least `wanted` records as Arrow from the start of the topic, and return their number."""
    count = 0
    with topic.subscribe(start="earliest") as subscription:
        while count < wanted:
            for batch in subscription.take_batches(64):
                count += batch.num_rows
                last = batch.column("value")[-1].as_py()
                if last != VALUE or batch.column("offset")[-1].as_py() != count:
                    raise RuntimeError(f"record {count} was expected, and another one was read")
    return count


@dataclass(frozen=True, slots=True)
class ClusterContestant:
    """A cluster to measure: its servers and the loops of its clients. `batched` has the settings that are
    tried for the highest rate."""

    name: str
    servers: Callable[[], AbstractContextManager[str]]
    one_at_a_time: Side
    in_flight: Side
    batched: dict[str, tuple[Side, int, int]]
    why_not: Callable[[], str | None]
    described: Callable[[], str] = lambda: ""


@contextmanager
def _hawser_url() -> Iterator[str]:
    with hawser_servers() as servers:
        yield servers.url


HAWSER = ClusterContestant(
    "hawser",
    _hawser_url,
    publish_one_at_a_time,
    publish_in_flight,
    {f"lists of {BATCH:,}": (publish_in_flight, 4, BATCH)},
    lambda: None,
)
ETCD = ClusterContestant(
    "etcd",
    etcd.etcd_servers,
    etcd.put_one_at_a_time,
    etcd.put_in_flight,
    {
        f"transactions of {TRANSACTION}, {number} in flight": (
            etcd.put_in_transactions,
            number,
            TRANSACTION,
        )
        for number in (16, 64)
    },
    lambda: None if etcd.installed() else "etcd or grpcio is not installed",
    lambda: f"{first_words(etcd.program())} through grpcio",
)
JETSTREAM = ClusterContestant(
    "JetStream",
    jetstream.nats_servers,
    jetstream.publish_one_at_a_time,
    jetstream.publish_in_flight,
    {"1,024 in flight": (jetstream.publish_in_flight, 1024, 1)},
    jetstream.why_not,
    lambda: f"{first_words(jetstream.program())} through nats-py",
)


def cluster(plan: Plan) -> Iterator[Row]:
    """The figures of writes, reads, failover and idle shards."""
    yield from _writing(plan)
    yield _reading(plan)
    yield _leader_killed(plan)
    yield from _idle_shards(plan)


# Compared with the peers.


def _writing(plan: Plan) -> Iterator[Row]:
    entrants, notes = [HAWSER], []
    for peer in (ETCD, JETSTREAM):
        reason = peer.why_not() if plan.invited(peer.name) else "not invited"
        if reason is None:
            entrants.append(peer)
            notes.append(peer.described())
        else:
            notes.append(f"{peer.name} is left out: {reason}")
    with ExitStack() as stack:
        places = {each.name: stack.enter_context(each.servers()) for each in entrants}
        yield from _latency(plan, entrants, places, "; ".join(notes))
        rates = _rates(plan, entrants, places)
        yield _in_flight_row(rates)
        yield _batched_row(plan, entrants, places, rates)


def _latency(
    plan: Plan, entrants: list[ClusterContestant], places: dict[str, str], note: str
) -> Iterator[Row]:
    load = Load(_seconds(plan))
    found = plan.turns(
        {each.name: partial(_run, each.one_at_a_time, places[each.name], load) for each in entrants}
    )
    times = {name: sorted(time for turn in turns for time in turn) for name, turns in found.items()}
    medians = {name: statistics.median(each) for name, each in times.items()}
    mine = medians.pop("hawser")
    target = at_most("p50 no worse than the better peer", ratio(mine, min(medians.values(), default=None)), 1)
    yield Row("cluster: one synchronous client, p50", mine, "ns", medians, (target,), note)
    slowest = {name: float(each[len(each) * 99 // 100]) for name, each in times.items()}
    yield Row("cluster: one synchronous client, p99", slowest.pop("hawser"), "ns", slowest)


def _rates(plan: Plan, entrants: list[ClusterContestant], places: dict[str, str]) -> dict[str, float]:
    load = Load(_seconds(plan), IN_FLIGHT)
    return plan.medians(
        {each.name: partial(_run, each.in_flight, places[each.name], load) for each in entrants}
    )


def _in_flight_row(rates: dict[str, float]) -> Row:
    others = {name: rate for name, rate in rates.items() if name != "hawser"}
    mine = rates["hawser"]
    target = at_least("2 x the better peer", ratio(mine, max(others.values(), default=None)), 2)
    return Row(f"cluster: {IN_FLIGHT} in flight from one client", mine, "writes/s", others, (target,))


def _batched_row(
    plan: Plan, entrants: list[ClusterContestant], places: dict[str, str], rates: dict[str, float]
) -> Row:
    """The best of each in any setting, those already measured included."""
    measures = {
        f"{each.name}, {setting}": partial(
            _run, side, places[each.name], Load(_seconds(plan), in_flight, batch)
        )
        for each in entrants
        for setting, (side, in_flight, batch) in each.batched.items()
    }
    found = plan.medians(measures)
    (mine,) = (found.pop(name) for name in list(found) if name.startswith("hawser"))
    best = max([*found.values(), *(rates[name] for name in rates if name != "hawser")], default=None)
    target = at_least("10 x the best of any peer in any setting", ratio(mine, best), 10)
    return Row(f"cluster: publish_many of {BATCH:,}", mine, "records/s", found, (target,))


def _seconds(plan: Plan) -> float:
    return 0.4 if plan.quick else 1.0


def _run(side: Side, place: str, case: Any) -> Any:
    # On no core of its own: there are more processes than cores, and the kernel places them best.
    return run_sides([(side, None)], place, case)[0]


# Alone.


def _reading(plan: Plan) -> Row:
    with hawser_servers() as servers:
        case = (plan.scaled(400), BATCH)
        rates = plan.turns({"reading": partial(_run, read_batches, servers.url, case)}, most=3)
    rate = statistics.median(rates["reading"])
    target = at_least("400 MB/s", rate / 1e6, 400)
    return Row("cluster: batches read as Arrow, bytes of values", rate, "B/s", {}, (target,))


def _leader_killed(plan: Plan) -> Row:
    times = plan.turns({"leader killed": _writable_again}, most=3)["leader killed"]
    spent = statistics.median(times)
    target = at_most("within 2 s", spent / 1e9, 2)
    name = f"cluster: a leader killed among {SHARDS} shards, all writable again"
    return Row(name, spent, "ns", {"the slowest time": max(times)}, (target,))


def _writable_again() -> float:
    """Nanoseconds from the kill of the node that leads most until every shard has acknowledged a write that
    was begun after it."""
    with hawser_servers() as servers, hawser.connect(servers.url) as bus:
        topic = bus.topic("failover", partitions=SHARDS, replication=3)
        keys = _key_of_each_partition(topic)
        leader = _leads_most(topic.info())
        started = now_ns()
        servers.nodes[leader].kill()
        for receipt in [topic.publish_nowait(VALUE, key=key) for key in keys]:
            receipt.result()
        return now_ns() - started


def _key_of_each_partition(topic: hawser.Topic[Any]) -> list[bytes]:
    """Publish to each partition, and return a key for each."""
    keys: dict[int, bytes] = {}
    number = 0
    while len(keys) < SHARDS:
        key = b"%d" % number
        keys.setdefault(topic.publish(VALUE, key=key).partition, key)
        number += 1
    return list(keys.values())


def _leads_most(info: hawser.TopicInfo) -> str:
    leaders = Counter(each.leader for each in info.partitions if each.leader is not None)
    return leaders.most_common(1)[0][0]


def _idle_shards(plan: Plan) -> Iterator[Row]:
    """The CPU and memory that unused shards cost on the busiest node."""
    plan.tell(f"{IDLE_SHARDS} idle shards")
    with hawser_servers() as servers, hawser.connect(servers.url) as bus:
        nodes = list(servers.nodes.values())
        before = [node.resident_bytes() for node in nodes]
        bus.topic("idle", partitions=IDLE_SHARDS, replication=3)
        time.sleep(2 if plan.quick else 5)
        shares = _shares_of_a_core([*nodes, servers.operator], 4 if plan.quick else 15)
        grown = max(node.resident_bytes() - was for node, was in zip(nodes, before, strict=True))
    share = max(shares[:-1])
    target = at_most("under 3 % of a core", share, 3)
    name = f"cluster: {IDLE_SHARDS} idle shards on a node"
    yield Row(f"{name}, share of a core", share, "%", {"the operator": shares[-1]}, (target,))
    each = grown / IDLE_SHARDS
    yield Row(f"{name}, memory of each", each, "B", {}, (at_most("under 200 KiB", each / 1024, 200),))


def _shares_of_a_core(processes: list[Process], seconds: float) -> list[float]:
    """The CPU use of each process in percent of a core, over `seconds`."""
    started, before = now_ns(), [process.cpu_seconds() for process in processes]
    time.sleep(seconds)
    spent = (now_ns() - started) / 1e9
    return [
        100 * (process.cpu_seconds() - was) / spent for process, was in zip(processes, before, strict=True)
    ]
