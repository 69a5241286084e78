"""Transactions beside plain publishes: three nodes and an operator as processes, 100-byte messages.

The transaction that is measured takes a message from a queue, publishes one and accepts the first. All of it
is acknowledged when a majority has synced it, as a plain publish is.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hawser.bench.cluster import writes_sides
from hawser.bench.cluster.loads import Load
from hawser.bench.cluster.servers import HawserServers, hawser_servers
from hawser.bench.cluster.transactions_sides import (
    LIST,
    SHORT_LIST,
    publish_lists,
    topics_of,
    transact_in_flight,
    transact_lists,
    transact_one_at_a_time,
    write_both_ways,
)
from hawser.bench.cluster.writes import IN_FLIGHT
from hawser.bench.plan import Plan
from hawser.bench.processes import Side, run_sides
from hawser.bench.report import Row, at_least, at_most

# How many times a plain publish a transaction over so many shards may take.
BOUNDS = {1: 2.0, 2: 4.0, 4: 6.0}


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
        {"publish": partial(_run, writes_sides.publish_one_at_a_time, url, load)}
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
            "plain publishes": partial(_run, writes_sides.publish_in_flight, url, load),
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
