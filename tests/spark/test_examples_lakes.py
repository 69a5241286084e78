"""The example that lands in a Delta table, killed on both sides of the table's commit: every record once."""

import os
import runpy
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType
from pyspark.sql import SparkSession

import hawser
from tests.support.cluster import RunningCluster
from tests.support.spark import SMALL

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark" / "land_in_delta.py"
BATCHES = 3
DRIVER = """
import os, runpy, signal, sys
from pathlib import Path
from deltalake import DeltaTable
import hawser.spark
example, url, directory, kill, confs = *sys.argv[1:5], eval(sys.argv[5])
commit = DeltaTable.create_write_transaction

def commit_and_die(*arguments, **options):
    if kill == "after":
        commit(*arguments, **options)
    os.killpg(0, signal.SIGKILL)

DeltaTable.create_write_transaction = commit_and_die
session = hawser.spark.session("lake", "local[2]", **confs)
runpy.run_path(example)["land"](session, url, "lake", Path(directory), maxOffsetsPerTrigger="100")
"""


def run_and_be_killed(cluster: RunningCluster, directory: Path, when: str) -> None:
    """Run a driver, which is killed with its JVM around its first commit of the table."""
    log = directory / "driver.log"
    command = [sys.executable, "-c", DRIVER, str(EXAMPLE), cluster.url, str(directory), when, repr(SMALL)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
        try:
            status = process.wait(240)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert status == -signal.SIGKILL, log.read_text(errors="replace")[-3000:]


def landed(table: Path) -> Counter[bytes]:
    """How often each value is in the table."""
    return Counter(DeltaTable(table).to_pyarrow_table().column("value").to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_killed_before_and_after_the_tables_commit(
    spark: SparkSession,
    cluster: RunningCluster,
    bus: hawser.Bus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    topic = bus.topic("lake", partitions=2)
    values = [b"%d" % number for number in range(BATCHES * 100)]
    topic.publish_many(values, keys=values)
    commits = tmp_path / "checkpoint" / "commits"
    path = tmp_path / "table"

    run_and_be_killed(cluster, tmp_path, "before")
    assert DeltaTable(path).version() == 0, "the files are there, the table does not name them"
    run_and_be_killed(cluster, tmp_path, "after")
    assert DeltaTable(path).version() == 1 and not list(commits.glob("[0-9]*")), "Spark has not noted it"
    land = runpy.run_path(str(EXAMPLE))["land"]
    land(spark, cluster.url, "lake", tmp_path, maxOffsetsPerTrigger="100")

    table = DeltaTable(path)
    assert landed(path) == Counter(values)
    assert table.version() == BATCHES, "a commit for each batch, none for the replay"
    orphans = {file.resolve() for file in path.glob("batch-*/*.parquet")} - {
        Path(name).resolve() for name in table.file_uris()
    }
    assert orphans, "the first kill left files behind"
    record_property("files that no commit names", len(orphans))

    # The canary: a table that is not asked takes the last batch twice, once Spark has forgotten it.
    (commits / f"{BATCHES - 1}").unlink()
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda table, application: None)
    land(spark, cluster.url, "lake", tmp_path, maxOffsetsPerTrigger="100")
    assert sorted(landed(path).values()) == [1] * (len(values) - 100) + [2] * 100
    topic.delete()


def test_of_two_programs_that_run_one_batch_the_second_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, Schema([Field("value", PrimitiveType("binary"))]))
    first, second = DeltaTable(tmp_path), DeltaTable(tmp_path)
    once = CommitProperties(app_transactions=[Transaction("query", 0)])
    first.create_write_transaction([], "append", first.schema(), commit_properties=once)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        second.create_write_transaction([], "append", second.schema(), commit_properties=once)
    assert DeltaTable(tmp_path).transaction_version("query") == 0
