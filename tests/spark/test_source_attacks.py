"""What happens around a query while it reads: retention, nodes that go, workers and drivers killed."""

import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

import hawser
from hawser.bench.spark.source import python_workers
from hawser.spark.source import factory, task
from hawser.spark.source.batch import BatchReader
from tests.support.cluster import RunningCluster
from tests.support.source import (
    Barrier,
    follow,
    land,
    landed,
    trim,
    wait_for,
)
from tests.support.spark import SMALL

# More than all buffers between a node and a task that does not read.
LARGE, MANY = 200_000, 300
PATIENCE_SECONDS = 300.0


@pytest.fixture(autouse=True)
def rows_flow(spark: SparkSession) -> Iterator[None]:
    """Spark hands on a few rows at a time, so that whoever waits for rows makes the source wait."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "5")
    yield
    spark.conf.unset(name)


def filled(bus: hawser.Bus, name: str) -> hawser.Topic[Any]:
    """A topic that no task reads at once."""
    topic = bus.topic(name)
    for _ in range(MANY // 10):
        topic.publish_many([bytes(LARGE)] * 10)
    return topic


def can_create(bus: hawser.Bus) -> bool:
    """Whether the operator has all the nodes that a topic needs."""
    try:
        bus.topic("probe").delete()
    except hawser.Rejected:
        return False
    return True


def everything(topic: hawser.Topic[Any]) -> list[tuple[str, int, int]]:
    return [(topic.name, 0, offset) for offset in range(1, topic.info().partitions[0].end)]


def test_the_leader_goes_in_mid_read(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = filled(bus, "leaderless")
    barrier = Barrier(tmp_path)
    query = land(barrier.through(follow(spark, cluster.url, topic.name)), tmp_path)
    barrier.wait_until_reached()
    leader = topic.info().partitions[0].leader
    assert leader is not None
    cluster.stop(leader)
    try:
        barrier.open()
        query.awaitTermination()
    finally:
        cluster.start(leader)
        wait_for(partial(can_create, bus), "the node's return")
    assert landed(spark, tmp_path) == everything(topic)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_retention_races_a_slow_query(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path, fails: bool
) -> None:
    topic = filled(bus, f"raced-{fails}")
    kept = MANY - 20
    barrier = Barrier(tmp_path)
    data = follow(spark, cluster.url, topic.name, failOnDataLoss=fails)
    query = land(barrier.through(data), tmp_path)
    barrier.wait_until_reached()
    trim(cluster, topic, kept)
    barrier.open()
    if fails:
        words = rf"topic '{topic.name}', partition 0: records \d+ to {kept - 1} \(\d+\) are no longer kept"
        with pytest.raises(Exception, match=words):
            query.awaitTermination()
    else:
        query.awaitTermination()
        offsets = [offset for _, _, offset in landed(spark, tmp_path)]
        first_lost = next(offset for offset in range(1, kept + 1) if offset not in offsets)
        assert first_lost < kept
        assert offsets == [*range(1, first_lost), *range(kept, MANY + 1)]


def test_lost_ranges_are_logged_exactly(
    cluster: RunningCluster, bus: hawser.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """What a task does, here in this process: what was read and what was logged is all there was."""
    topic = filled(bus, "logged")
    given = {"endpoints": cluster.url, "subscribe": topic.name, "failOnDataLoss": "false"}
    schema = factory.schema(given)
    assert not isinstance(schema, str)
    reader = factory.reader(given, schema)
    assert isinstance(reader, BatchReader)
    (split,) = reader.partitions()
    batches = reader.read(split)
    offsets = next(batches).column("offset").to_pylist()
    trim(cluster, topic, 201)
    with caplog.at_level(logging.WARNING, "hawser.spark.source"):
        for batch in batches:
            offsets += batch.column("offset").to_pylist()
    (line,) = [each.getMessage() for each in caplog.records if each.name == "hawser.spark.source"]
    first = next(offset for offset in range(1, 300) if offset not in offsets)
    words = f"topic 'logged', partition 0: records {first} to 200 ({201 - first}) are no longer kept"
    assert line.startswith(words)
    assert offsets == [*range(1, first), *range(201, MANY + 1)]


def test_a_topic_is_deleted_in_a_batch_that_has_to_be_read_again(
    cluster: RunningCluster, bus: hawser.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets are in the checkpoint: whoever starts the query again begins with them."""
    topic = bus.topic("forgotten")
    topic.publish_many([b"x"] * 10)
    given = {"endpoints": cluster.url, "subscribe": topic.name, "startingOffsets": "earliest"}
    schema = factory.schema(given)
    assert not isinstance(schema, str)
    reader = factory.stream_reader(given, schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    topic.delete()
    (split,) = reader.partitions(start, end)
    words = "topic 'forgotten', partition 0: records 1 to 10 (10) are no longer kept and were not read"
    with pytest.raises(hawser.OffsetOutOfRange, match=re.escape(words)):
        list(reader.read(split))
    careless = factory.stream_reader({**given, "failOnDataLoss": "false"}, schema)
    with caplog.at_level(logging.WARNING, "hawser.spark.source"):
        assert list(careless.read(split)) == []
    lines = [each.getMessage() for each in caplog.records if each.name == "hawser.spark.source"]
    assert lines == [f"{words}, because the topic was deleted"]


def test_a_limit_of_bytes_holds_behind_what_is_lost(cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = filled(bus, "weighed")
    given = {"endpoints": cluster.url, "subscribe": topic.name, "startingOffsets": "earliest"}
    schema = factory.schema(given)
    assert not isinstance(schema, str)
    reader = factory.stream_reader({**given, "failOnDataLoss": "false"}, schema)
    start = reader.initialOffset()
    trim(cluster, topic, 11)
    end = reader.latestOffset(start, ReadMaxBytes(30 * LARGE))
    assert 25 <= end[topic.name]["0"] - start[topic.name]["0"] <= 31


def test_a_limit_of_bytes_holds_where_records_grow(cluster: RunningCluster, bus: hawser.Bus) -> None:
    """A micro-batch is weighed by its first, its middle and its last records."""
    topic = bus.topic("growing", partitions=1)
    for size in [1] * 10 + [LARGE] * 60:
        topic.publish(bytes(size))
    given = {"endpoints": cluster.url, "subscribe": topic.name, "startingOffsets": "earliest"}
    schema = factory.schema(given)
    assert not isinstance(schema, str)
    reader = factory.stream_reader(given, schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(20 * LARGE))
    assert 15 <= end[topic.name]["0"] - start[topic.name]["0"] <= 20


def test_a_reader_that_skips_is_caught(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: ranges that end too early do not pass for whole."""
    topic = filled(bus, "skipped")
    found = task._found
    monkeypatch.setattr(task, "_found", lambda *given: list(found(*given))[:-1])
    given = {"endpoints": cluster.url, "subscribe": topic.name}
    schema = factory.schema(given)
    assert not isinstance(schema, str)
    reader = factory.reader(given, schema)
    with pytest.raises(AssertionError):
        list(reader.read(reader.partitions()[0]))


def test_a_worker_is_killed_in_mid_task(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path, record_property: Any
) -> None:
    """On one machine Spark tries no task twice: the query fails, and the next run has every record once."""
    topic = filled(bus, "killed")
    barrier = Barrier(tmp_path)
    query = land(barrier.through(follow(spark, cluster.url, topic.name)), tmp_path)
    barrier.wait_until_reached()
    workers = python_workers(spark)
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        query.awaitTermination()
    barrier.open()
    land(barrier.through(follow(spark, cluster.url, topic.name)), tmp_path).awaitTermination()
    assert landed(spark, tmp_path) == everything(topic)
    record_property("workers killed", len(workers))


def test_two_queries_on_one_checkpoint(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """In one session the second takes over; nothing is read twice or not at all."""
    topic = filled(bus, "shared")
    barrier = Barrier(tmp_path)
    first = land(barrier.through(follow(spark, cluster.url, topic.name)), tmp_path)
    barrier.wait_until_reached()
    barrier.open()
    second = land(barrier.through(follow(spark, cluster.url, topic.name)), tmp_path)
    second.awaitTermination()
    assert not first.isActive
    assert landed(spark, tmp_path) == everything(topic)


DRIVER = """
import sys
import hawser.spark
from tests.support.source import follow, land
url, directory, confs = sys.argv[1], sys.argv[2], eval(sys.argv[3])
from pathlib import Path
session = hawser.spark.session("driver", "local[2]", **confs)
data = follow(session, url, "driven", maxOffsetsPerTrigger=100, minPartitions=2)
land(data, Path(directory)).awaitTermination()
"""


def driver(cluster: RunningCluster, directory: Path) -> "subprocess.Popen[bytes]":
    """A driver with its JVM and all its workers in a session of their own."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.url, str(directory), repr(SMALL)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_driver_is_killed_and_started_again(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path, record_property: Any
) -> None:
    """Any moment will do, and two are tried: the table has every record once."""
    topic = bus.topic("driven", partitions=2)
    topic.publish_many([b"x"] * 3000, keys=[b"%d" % n for n in range(3000)])
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    chance = random.Random(seed)
    offsets = tmp_path / "checkpoint" / "offsets"
    kills = []
    for kill in range(2):
        process = driver(cluster, tmp_path)
        goal = 3 + 9 * kill + chance.randint(0, 7)
        try:
            wait_for((offsets / str(goal)).exists, f"micro-batch {goal}", PATIENCE_SECONDS)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        kills.append(goal)
    topic.publish_many([b"y"] * 500, keys=[b"%d" % n for n in range(500)])
    process = driver(cluster, tmp_path)
    try:
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    expected = sorted(
        ("driven", each.partition, offset)
        for each in topic.info().partitions
        for offset in range(1, each.end)
    )
    assert landed(spark, tmp_path) == expected
    record_property("killed in micro-batches", json.dumps(kills))
