"""The measuring code of the sink, on little data. Nothing here judges a time."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hawser.bench.plan import Plan
from hawser.bench.spark import sink as bench
from hawser.bench.spark import source as source_bench
from tests.support.cluster import RunningCluster

ROWS = 8_000


@pytest.mark.slow
def test_every_figure(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_bench, "MICRO_BATCHES", 3)
    monkeypatch.setattr(source_bench, "WARM_BATCHES", 1)
    monkeypatch.setattr(Plan, "repeats", 1)
    plan = Plan(tmp_path, quick=True)
    bench.register(spark)
    rows = [
        bench.writing(plan, spark, cluster.url, ROWS, (bench.VALUE, bench.KEY)),
        bench.micro_batches(plan, spark, cluster.url, tmp_path),
    ]
    assert [row.unit for row in rows] == ["rows/s", "ns"]
    assert all(row.value > 0 and all(row.compared.values()) for row in rows)
    assert [len(row.targets) for row in rows] == [2, 1]
