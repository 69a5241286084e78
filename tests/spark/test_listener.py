"""A line and figures for each micro-batch, and queries that notice nothing of it."""

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hawser
import hawser.spark
from hawser.cluster.health import exposition
from hawser.spark.runtime import listener as listening
from hawser.spark.runtime.listener import Listener, listen
from hawser.spark.runtime.progress import Figures, lag_records, line_of
from tests.support.cluster import RunningCluster
from tests.support.etcd import free_ports
from tests.support.processes import page, until

REPORT: dict[str, Any] = {
    "id": "0f6b7a3e-5f5a-4a48-8d3c-1f4a0c8f0000",
    "name": "orders",
    "batchId": 12,
    "numInputRows": 1234,
    "processedRowsPerSecond": 5432.1,
    "durationMs": {"triggerExecution": 210},
    "stateOperators": [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}],
    "sources": [
        {
            "endOffset": {"orders": {"uuid": "5f", "0": 20, "1": 7}},
            "latestOffset": {
                "orders": {"uuid": "5f", "0": 23, "1": 7, "lag": {"records": 3, "bytes": 450}},
                "new": {"uuid": "60", "0": 9, "lag": {"records": 0, "bytes": 0}},
            },
        }
    ],
}


class Broken(io.StringIO):
    """A terminal that has gone away."""

    def write(self, text: str) -> int:
        raise OSError("the terminal is gone")


@pytest.fixture
def closing() -> Iterator[list[Listener]]:
    """Listeners to be closed."""
    listeners: list[Listener] = []
    yield listeners
    for each in listeners:
        each.close()


def numbers(spark: SparkSession, directory: Path, *, files: int = 3) -> Any:
    """A stream of files, one in a micro-batch."""
    for number in range(files):
        (directory / "in").mkdir(parents=True, exist_ok=True)
        (directory / "in" / f"{number}.txt").write_text("a\nb\n")
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "in"))


def run(stream: Any, directory: Path, name: str) -> Any:
    """A query over all that is there, to its end."""
    sink = stream.writeStream.format("noop").queryName(name).trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(directory / "checkpoint")).start()
    query.awaitTermination()
    return query


def test_a_line_says_what_a_person_asks() -> None:
    told = "batch 12  1,234 rows  5,432 rows/s  lag 3  0.21 s"
    assert line_of(REPORT) == f"orders  hawser[new, orders]  {told}"
    many = {f"t{number}": {"0": 1, "lag": {"records": 0, "bytes": 0}} for number in range(5)}
    line = line_of({**REPORT, "sources": [{"latestOffset": many}]})
    assert line.startswith("orders  hawser[t0, t1, t2 and 2 more]  batch 12")
    bare = {"id": REPORT["id"], "batchId": 0, "sources": [{"latestOffset": None, "endOffset": "x"}]}
    assert line_of(bare) == "0f6b7a3e  batch 0  0 rows  0 rows/s  0.00 s"


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([], None),
        ([{"endOffset": '{"t": {"0": 5}}', "latestOffset": '{"t": {"0": 9}}'}], 4),
        ([{"endOffset": '{"t": {"0": 9}}', "latestOffset": '{"t": {"0": 5}}'}], 0),
        ([{"endOffset": "5", "latestOffset": 9}, {"endOffset": None, "latestOffset": None}], 4),
        ([{"endOffset": [1], "latestOffset": [2]}], None),
        ([{"endOffset": "not JSON", "latestOffset": "7"}], None),
    ],
)
def test_lag_is_counted_in_records(sources: list[dict[str, Any]], lag: int | None) -> None:
    assert lag_records({"sources": sources}) == lag


def test_totals_grow_over_the_runs_of_a_query() -> None:
    figures = Figures()
    figures.add(REPORT)
    figures.add({**REPORT, "batchId": 0, "numInputRows": 6})
    text = exposition(figures.metrics())
    for line in (
        'hawser_spark_batches_total{query="orders"} 2',
        'hawser_spark_rows_total{query="orders"} 1240',
        'hawser_spark_dropped_rows_total{query="orders"} 6',
        'hawser_spark_batch{query="orders"} 0',
        'hawser_spark_lag_records{query="orders"} 3',
        'hawser_spark_topic_lag_records{query="orders",topic="orders"} 3',
        'hawser_spark_topic_lag_bytes{query="orders",topic="orders"} 450',
        'hawser_spark_topic_lag_bytes{query="orders",topic="new"} 0',
        'hawser_spark_batch_seconds{query="orders"} 0.21',
    ):
        assert line in text.splitlines()


def test_lines_and_pages(
    spark: SparkSession, tmp_path: Path, closing: list[Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.StringIO()
    monkeypatch.setattr(sys, "stderr", lines)
    listener = listen(spark, progress=True, metrics="127.0.0.1:0")
    assert listener is not None
    closing.append(listener)
    run(numbers(spark, tmp_path), tmp_path, "letters")
    url = f"http://127.0.0.1:{listener.port}/metrics"
    until(lambda: 'hawser_spark_batches_total{query="letters"} 3' in page(url)[1], "three micro-batches")
    until(lambda: 'hawser_spark_running{query="letters"} 0' in page(url)[1], "the end")
    assert 'hawser_spark_rows_total{query="letters"} 6' in page(url)[1]
    said = lines.getvalue().splitlines()
    assert [line.split("  ")[:3] for line in said] == [
        ["letters", f"batch {number}", "2 rows"] for number in range(3)
    ]


def test_the_lag_of_topics(spark: SparkSession, tmp_path: Path, closing: list[Listener]) -> None:
    lines = io.StringIO()
    with RunningCluster(tmp_path / "cluster") as cluster:
        cluster.connect().topic("orders").publish_many([b"x"] * 10)
        topic = spark.readStream.format("hawser").option("endpoints", cluster.url)
        topic = topic.option("subscribe", "orders").option("startingOffsets", "earliest")
        closing.append(listener := Listener(spark, lines, None))
        run(topic.option("maxOffsetsPerTrigger", 4).load(), tmp_path, "lagging")
        until(lambda: lines.getvalue().count("\n") == 3, "three micro-batches")
    said = [line.split("  ")[:3] + line.split("  ")[5:6] for line in lines.getvalue().splitlines()]
    lags = enumerate(("lag 6", "lag 2", "lag 0"))
    assert said == [["lagging", "hawser[orders]", f"batch {number}", lag] for number, lag in lags]
    (lag,) = listener.figures.of("lagging").lags.values()
    assert (lag.records, lag.bytes) == (0, 0)


def test_a_query_that_fails_is_told_of(spark: SparkSession, tmp_path: Path, closing: list[Listener]) -> None:
    lines = io.StringIO()
    closing.append(listener := Listener(spark, lines, None))
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        run(numbers(spark, tmp_path, files=1).selectExpr("length(value) / 0"), tmp_path, "broken")
    until(lambda: "\n" in lines.getvalue(), "a line")
    assert listener.figures.of("broken").failures == 1
    (line,) = lines.getvalue().splitlines()
    assert line.startswith("broken  failed: ")


def test_a_listener_that_fails_hurts_nobody(
    spark: SparkSession, tmp_path: Path, closing: list[Listener], caplog: pytest.LogCaptureFixture
) -> None:
    closing.append(listener := Listener(spark, Broken(), None))
    with caplog.at_level(logging.WARNING, "hawser.spark"):
        query = run(numbers(spark, tmp_path), tmp_path, "unheard")
        until(lambda: listener.figures.of("unheard").batches == 3, "three micro-batches")
    assert query.exception() is None
    assert [record.message for record in caplog.records if record.name == "hawser.spark"] == [
        "the progress of a query could not be shown; the query continues"
    ]


def test_a_session_has_one_listener(spark: SparkSession, closing: list[Listener]) -> None:
    assert listen(spark, progress=False) is None
    first = listen(spark, progress=True)
    second = listen(spark, progress=True)
    assert first is not None and second is not None and second is not first
    assert hawser.spark.session() is spark
    assert listening._listeners[spark] is second
    second.close()
    assert not listening.is_heard(spark)


def test_an_address_that_cannot_be_had(spark: SparkSession) -> None:
    (port,) = free_ports(1)
    holder = listen(spark, metrics=f"127.0.0.1:{port}")
    assert holder is not None
    try:
        with pytest.raises(hawser.UsageError, match="cannot serve pages"):
            Listener(spark, None, f"127.0.0.1:{port}")
        with pytest.raises(hawser.UsageError):
            Listener(spark, None, "nowhere")
    finally:
        holder.close()
