"""A landing that is killed again and again: driver, command or both, at random moments. Every record once."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.coverage import coverage
from hawser.spark.pipelines.report.landing_summary import summarize
from hawser.spark.pipelines.topics import PartitionEnds
from tests.spark.landing import Landing
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.spark import need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PATIENCE_SECONDS = 180.0
ARGUMENTS = ("--topic", "orders", "--every", "0", "--conf", "spark.driver.memory=1g", "--conf")
SMALL_BATCHES = "spark.hawser.batch.records=500"


class Publishers:
    """Publishes as long as its block lasts, and knows the places it was told."""

    def __init__(self, bus: hawser.Bus) -> None:
        self._topic = bus.topic("orders", partitions=2, replication=1)
        self.sent: set[tuple[int, int]] = set()
        self._is_over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._publish)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _publish(self) -> None:
        number = 0
        while not self._is_over.wait(0.05):
            values = [b"order %d" % each for each in range(number, number + 20)]
            number += len(values)
            for receipt in self._topic.publish_many(values):
                first = receipt.first_offset
                self.sent.update((receipt.partition, first + place) for place in range(receipt.count))


def _java_of(command: int) -> int | None:
    """The Spark that the command has started."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == command and "(java)" in stat:
                return int(name)
    return None


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, f"the run ended with {process.returncode}"
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.02)


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_at_random_moments(tmp_path: Path, rounds: int, record_property: Any) -> None:
    need_java()
    chance = random.Random(1)
    kills: Counter[str] = Counter()
    with RunningCluster(tmp_path / "cluster", nodes=1) as cluster:
        publishers = Publishers(cluster.connect("publisher", timeout=PATIENCE_SECONDS))
        landing = Landing(tmp_path / "landing", cluster.url)
        with publishers.at_work():
            for victim in ("command", "spark") * rounds:
                before = tables.count(landing.directory, "raw")
                process = landing.begin(*ARGUMENTS, SMALL_BATCHES)
                try:
                    _until(lambda before=before: tables.count(landing.directory, "raw") > before, process)  # type: ignore[misc]
                    time.sleep(chance.uniform(0.0, 2.0))
                    java = _java_of(process.pid)
                    assert java is not None
                    os.kill(process.pid if victim == "command" else java, signal.SIGKILL)
                    kills[victim] += 1
                    until(lambda java=java: not _lives(java), "the end of Spark")  # type: ignore[misc]
                    code = process.wait(PATIENCE_SECONDS)
                    assert code == (-signal.SIGKILL if victim == "command" else 4), code
                finally:
                    process.kill()
                    process.wait()
        done = landing.run("--topic", "orders")
        assert "whole: every record once" in done.stderr
        _compare(landing, cluster, publishers)
    record_property("kills", dict(kills))
    record_property("records", len(publishers.sent))
    _canaries(landing, tmp_path / "copy")


def _compare(landing: Landing, cluster: RunningCluster, publishers: Publishers) -> None:
    with cluster.connect().topic("orders", create=False).subscribe(start="earliest") as subscription:
        log: dict[tuple[int, int], bytes] = {}
        while len(log) < len(publishers.sent):
            for sample in subscription.take_many(1000, timeout=30):
                log[sample.partition, sample.offset] = bytes(sample.data)
    rows = landing.rows("raw", "partition", "offset", "value")
    assert len(rows) == len(log) == len(publishers.sent)
    assert {(row["partition"], row["offset"]): row["value"] for row in rows} == log
    assert log.keys() == publishers.sent
    assert sum(row["records"] for row in landing.rows("minutes")) == len(log)


def _canaries(landing: Landing, copy: Path) -> None:
    """The same files in a copy, listed rightly, with the first one left out, and with one listed twice: the
    verdict tells the three apart."""
    shutil.copytree(landing.directory / "tables" / "raw", copy / "tables" / "raw")
    ends = [
        PartitionEnds(
            topic=each.topic,
            topic_uuid=each.topic_uuid,
            partition=each.partition,
            start=1,
            end=each.last + 1,
        )
        for each in coverage(landing.directory, "raw")
    ]
    files = sorted(
        tables.files(landing.directory, "raw"), key=lambda each: tables.content(each.path).bounds["offset"]
    )
    assert len(files) > 2
    for listed, missing, doubled in (
        (files, 0, 0),
        (files[1:], tables.content(files[0].path).rows, 0),
        ([*files, files[1]], 0, tables.content(files[1].path).rows),
    ):
        _list(copy / "tables" / "raw" / "_spark_metadata", listed)
        summary = summarize(copy, ends, 0.0)
        found = [each.landed for each in summary.partitions]
        assert sum(each.size for one in found for each in one.missing) == missing
        assert sum(each.size for one in found for each in one.doubled) == doubled
        assert summary.is_whole == (missing == doubled == 0)


def _list(lists: Path, files: list[tables.DataFile]) -> None:
    """Let these files, and no others, be committed."""
    shutil.rmtree(lists)
    lists.mkdir()
    lines = [
        msgspec.json.encode(
            {"path": each.path.as_uri(), "modificationTime": each.written_ms, "action": "add"}
        )
        for each in files
    ]
    (lists / "0").write_bytes(b"\n".join([b"v1", *lines]))
