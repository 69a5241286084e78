"""The exactly-once sink of Spark, compared with the same sink without transactions and a sink that does
nothing.

Spark generates the rows, so that no source is measured. They go to a new topic with three replicas and a
partition for each core. Without keys a batch of rows goes to one partition, with keys each row is
partitioned.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hawser
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.plan import Plan
from hawser.bench.report import Row, at_least, at_most, ratio
from hawser.bench.spark import source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 2_000_000
VALUE_BYTES: Final = 100
VALUE: Final = f"CAST(lpad(CAST(id AS STRING), {VALUE_BYTES}, '0') AS BINARY) AS value"
KEY: Final = "CAST(CAST(id AS STRING) AS BINARY) AS key"
_TOPIC: Final = "written"
# The titles of the sinks, by format.
_SINKS: Final = {"hawser": "hawser", "plainly": "at least once", "nothing": "a Python sink that does nothing"}


def spark_sink(plan: Plan) -> Iterator[Row]:
    """The figures of the sink; none if Spark cannot run."""
    with source.running_session(plan) as session:
        if session is None:
            return
        register(session)
        with hawser_servers() as servers, plan.place() as directory:
            rows = plan.scaled(ROWS)
            yield writing(plan, session, servers.url, rows, (VALUE,))
            yield writing(plan, session, servers.url, rows, (VALUE, KEY))
            yield micro_batches(plan, session, servers.url, directory)


def register(session: SparkSession) -> None:
    """Register the sinks that are compared."""
    from hawser.bench.spark.baseline import NullSource
    from hawser.bench.spark.plain_sink import PlainSink

    session.dataSource.register(NullSource)
    session.dataSource.register(PlainSink)


def writing(plan: Plan, session: SparkSession, url: str, rows: int, columns: tuple[str, ...]) -> Row:
    """Rows per second, from the call until all rows are in the topic."""
    found = plan.turns({each: partial(rate, session, url, rows, columns, each) for each in _SINKS}, most=3)
    mine, plain, nothing = (statistics.median(found[each]) for each in _SINKS)
    targets = (
        at_least("half of at least once", ratio(mine, plain), 0.5),
        at_least("300 k rows/s", mine, 300_000),
    )
    name = f"spark sink: rows of {VALUE_BYTES} B {'with' if KEY in columns else 'without'} keys"
    compared = {_SINKS["plainly"]: plain, _SINKS["nothing"]: nothing}
    return Row(name, mine, "rows/s", compared, targets)


def rate(session: SparkSession, url: str, rows: int, columns: tuple[str, ...], sink: str) -> float:
    cores = os.cpu_count() or 1
    with hawser.connect(url) as bus, bus.topic(_TOPIC, partitions=cores) as topic:
        data = session.range(0, rows, 1, cores).selectExpr(*columns)
        started = time.perf_counter()
        data.write.format(sink).mode("append").options(**_target(sink, url)).save()
        seconds = time.perf_counter() - started
        there = sum(each.end - each.start for each in topic.info().partitions)
        # The at-least-once sink may write rows more than once on a slow machine.
        assert there == rows if sink == "hawser" else sink == "nothing" or there >= rows, (sink, there)
        topic.delete()
    return rows / seconds


def _target(sink: str, url: str) -> dict[str, str]:
    return {} if sink == "nothing" else {"endpoints": url, "topic": _TOPIC}


def micro_batches(plan: Plan, session: SparkSession, url: str, directory: Path) -> Row:
    """The time of a micro-batch of few rows from one topic to another; the commit costs the same for many
    rows."""
    rows = source.MICRO_ROWS
    source.fill(plan, url, "micro", rows * source.MICRO_BATCHES)
    options = {"endpoints": url, "subscribe": "micro", "startingOffsets": "earliest"}
    reading = ("hawser", {**options, "maxOffsetsPerTrigger": rows})
    with hawser.connect(url) as bus, bus.topic(_TOPIC, partitions=os.cpu_count() or 1):
        found = plan.turns(
            {
                sink: partial(source.micro_batch_ns, session, directory, reading, (sink, _target(sink, url)))
                for sink in _SINKS
            },
            most=3,
        )
    mine, plain, nothing = (statistics.median(found[each]) for each in _SINKS)
    target = at_most("100 ms above at least once", (mine - plain) / 1e6, 100)
    compared = {_SINKS["plainly"]: plain, _SINKS["nothing"]: nothing}
    return Row(f"spark sink: a micro-batch of {rows} rows", mine, "ns", compared, (target,))
