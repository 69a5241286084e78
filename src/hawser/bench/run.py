"""The parts of a run, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hawser.bench import (
    PARTS,
    audit,
    cluster,
    cluster_queues,
    copies,
    queues,
    recorder,
    round_trips,
    scaling,
    spark,
    spark_sink,
    streams,
    transactions,
    upkeep,
)
from hawser.bench.plan import Plan
from hawser.bench.report import Row

_MEASURES: dict[str, Callable[[Plan], Iterator[Row]]] = {
    "small": streams.small_messages,
    "spinning": round_trips.spinning,
    "blocking": round_trips.blocking,
    "lent": streams.lent_messages,
    "copies": copies.large_copies,
    "subscribers": scaling.many_subscribers,
    "memory": upkeep.memory,
    "recovery": upkeep.recovery,
    "start": upkeep.start,
    "queue": queues.queue,
    "cluster": cluster.cluster,
    "cluster-queue": cluster_queues.cluster_queue,
    "transactions": transactions.transactions,
    "recorder": recorder.recorder,
    "spark": spark.spark,
    "spark-sink": spark_sink.spark_sink,
    "audit": audit.audit,
}
assert tuple(_MEASURES) == PARTS


def run(plan: Plan, parts: Iterable[str] = PARTS) -> Iterator[Row]:
    """Measure the named parts, one after the other; rows come as they are measured."""
    for name in parts:
        yield from _MEASURES[name](plan)
