"""What changes between two runs of a pipeline: topics, tables, directories.

Each test compares the verdict, the exit code and the tables of a run with the log. A run that would lose or
repeat rows is refused and changes nothing.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.cli.pipeline.display import Lines
from hawser.spark.pipelines.directory import Place
from hawser.spark.pipelines.runner import Plan, Report, run
from hawser.spark.pipelines.server import _listens, server
from tests.spark.landing import Landing
from tests.support.cluster import RunningCluster
from tests.support.disks import small_disk
from tests.support.etcd import free_ports
from tests.support.source import trim
from tests.support.spark import SMALL, need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def remote(module_path: Path) -> Iterator[str]:
    need_java()
    with server("local[2]", module_path, module_path / "spark.log", SMALL) as running:
        yield running.url


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(module_path / "cluster", nodes=1) as running:
        yield running


@pytest.fixture
def bus(cluster: RunningCluster) -> Iterator[hawser.Bus]:
    with hawser.connect(cluster.url) as bus:
        yield bus


@pytest.fixture
def landing(tmp_path: Path, cluster: RunningCluster, remote: str) -> Landing:
    return Landing(tmp_path / "landing", cluster.url, remote)


def land(landing: Landing, *arguments: str) -> tuple[str, list[tuple[Any, ...]]]:
    """The verdict of a run that ends with 0, and the rows of `raw`."""
    verdict = json.loads(landing.run(*arguments, "-o", "json").stdout)["verdict"]
    return verdict, rows(landing)


def rows(landing: Landing) -> list[tuple[Any, ...]]:
    return [(each["topic"], each["offset"], each["value"]) for each in landing.rows("raw")]


def publish(topic: Any, values: range) -> list[tuple[Any, ...]]:
    (receipt,) = topic.publish_many([b"%d" % value for value in values])
    return [(topic.name, receipt.first_offset + place, b"%d" % value) for place, value in enumerate(values)]


def test_a_topic_is_deleted_and_created_anew(bus: hawser.Bus, landing: Landing) -> None:
    topic = bus.topic("anew", replication=1)
    first = publish(topic, range(10))
    assert land(landing, "--topic", "anew") == ("whole: every record once", first)
    topic.delete()
    second = publish(bus.topic("anew", replication=1), range(10, 12))
    assert "was deleted and made anew" in landing.run("--topic", "anew", code=2).stderr
    refused = landing.run("--topic", "anew", "--full-refresh", "raw", code=2)
    assert "records 1 to 10 of topic 'anew'" in refused.stderr and "--force" in refused.stderr
    assert rows(landing) == first

    both = sorted(first + second)
    verdict = "whole: every record once; of the deleted anew as far as it was landed"
    for force in ("--force",), ():
        assert land(landing, "--topic", "anew", *force) == (verdict, both)
    assert len({each["topic_uuid"] for each in landing.rows("minutes")}) == 2
    assert "records 1 to 10" in landing.run("--topic", "anew", "--full-refresh", "raw", code=2).stderr
    assert rows(landing) == both
    refreshed = land(landing, "--topic", "anew", "--full-refresh", "raw", "--force")
    assert refreshed == ("whole: every record once", second)


def test_a_topic_is_left_out_of_a_run(cluster: RunningCluster, bus: hawser.Bus, landing: Landing) -> None:
    """Its place is kept: nothing of it is landed twice, or lost."""
    stays, leaves = bus.topic("stays", replication=1), bus.topic("leaves", replication=1)
    both = ["--topic", "stays", "--topic", "leaves"]
    found = publish(stays, range(5)) + publish(leaves, range(5))
    assert land(landing, *both)[1] == sorted(found)
    for force in ((), ("--force",)):
        found += publish(stays, range(2))
        assert land(landing, "--topic", "stays", *force) == ("whole: every record once", sorted(found))
    refused = landing.run("--topic", "stays", "--full-refresh", "raw", code=2)
    assert "5 records of topic 'leaves', which this run does not read" in refused.stderr
    assert "Add --topic leaves" in refused.stderr
    found += publish(leaves, range(5, 8))
    assert land(landing, *both) == ("whole: every record once", sorted(found))
    trim(cluster, leaves, 3)
    refused = landing.run(*both, "--full-refresh", "raw", code=2)
    assert "records 1 to 2 of topic 'leaves'" in refused.stderr
    assert rows(landing) == sorted(found)


def test_the_schema_of_the_values_changes(bus: hawser.Bus, landing: Landing) -> None:
    """A record that the new schema does not fit moves from one table to the other: each is in one of them."""
    topic = bus.topic("typed", replication=1)
    topic.publish_many([b'{"id": 1}', b'{"id": 2}', b'{"id": "three"}'])

    def offsets(table: str) -> list[int]:
        return [row["offset"] for row in landing.rows(table, "offset")]

    def arguments(schema: str) -> list[str]:
        return ["--topic", "typed", "--value-format", "json", "--schema", schema]

    landing.run(*arguments("id bigint"))
    assert (offsets("typed"), offsets("bad")) == ([1, 2], [3])
    refused = landing.run(*arguments("id string"), code=2)
    assert "give the old type, or make the table anew with --full-refresh typed" in refused.stderr
    assert (offsets("typed"), offsets("bad")) == ([1, 2], [3])
    landing.run(*arguments("id string"), "--full-refresh", "typed")
    assert (offsets("typed"), offsets("bad")) == ([3], [1, 2])
    landing.run(*arguments("id bigint"), "--full-refresh", "bad")
    assert (offsets("typed"), offsets("bad")) == ([1, 2], [3])


def test_a_refused_run_leaves_the_report_of_the_other_one(bus: hawser.Bus, landing: Landing) -> None:
    publish(bus.topic("busy", replication=1), range(3))
    land(landing, "--topic", "busy")
    reports = [landing.directory / name for name in ("summary.json", "summary.html")]
    before = [report.read_bytes() for report in reports]
    with Place(landing.directory).lock():
        assert "in use by another run" in landing.run("--topic", "busy", code=4).stderr
    assert [report.read_bytes() for report in reports] == before


class _Unwritable(Report):
    """A report on a full disk."""

    def end(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def kept_environment() -> Iterator[None]:
    """For a run in this process: pyspark switches the process to Spark Connect by a variable."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("kept_environment")
@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_report_that_cannot_be_written_hides_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_java()
    (port,) = free_ports(1)
    place = Place(tmp_path / "landing")
    plan = Plan(place=place, remote=f"sc://127.0.0.1:{port}")
    with pytest.raises(hawser.Unavailable, match="no Spark Connect server answers"):
        run(plan, Lines(place), _Unwritable())
    assert "no report was written: [Errno 28] No space left on device" in capsys.readouterr().err


def test_a_full_disk_loses_no_row(
    bus: hawser.Bus, cluster: RunningCluster, remote: str, tmp_path: Path
) -> None:
    """The run fails; the next one, with room, lands what is missing."""
    topic = bus.topic("bulky", replication=1)
    with small_disk(tmp_path / "disk", "2m") as disk:
        landing = Landing(disk / "landing", cluster.url, remote)
        found = publish(topic, range(10))
        assert land(landing, "--topic", "bulky") == ("whole: every record once", found)
        receipts = [topic.publish(os.urandom(100_000)) for _ in range(40)]
        failed = landing.run("--topic", "bulky", code=None)
        assert failed.returncode not in (0, 7) and "Traceback" not in failed.stderr, failed
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        verdict, landed = land(landing, "--topic", "bulky")
    assert verdict == "whole: every record once"
    assert [row[1] for row in landed] == list(range(1, receipts[-1].first_offset + 1))


OWN = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
MODE = spark.conf.get("spark.hawser.mode")


def source():
    rows = spark.readStream.format("hawser").option("endpoints", spark.conf.get("spark.hawser.url"))
    rows = rows.option("subscribe", spark.conf.get("spark.hawser.topics"))
    return rows.option("startingOffsets", "earliest")


if MODE in ("renamed", "two"):
    dp.create_streaming_table("base", schema="offset bigint, value binary")

    @dp.append_flow(target="base")
    def renamed():
        return source().load().select("offset", "value")

    if MODE == "two":

        @dp.append_flow(target="base")
        def other():
            return source().load().select("offset", "value")

else:

    @dp.table(
        schema="offset bigint, value binary",
        partition_cols=["offset"] if MODE == "partitioned" else None,
        format="json" if MODE == "json" else None,
    )
    def base():
        return source().load().select("offset", "value")


if MODE == "view":

    @dp.materialized_view()
    def copy():
        return spark.read.table("base").select("offset")

else:

    @dp.table(schema="offset bigint")
    def copy():
        return spark.readStream.table("base").select("offset")
"""


class Own:
    """A pipeline of one's own: `base` from a topic and `copy` from `base`, in the modes of `OWN`."""

    def __init__(self, landing: Landing, topic: Any) -> None:
        self._landing = landing
        self._topic = topic
        self._file = landing.directory.with_name("own.py")
        self._file.write_text(OWN)

    def run(self, mode: str, *arguments: str, code: int = 0) -> str:
        """What it says."""
        conf = ["--topic", self._topic.name, "--conf", f"spark.hawser.mode={mode}"]
        return self._landing.run(str(self._file), *conf, *arguments, code=code).stderr

    def check(self) -> None:
        """Each table has each record of the topic once."""
        offsets = list(range(1, self._topic.info().head + 1))
        for table in ("base", "copy"):
            assert [row["offset"] for row in self._landing.rows(table)] == offsets, table


def test_a_table_is_filled_in_another_way(bus: hawser.Bus, landing: Landing) -> None:
    """A change that would lose rows is refused, and the way back loses none; a full refresh makes it."""
    topic = bus.topic("kinds", replication=1)
    own = Own(landing, topic)
    publish(topic, range(4))
    own.run("stream")
    publish(topic, range(4, 6))
    assert "copy was filled by a stream and is computed" in own.run("view", code=2)
    assert "base was filled by flow base and would be by renamed" in own.run("renamed", code=2)
    assert "base is filled by 2 flows, renamed, other" in own.run("two", "--full-refresh", "base", code=2)
    assert "base has format 'json'" in own.run("json", code=2)
    own.run("stream")
    own.check()
    for mode, refreshed in (("view", "copy"), ("stream", "copy"), ("renamed", "base")):
        publish(topic, range(2))
        if (mode, refreshed) == ("stream", "copy"):
            assert "copy was computed as a whole and is filled by a stream" in own.run(mode, code=2)
        own.run(mode, "--full-refresh", refreshed)
        own.check()
        assert not (landing.directory / "removed").exists()
        publish(topic, range(1))
        own.run(mode)
        own.check()


def test_a_partitioned_table_is_filled_run_after_run(bus: hawser.Bus, landing: Landing) -> None:
    topic = bus.topic("parts", replication=1)
    own = Own(landing, topic)
    for _ in range(2):
        publish(topic, range(3))
        own.run("partitioned")
        own.check()
    assert "conflicts with existing table partitioning" in own.run("stream", code=1)
    own.run("stream", "--full-refresh", "base")
    own.check()


def test_a_table_without_its_other_half_is_refused(bus: hawser.Bus, landing: Landing) -> None:
    """A checkpoint alone would lose the rows that were there; a table alone would skip the next batches."""
    topic = bus.topic("half", replication=1)
    own = Own(landing, topic)
    publish(topic, range(3))
    own.run("stream")
    place = Place(landing.directory)
    aside = landing.directory / "aside"
    for part in ("directory", "checkpoint"):
        (checkpoint,) = place.checkpoints_of("base")
        half = place.table("base") if part == "directory" else checkpoint
        half.rename(aside)
        publish(topic, range(2))
        assert f"the {part} of table base is gone" in own.run("stream", code=2)
        shutil.rmtree(half, ignore_errors=True)
        aside.rename(half)
        own.run("stream")
        own.check()
        half.rename(aside)
        own.run("stream", "--full-refresh", "base")
        own.check()
        shutil.rmtree(aside)


@pytest.mark.parametrize("has_own_socket", [True, False])
def test_a_port_of_another_process_is_not_the_servers(has_own_socket: bool) -> None:
    """The token is sent to the process that was started, and to no other."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        program = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        program += "print(s.getsockname()[1], flush=True); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                own = int(process.stdout.readline())
                assert _listens(process, own if has_own_socket else port) == has_own_socket
            finally:
                process.kill()
