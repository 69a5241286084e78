"""Metrics of a topic or queue of a domain. Totals never decrease while the region exists."""

import time
from collections.abc import Iterator

from hawser.agent.reaper import RegionStats
from hawser.cluster.health import Metric

__all__ = ["topic_metrics"]

Labels = tuple[tuple[str, str], ...]


def topic_metrics(stats: RegionStats) -> Iterator[Metric]:
    """The metrics of one topic or queue."""
    labels = ((stats.kind, stats.topic),)
    if stats.kind == "topic":
        yield from _of_a_topic(stats, labels)
        kinds = (("publisher", stats.publishers), ("subscriber", stats.subscribers))
    else:
        yield from _of_a_queue(stats, labels)
        kinds = (("producer", stats.publishers), ("consumer", stats.subscribers))
    for kind, totals in kinds:
        yield from _of_participants(f"hawser_{stats.kind}", kind, totals, labels)
    yield from _of_memory(f"hawser_{stats.kind}", stats, labels)


def _of_a_topic(stats: RegionStats, labels: Labels) -> Iterator[Metric]:
    yield Metric("hawser_topic_published_total", "Samples published.", stats.state["head"], labels)
    text = "Samples taken, summed over subscribers."
    yield Metric("hawser_topic_received_total", text, stats.subscribers["count"], labels)
    text = "Samples overwritten before they were taken, summed over subscribers."
    yield Metric("hawser_topic_missed_total", text, stats.subscribers["missed"], labels)


def _of_a_queue(stats: RegionStats, labels: Labels) -> Iterator[Metric]:
    state = stats.state
    yield Metric("hawser_queue_put_total", "Messages put.", state["head"], labels)
    text = "Messages delivered to consumers, each delivery counted."
    yield Metric("hawser_queue_delivered_total", text, stats.subscribers["count"], labels)
    for name in ("ready", "claimed"):
        text = "Unsettled messages: ready for a consumer, or claimed by one."
        yield Metric("hawser_queue_messages", text, state[name], (*labels, ("state", name)))
    text = "Messages that will be moved to the dead letters."
    yield Metric("hawser_queue_dying", text, state["dying"] + state["moving"], labels)
    age = max(0.0, time.time() - state["oldest_ns"] / 1e9) if state["oldest_ns"] else 0.0
    yield Metric("hawser_queue_oldest_age_seconds", "Age of the oldest unsettled message.", age, labels)


def _of_participants(prefix: str, kind: str, totals: dict[str, int], labels: Labels) -> Iterator[Metric]:
    text = "Dead participants that any process recovered."
    yield Metric(f"{prefix}_recoveries_total", text, totals["deaths"], (*labels, ("kind", kind)))
    for life in ("alive", "dead"):
        text = "Participants; dead ones are not recovered yet."
        where = (*labels, ("kind", kind), ("state", life))
        yield Metric(f"{prefix}_participants", text, totals[life], where)


def _of_memory(prefix: str, stats: RegionStats, labels: Labels) -> Iterator[Metric]:
    state = stats.state
    for use in ("lent", "referenced", "free", "leaked"):
        text = "Slots by use; a leaked slot is a bug."
        yield Metric(f"{prefix}_slots", text, state[f"slots_{use}"], (*labels, ("state", use)))
    text = "Trace records that were not written because the trace ring is unusable."
    yield Metric(f"{prefix}_untraced_total", text, state["untraced"], labels)
    yield Metric(f"{prefix}_resident_bytes", "Resident memory.", state["resident_bytes"], labels)
    text = "Creation time; totals count from then on."
    yield Metric(f"{prefix}_created_timestamp_seconds", text, state["created_ns"] / 1e9, labels)
