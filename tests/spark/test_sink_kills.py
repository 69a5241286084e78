"""Drivers that are killed with all they have started, where it hurts most: every row is written once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hawser
from tests.support.cluster import RunningCluster
from tests.support.sink import copy, counted, prepared
from tests.support.source import wait_for
from tests.support.spark import SMALL

DRIVER = """
import sys
from pathlib import Path
import hawser.spark
from tests.support.sink import copy
url, directory, confs = sys.argv[1], Path(sys.argv[2]), eval(sys.argv[3])
# A task that fails is tried again.
session = hawser.spark.session("driver", "local[2,3]", **confs)
copy(session, url, "driven", directory, topic="driven/copy").awaitTermination()
"""


class Driver:
    """With its JVM and all its workers in a session of their own."""

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self._log = directory / "driver.log"
        with self._log.open("ab") as log:
            command = [sys.executable, "-c", DRIVER, cluster.url, str(directory), repr(SMALL)]
            self._process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        def look() -> Any:
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
            return condition()

        wait_for(look, what, 240)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drivers_are_killed_around_the_decision(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path, record_property: Any
) -> None:
    source, target = bus.topic("driven", partitions=2), bus.topic("driven/copy", partitions=3)
    values = [b"%d" % number for number in range(300)]
    source.publish_many(values, keys=values)
    notes = tmp_path / "checkpoint" / "commits"

    # Between prepare and decision: one task has prepared, the other is held up, after its first attempt
    # failed.
    (tmp_path / "hold").touch()
    (tmp_path / "fail").touch()
    driver = Driver(cluster, tmp_path)
    try:
        driver.wait_for(lambda: prepared(cluster.url) and (tmp_path / "held").exists(), "a prepared task")
    finally:
        driver.kill()
    assert counted(target) == Counter() and not (notes / "0").exists()
    orphans = prepared(cluster.url)
    assert orphans

    # As soon as there is something to read: Spark may not have noted yet that it has committed.
    (tmp_path / "hold").unlink()
    driver = Driver(cluster, tmp_path)
    try:
        driver.wait_for(lambda: sum(each.end - each.start for each in target.info().partitions), "a row")
    finally:
        driver.kill()
    record_property("orphans", orphans)
    record_property("batches noted at the second kill", len(list(notes.glob("[0-9]*"))))

    (tmp_path / "fail").unlink()
    copy(spark, cluster.url, "driven", tmp_path, topic="driven/copy").awaitTermination()
    assert counted(target) == Counter(values)
    wait_for(lambda: not prepared(cluster.url), "the end of all branches")
