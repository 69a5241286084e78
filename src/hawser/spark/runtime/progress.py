"""The progress of streaming queries: a line for each micro-batch, and metrics for Prometheus.

It reads Spark's report of a micro-batch as a plain dictionary, so that tests need no Spark.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hawser.cluster.health import Metric

__all__ = ["Figures", "Totals", "lag_records", "lags_of", "line_of", "name_of"]

# A line names this many topics; of more it gives the number.
_MOST_NAMES: Final = 3


class Lag(NamedTuple):
    """The part of a topic that was not in the last micro-batch."""

    records: int
    bytes: int


@dataclass(slots=True)
class Totals:
    """The totals of one query in this process, over all its runs."""

    batches: int = 0
    rows: int = 0
    dropped_rows: int = 0
    batch_seconds: float = 0.0
    failures: int = 0
    last_batch: int = -1
    last_seconds: float = 0.0
    rows_per_second: float = 0.0
    lag_records: int | None = None
    lags: dict[str, Lag] = field(default_factory=dict)
    runs: bool = False


class Figures:
    """The totals of every query by its name; they never go back."""

    def __init__(self) -> None:
        self._totals: dict[str, Totals] = {}

    def of(self, query: str) -> Totals:
        return self._totals.setdefault(query, Totals())

    def add(self, report: Mapping[str, Any]) -> None:
        """Count a micro-batch."""
        totals = self.of(name_of(report))
        seconds = _seconds(report)
        totals.batches += 1
        totals.rows += report.get("numInputRows") or 0
        for operator in report.get("stateOperators") or ():
            totals.dropped_rows += operator.get("numRowsDroppedByWatermark") or 0
        totals.batch_seconds += seconds
        totals.last_seconds = seconds
        totals.last_batch = report["batchId"]
        totals.rows_per_second = report.get("processedRowsPerSecond") or 0.0
        totals.lag_records = lag_records(report)
        totals.lags = lags_of(report)

    def metrics(self) -> Iterator[Metric]:
        """The present metrics."""
        for query, totals in self._totals.copy().items():
            labels = (("query", query),)
            yield Metric("hawser_spark_running", "1 while the query runs.", int(totals.runs), labels)
            yield Metric("hawser_spark_batches_total", "Micro-batches.", totals.batches, labels)
            yield Metric("hawser_spark_rows_total", "Rows read by micro-batches.", totals.rows, labels)
            text = "Rows that came behind the watermark and were left out."
            yield Metric("hawser_spark_dropped_rows_total", text, totals.dropped_rows, labels)
            text = "Time that micro-batches took."
            yield Metric("hawser_spark_batch_seconds_total", text, totals.batch_seconds, labels)
            text = "Runs of the query that ended with an error."
            yield Metric("hawser_spark_failures_total", text, totals.failures, labels)
            yield Metric("hawser_spark_batch", "Number of the last micro-batch.", totals.last_batch, labels)
            text = "Time that the last micro-batch took."
            yield Metric("hawser_spark_batch_seconds", text, totals.last_seconds, labels)
            text = "Rows a second of the last micro-batch."
            yield Metric("hawser_spark_rows_per_second", text, totals.rows_per_second, labels)
            if totals.lag_records is not None:
                text = "Records that had come and were not in the last micro-batch."
                yield Metric("hawser_spark_lag_records", text, totals.lag_records, labels)
            for topic, lag in totals.lags.items():
                of_topic = (*labels, ("topic", topic))
                text = "Records of a topic that had come and were not in the last micro-batch."
                yield Metric("hawser_spark_topic_lag_records", text, lag.records, of_topic)
                text = "About how many bytes these have as they are stored."
                yield Metric("hawser_spark_topic_lag_bytes", text, lag.bytes, of_topic)


def name_of(report: Mapping[str, Any]) -> str:
    """The query's name, else the beginning of its id."""
    return report.get("name") or str(report["id"])[:8]


def line_of(report: Mapping[str, Any]) -> str:
    """One line that describes a micro-batch."""
    lag, topics = lag_records(report), list(lags_of(report))
    parts = [
        name_of(report),
        *([f"hawser[{_names(topics)}]"] if topics else []),
        f"batch {report['batchId']:,}",
        f"{report.get('numInputRows') or 0:,} rows",
        f"{report.get('processedRowsPerSecond') or 0:,.0f} rows/s",
        *([] if lag is None else [f"lag {lag:,}"]),
        f"{_seconds(report):.2f} s",
    ]
    return "  ".join(parts)


def lag_records(report: Mapping[str, Any]) -> int | None:
    """Records that its sources had when the micro-batch was planned and that are not in it; None if no source
    tells."""
    lags = [_distance(_loaded(each.get("endOffset")), _loaded(each.get("latestOffset")))
            for each in report.get("sources") or ()]  # fmt: skip
    told = [lag for lag in lags if lag is not None]
    return sum(told) if told else None


def lags_of(report: Mapping[str, Any]) -> dict[str, Lag]:
    """The lag of each topic that a Hawser source has read."""
    lags: dict[str, Lag] = {}
    for source in report.get("sources") or ():
        latest = _loaded(source.get("latestOffset"))
        for topic, place in sorted(latest.items()) if isinstance(latest, dict) else ():
            lag = place.get("lag") if isinstance(place, dict) else None
            if isinstance(lag, dict):
                records, size = lags.get(topic, Lag(0, 0))
                lags[topic] = Lag(records + lag["records"], size + lag["bytes"])
    return lags


def _names(topics: list[str]) -> str:
    more = len(topics) - _MOST_NAMES
    return ", ".join(topics[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _loaded(offset: Any) -> Any:
    """An offset as decoded JSON; Spark passes it as text or decoded."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


def _distance(end: Any, latest: Any) -> int | None:
    """The distance between two offsets, over all numbers that both have in the same place."""
    if isinstance(end, int) and isinstance(latest, int):
        return max(0, latest - end)
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    parts = [_distance(end.get(key), value) for key, value in latest.items()]
    told = [part for part in parts if part is not None]
    return sum(told) if told else None


def _seconds(report: Mapping[str, Any]) -> float:
    milliseconds = (
        (report.get("durationMs") or {}).get("triggerExecution") or report.get("batchDuration") or 0
    )
    return float(milliseconds) / 1000
