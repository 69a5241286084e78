"""The Spark source: a topic compared with the same rows in Parquet, a micro-batch compared with one that does
nothing, and the memory of the workers.

Spark and the nodes share all cores.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hawser
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.plan import Plan
from hawser.bench.report import Row, at_least, at_most, ratio

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES: Final = 100
KEY_BYTES: Final = 8
BATCH: Final = 5_000
ROWS: Final = 2_000_000
MICRO_ROWS: Final = 100
MICRO_BATCHES: Final = 40
# The first micro-batches run uncompiled code.
WARM_BATCHES: Final = 10
TIMES_MORE: Final = 8

# A format and its options.
Place = tuple[str, dict[str, Any]]


def spark(plan: Plan) -> Iterator[Row]:
    """The figures of the source; none if Spark cannot run."""
    with running_session(plan) as session:
        if session is None:
            return
        with hawser_servers() as servers, plan.place() as directory:
            rows = plan.scaled(ROWS)
            fill(plan, servers.url, "rows", rows)
            yield memory(plan, session, servers.url, rows)
            yield from reading(plan, session, servers.url, rows, directory)
            yield micro_batches(plan, session, servers.url, directory)


@contextmanager
def running_session(plan: Plan) -> Iterator[SparkSession | None]:
    """A session for the block; None if Spark cannot run, which is reported."""
    try:
        from hawser.spark import session

        running = session("hawser bench", **{"spark.driver.memory": "1g"})
    except hawser.UsageError as error:
        plan.tell(f"spark is left out: {error}")
        yield None
        return
    try:
        yield running
    finally:
        running.stop()


def fill(plan: Plan, url: str, name: str, rows: int, make: Callable[[int], bytes] = random.randbytes) -> None:
    """Publish records whose keys and values are slices of the bytes of `make`."""
    plan.tell(f"{rows:,} records into topic {name}")
    with hawser.connect(url) as bus:
        topic = bus.topic(name)
        for first in range(0, rows, BATCH):
            count = min(BATCH, rows - first)
            values, keys = (_cut(make(size * count), size) for size in (VALUE_BYTES, KEY_BYTES))
            topic.publish_many(values, keys=keys)


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[place : place + size] for place in range(0, len(data), size)]


# Rows.


def reading(plan: Plan, session: SparkSession, url: str, rows: int, directory: Path) -> Iterator[Row]:
    """Read all columns of all rows into a sink that discards them. Equal rows are the best case of Parquet,
    which stores one of them."""
    fill(plan, url, "alike", rows, bytes)
    for topic, what in (("rows", "all columns"), ("alike", "all columns, all rows alike")):
        mine, parquet = _read_both(plan, session, url, topic, rows, directory)
        target = at_least("half of spark.read.parquet", ratio(mine, parquet), 0.5)
        targets = (target,) if topic == "rows" else ()
        yield Row(f"spark: a topic read, {what}", mine, "rows/s", {"spark.read.parquet": parquet}, targets)


def _read_both(
    plan: Plan, session: SparkSession, url: str, topic: str, rows: int, directory: Path
) -> tuple[float, float]:
    """Rows per second, of the topic and of the same rows in Parquet."""
    files = str(directory / topic)
    _topic(session, url, topic).write.parquet(files)
    found = plan.turns(
        {
            "hawser": partial(_rate, rows, partial(_topic, session, url, topic)),
            "parquet": partial(_rate, rows, lambda: session.read.parquet(files)),
        },
        most=5,
    )
    return statistics.median(found["hawser"]), statistics.median(found["parquet"])


def _topic(session: SparkSession, url: str, name: str, **options: Any) -> DataFrame:
    return session.read.format("hawser").options(endpoints=url, subscribe=name, **options).load()


def _rate(rows: int, data: Callable[[], DataFrame]) -> float:
    started = time.perf_counter()
    data().write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - started)


# Micro-batches.


def micro_batches(plan: Plan, session: SparkSession, url: str, directory: Path) -> Row:
    """Micro-batches of few rows into a sink that does nothing, compared with a source that does nothing."""
    from hawser.bench.spark.baseline import NullSource

    session.dataSource.register(NullSource)
    fill(plan, url, "micro", MICRO_ROWS * MICRO_BATCHES)
    topic = {"endpoints": url, "subscribe": "micro", "startingOffsets": "earliest"}
    sources: dict[str, Place] = {
        "hawser": ("hawser", {**topic, "maxOffsetsPerTrigger": MICRO_ROWS}),
        "nothing": ("nothing", {"batches": MICRO_BATCHES}),
    }
    found = plan.turns(
        {
            name: partial(micro_batch_ns, session, directory, source, ("nothing", {}))
            for name, source in sources.items()
        },
        most=3,
    )
    mine, nothing = (statistics.median(found[name]) for name in sources)
    target = at_most("150 ms above a source that does nothing", (mine - nothing) / 1e6, 150)
    name = f"spark: a micro-batch of {MICRO_ROWS} rows"
    return Row(name, mine, "ns", {"a Python source that does nothing": nothing}, (target,))


def micro_batch_ns(session: SparkSession, directory: Path, source: Place, sink: Place) -> float:
    """The median time of a micro-batch of a query with a fixed end."""
    checkpoint = directory / f"checkpoint-{time.monotonic_ns()}"
    query = (
        session.readStream.format(source[0])
        .options(**source[1])
        .load()
        .select("key", "value", "offset")
        .writeStream.format(sink[0])
        .options(**sink[1])
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    times = [each.durationMs["triggerExecution"] for each in query.recentProgress]
    return statistics.median(times[WARM_BATCHES:]) * 1e6


# Memory.


def memory(plan: Plan, session: SparkSession, url: str, rows: int) -> Row:
    """The peak memory of workers that read a part of a topic, then all of it in the same number of tasks."""
    peaks = []
    for count in (rows // TIMES_MORE, rows):
        plan.tell(f"memory of the workers, {count:,} rows")
        ending = f'{{"rows":{{"0":{count + 1}}}}}'
        data = _topic(session, url, "rows", endingOffsets=ending, minPartitions=os.cpu_count() or 1)
        data.write.format("noop").mode("overwrite").save()
        peaks.append(float(max(map(_peak_bytes, python_workers(session)))))
    small, large = peaks
    target = at_most("at most a quarter more", large / small, 1.25)
    name = f"spark: most memory of a worker, {rows:,} rows"
    return Row(name, large, "B", {f"{rows // TIMES_MORE:,} rows": small}, (target,))


def python_workers(session: SparkSession) -> list[int]:
    """The Python worker processes of a driver."""
    gateway = session.sparkContext._gateway
    assert gateway is not None, "Spark runs in this process"
    parents = {pid: _parent(pid) for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))}
    daemons = {
        pid
        for pid, parent in parents.items()
        if parent == gateway.proc.pid and b"pyspark.daemon" in _read(pid, "cmdline")
    }
    return [pid for pid, parent in parents.items() if parent in daemons]


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _peak_bytes(pid: int) -> int:
    (line,) = [each for each in _read(pid, "status").splitlines() if each.startswith(b"VmHWM")] or [b"0 0"]
    return int(line.split()[1]) * 1024


def _read(pid: int, name: str) -> bytes:
    """Read a file of /proc; empty if the process has ended."""

    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
