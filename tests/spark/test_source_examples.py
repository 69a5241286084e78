"""The examples for Spark and what its guide shows, run to their end in the session of the tests."""

import re
import runpy
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import hawser
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "spark").glob("*.py"))
LAST_LINES = {
    "batch_query.py": "anna ordered 10 times, for 235.00",
    "exactly_once.py": "run 2: anna 50, bert 40",
    "land_in_delta.py": "run 2: 1,000 orders in version 2",
    "notebook.py": "200 clicks on 4 pages",
    "streaming_aggregation.py": "run 2: sensor 0 1140, sensor 1 1180, sensor 2 1220",
}


def test_all_examples_are_known() -> None:
    assert [path.name for path in EXAMPLES] == sorted(LAST_LINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(
    spark: SparkSession,
    cluster: RunningCluster,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", [str(path), cluster.url])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == LAST_LINES[path.name]
    with hawser.connect(cluster.url) as bus:
        assert bus.topics() == []


def test_the_guide_runs(
    spark: SparkSession,
    cluster: RunningCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guide = (ROOT / "docs" / "howto" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 4
    with LocalBus() as local, hawser.connect(local.url) as here, cluster.connect() as bus:
        here.topic("frames").publish(b"frame")
        orders = bus.topic("orders", partitions=2)
        orders.publish(msgspec.json.encode({"id": 1, "price": 2.5, "tags": ["a"]}))
        orders.publish(b"poison")
        names = {"url": cluster.url, "directory": str(tmp_path)}
        for block in blocks:
            # Spark was started before this domain was there, and knows another one as the usual.
            exec(compile(block.replace("shm://", local.url), "spark.md", "exec"), names)
        assert capsys.readouterr().out.splitlines()[-1] == "1"
        assert spark.read.parquet(str(tmp_path / "table")).count() == 2
        orders.delete()


def test_the_guide_to_writing_runs(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    guide = (ROOT / "docs" / "howto" / "spark-writing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 3
    totals, work, done = bus.topic("totals", partitions=2), bus.queue("work"), bus.topic("done")
    names = {"url": cluster.url, "directory": str(tmp_path)}
    for block in blocks:
        exec(compile(block, "spark-writing.md", "exec"), names)
    assert done.info().partitions[0].end == 1001
    totals.delete()
    work.delete()
    done.delete()
