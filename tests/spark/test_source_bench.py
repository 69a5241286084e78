"""The measuring code of the source, on little data. Nothing here judges a time."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hawser.bench.plan import Plan
from hawser.bench.spark import source as bench
from tests.support.cluster import RunningCluster

ROWS = 8_000


@pytest.mark.slow
def test_every_figure(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "MICRO_BATCHES", 3)
    monkeypatch.setattr(bench, "WARM_BATCHES", 1)
    monkeypatch.setattr(Plan, "repeats", 1)
    plan = Plan(tmp_path, quick=True)
    bench.fill(plan, cluster.url, "rows", ROWS)
    rows = [
        bench.memory(plan, spark, cluster.url, ROWS),
        *bench.reading(plan, spark, cluster.url, ROWS, tmp_path),
        bench.micro_batches(plan, spark, cluster.url, tmp_path),
    ]
    assert [row.unit for row in rows] == ["B", "rows/s", "rows/s", "ns"]
    assert all(row.value > 0 and all(row.compared.values()) for row in rows)
    assert [bool(row.targets) for row in rows] == [True, True, False, True]


def test_a_machine_without_spark_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("hawser.spark.requirements._installed", lambda name: "0.1")
    assert list(bench.spark(Plan(tmp_path, tell=told.append))) == []
    (line,) = told
    assert line.startswith("spark is left out: Spark cannot be used here: pyspark is 0.1")
