"""Queues as a stream: each message is taken by one query, and is in what it writes once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import hawser
from hawser.cluster.client.transaction.application_batch import ApplicationBatch, drop_branches
from hawser.spark.connection import connection
from hawser.spark.source.claims import Claim, Claims
from hawser.spark.source.offsets import Range
from hawser.spark.source.options import Options
from tests.support.cluster import RunningCluster
from tests.support.sink import begin, counted, held_up
from tests.support.source import wait_for


def taken(spark: SparkSession, url: str, queue: str, **options: Any) -> DataFrame:
    given = {"endpoints": url, "queue": queue, "claimName": "tests", **options}
    return spark.readStream.format("hawser").options(**given).load()


def filled(bus: hawser.Bus, name: str, count: int) -> tuple[hawser.Queue[Any], Counter[bytes]]:
    queue = bus.queue(name)
    values = [b"%d" % number for number in range(count)]
    queue.put_many(values)
    return queue, Counter(values)


def test_messages_are_taken_and_written_once(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """Also if the last batch is run again; and what somebody else holds is left to him."""
    queue, expected = filled(bus, "taken", 250)
    target = bus.topic("taken/copy", partitions=2)
    held = queue.get_many(3, timeout=30)
    mine = Counter(bytes(message.data) for message in held)
    data = taken(spark, cluster.url, "taken", maxOffsetsPerTrigger=100, minPartitions=2)
    rows = data.selectExpr("value", "CAST(offset AS STRING) AS key")
    begin(rows, cluster.url, tmp_path, topic="taken/copy").awaitTermination()
    assert counted(target) == expected - mine
    notes = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(notes) == 3
    queue.put_many([b"more"] * 5)
    begin(rows, cluster.url, tmp_path, topic="taken/copy").awaitTermination()
    assert counted(target) == expected - mine + Counter({b"more": 5})
    for message in held:
        message.accept()
    wait_for(lambda: not queue.info().used_bytes, "a queue without messages")
    # A task that comes too late is told, and reads nothing in their place.
    late = Range("taken", queue.info().uuid, 0, 4, 10)
    with pytest.raises(hawser.OffsetOutOfRange, match="message 4 of queue 'taken' is done"):
        list(connection(cluster.url).read_queue(late))


def test_a_query_that_stopped_has_what_it_claimed(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    queue, expected = filled(bus, "held", 40)
    target = bus.topic("held/copy")
    (tmp_path / "hold").touch()
    data = taken(spark, cluster.url, "held", minPartitions=2).select("value")
    query = begin(held_up(data, tmp_path), cluster.url, tmp_path, topic="held/copy")
    wait_for((tmp_path / "held").exists, "a task with a part of its rows")
    query.stop()
    assert queue.get(timeout=0) is None and counted(target) == Counter()
    (tmp_path / "hold").unlink()
    begin(held_up(data, tmp_path), cluster.url, tmp_path, topic="held/copy").awaitTermination()
    assert counted(target) == expected
    with pytest.raises(Exception, match="another query has claimed under this claimName"):
        queue.put(b"late")
        begin(data, cluster.url, tmp_path / "other", topic="held/copy").awaitTermination()
    message = queue.get(timeout=30)
    assert message is not None and bytes(message.data) == b"late"
    message.accept()


def test_a_claim_that_spark_never_heard_of_is_the_next(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """As if the driver was killed before it could write down what it had claimed."""
    _, expected = filled(bus, "unheard", 30)
    target = bus.topic("unheard/copy")
    reader = connection(cluster.url)
    entry = reader.open("unheard", "queue")

    async def claim() -> Claim | None:
        claims = Claims(reader.router, reader.coordinators, "unheard", entry, "tests", "nobody")
        made = await claims.make(1, 20, None, 3600)
        await claims.close()
        return made

    lost = reader.call(claim())
    assert lost is not None and lost.runs == ((1, 20),)
    # The attempt was given up, as when its orphan's time is over; another one gets the same messages.
    batch = ApplicationBatch(f"claim:{entry.uuid[:8]}:tests".encode(), b"", 1)
    reader.call(drop_branches(reader.router, reader.coordinators, batch, [lost.name]))
    made = reader.call(claim())
    assert made is not None and made.runs == lost.runs and made.name != lost.name
    data = taken(spark, cluster.url, "unheard").select("value")
    query = begin(data, cluster.url, tmp_path, topic="unheard/copy")
    query.awaitTermination()
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [20, 10]
    assert counted(target) == expected


def test_the_name_of_a_claim_says_what_it_has() -> None:
    claim = Claim(7, 1 << 30)
    offset = 1 << 40
    while (larger := claim.with_message(offset)) is not None:
        claim = larger
        assert Claim.of_name(claim.name) == claim and len(claim.name) <= 255
        # Every third message is somebody else's.
        offset += 1 + (offset % 3 == 0)
    assert len(claim.runs) > 50 and claim.with_message(offset + 1) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": "q"}, "needs a claimName"),
        ({"claimName": "c", "subscribe": "t"}, "claimName is for queues"),
        ({"queue": "q", "claimName": "c", "subscribe": "t"}, "subscribe is for topics"),
        ({"queue": "q", "claimName": "c", "startingOffsets": "earliest"}, "startingOffsets is for topics"),
        ({"queue": "q", "claimName": "c" * 151}, "claimName has 1 to 150 bytes"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], message: str) -> None:
    with pytest.raises(hawser.UsageError, match=message):
        Options.of({"endpoints": "127.0.0.1:7400", **given}, streaming=True)


def test_a_queue_is_no_batch() -> None:
    given = {"endpoints": "127.0.0.1:7400", "queue": "q", "claimName": "c"}
    with pytest.raises(hawser.UsageError, match="a queue is read as a stream"):
        Options.of(given, streaming=False)
