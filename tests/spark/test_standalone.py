"""A real Spark cluster runs the same programs as this machine does, and loses executors on the way."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hawser.spark.pipelines import tables
from tests.spark import query_program
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.spark import SMALL_EXECUTORS, StandaloneCluster, need_java, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 9000
LIMIT_SECONDS = 200
LOOK_SECONDS = 0.05


@pytest.fixture(scope="module")
def standalone(module_path: Path) -> Iterator[StandaloneCluster]:
    need_java()
    with standalone_cluster(module_path / "standalone") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(module_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(module_path / "cluster") as cluster:
        topic = cluster.connect("publisher").topic("orders", partitions=2)
        topic.publish_many([f"message {number}".encode() for number in range(MESSAGES)])
        yield cluster


def test_a_query_loses_an_executor(
    standalone: StandaloneCluster,
    source: RunningCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Killed between two micro-batches or in one: every record is in the files once."""
    words = [query_program.__file__, standalone.master, source.url, "orders", str(tmp_path)]
    log = (tmp_path / "log").open("wb")
    with log, subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=log) as query:
        commits = tmp_path / "checkpoint" / "commits"

        def committed() -> int:
            assert query.poll() is None, (tmp_path / "log").read_text()[-3000:]
            return sum(path.name.isdigit() for path in commits.glob("*"))

        try:
            until(
                lambda: committed() >= 2 and len(standalone.executors) == 2, "two micro-batches and workers"
            )
            at = committed()
            victim = standalone.kill_executor()
            output, _ = query.communicate(timeout=LIMIT_SECONDS)
        finally:
            query.kill()
    assert query.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert victim not in standalone.executors
    assert json.loads(output) == dict.fromkeys(("rows", "offsets", "messages"), MESSAGES)
    batches = sum(path.name.isdigit() for path in commits.glob("*"))
    assert batches > at, "the query went on without the one that was killed"
    record_property("micro-batches", batches)
    record_property("of them before the executor was killed", at)
    record_property("records in the files", json.loads(output)["rows"])


def test_the_landing_pipeline_runs_unchanged(
    standalone: StandaloneCluster,
    source: RunningCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """With an executor killed on the way."""
    until(lambda: not standalone.executors, "the end of other executors")
    tables_directory, log = tmp_path / "tables", tmp_path / "log"
    words = [sys.executable, "-m", "hawser", "pipeline", "run", "landing", "--dir", str(tables_directory)]
    words += ["--url", source.url, "--topic", "orders", "--master", standalone.master]
    words += [word for name, value in SMALL_EXECUTORS.items() for word in ("--conf", f"{name}={value}")]
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output) as run:
        try:
            # Spark takes its time to start, so as long as it runs there is hope.
            while run.poll() is None and not standalone.executors:
                time.sleep(LOOK_SECONDS)
            assert run.poll() is None, log.read_text()[-3000:]
            victim = standalone.kill_executor()
            code = run.wait(LIMIT_SECONDS)
        finally:
            run.kill()
    assert code == 0, log.read_text()[-3000:]
    assert victim not in standalone.executors
    record_property("records landed, each once", check_landed(tables_directory))


def check_landed(directory: Path) -> int:
    """How many records are in the raw table; every one has to be there once."""
    rows = tables.read(directory, "raw", ["partition", "offset", "value"])
    places = set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert rows.num_rows == len(places) == len(set(rows["value"].to_pylist())) == MESSAGES
    return len(places)
