"""The parts of a run, in the order of their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hawser.bench import PARTS
from hawser.bench.cluster import queues as cluster_queues
from hawser.bench.cluster import recorder, transactions, writes
from hawser.bench.host import copies, queues, round_trips, scaling, streams, upkeep
from hawser.bench.plan import Plan
from hawser.bench.report import Row
from hawser.bench.spark import audit, sink, source

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
    "cluster": writes.cluster,
    "cluster-queue": cluster_queues.cluster_queue,
    "transactions": transactions.transactions,
    "recorder": recorder.recorder,
    "spark": source.spark,
    "spark-sink": sink.spark_sink,
    "audit": audit.audit,
}
assert tuple(_MEASURES) == PARTS


def run(plan: Plan, parts: Iterable[str] = PARTS) -> Iterator[Row]:
    """Measure the named parts one after the other, and yield each row when it is measured."""
    for name in parts:
        yield from _MEASURES[name](plan)
