"""Topics as a stream: limits, restarts, topics that come, go and come again, marks, lag."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType

import hawser
from hawser.spark.connection import connection
from hawser.spark.source.columns import full_schema
from hawser.spark.source.options import Options
from hawser.spark.source.stream import StreamReader
from tests.support.cluster import RunningCluster
from tests.support.source import follow, land, landed, trim, wait_for


def done(query: StreamingQuery) -> StreamingQuery:
    query.awaitTermination()
    return query


def rows_of(query: StreamingQuery) -> list[int]:
    """How many rows each micro-batch had."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def all_of(*topics: hawser.Topic[Any]) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of all records, sorted."""
    return sorted(
        (topic.name, each.partition, offset)
        for topic in topics
        for each in topic.info().partitions
        for offset in range(each.start, each.end)
    )


def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("resumed", partitions=3)
    topic.publish_many([b"a"] * 100, keys=[b"%d" % n for n in range(100)])
    data = follow(spark, cluster.url, "resumed")
    assert rows_of(done(land(data, tmp_path))) == [100]
    assert landed(spark, tmp_path) == all_of(topic)
    assert rows_of(done(land(data, tmp_path))) == []
    topic.publish_many([b"b"] * 50, keys=[b"%d" % n for n in range(50)])
    assert rows_of(done(land(data, tmp_path))) == [50]
    assert landed(spark, tmp_path) == all_of(topic)
    offsets = json.loads((tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1])
    ends = {str(each.partition): each.end for each in topic.info().partitions}
    assert offsets["resumed"].pop("terms").keys() == ends.keys()
    assert offsets == {"resumed": {"uuid": topic.info().uuid, **ends}}


def test_a_limit_of_records(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("limited", partitions=3)
    topic.publish_many([b"a"] * 1000)
    topic.publish_many([b"b"] * 90, keys=[b"%d" % n for n in range(90)])
    data = follow(spark, cluster.url, "limited", maxOffsetsPerTrigger=300, minPartitions=4)
    assert rows_of(done(land(data, tmp_path))) == [300, 300, 300, 190]
    assert landed(spark, tmp_path) == all_of(topic)


def test_a_limit_of_bytes(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("weighed")
    topic.publish_many([bytes(1000)] * 200)
    data = follow(spark, cluster.url, "weighed", maxBytesPerTrigger=50_000)
    rows = rows_of(done(land(data, tmp_path)))
    assert sum(rows) == 200 and 30 <= rows[0] <= 50
    assert landed(spark, tmp_path) == all_of(topic)


def test_few_records_wait_for_more(cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("few")
    given = {"endpoints": cluster.url, "subscribe": "few", "startingOffsets": "earliest"}

    def reader(**more: str) -> StreamReader:
        options = Options.of(
            {**given, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", **more}, streaming=True
        )
        return StreamReader(options, full_schema(options, BinaryType()))

    topic.publish_many([b"a"] * 5)
    patient = reader()
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    first = patient.latestOffset(patient.initialOffset(), limit)
    assert first["few"]["0"] == 6, "the first one of a run does not wait"
    topic.publish_many([b"b"] * 9)
    assert patient.latestOffset(first, limit) == first
    assert patient.latestOffset(first, ReadAllAvailable())["few"]["0"] == 15, "Trigger.Once"
    at_once = reader()
    at_once.prepareForTriggerAvailableNow()
    second = at_once.latestOffset(first, limit)
    assert second["few"]["0"] == 15
    assert at_once.latestOffset(second, limit) == second
    topic.publish(b"c")
    assert patient.latestOffset(first, limit)["few"]["0"] == 16
    both = reader(maxOffsetsPerTrigger="12")
    assert both.getDefaultReadLimit() == ReadMaxRows(12)
    third = both.latestOffset(both.initialOffset(), ReadMaxRows(12))
    assert third["few"]["0"] == 13
    assert both.latestOffset(third, ReadMaxRows(12)) == third


def test_the_lag_of_each_topic(cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("lag/a").publish_many([bytes(1000)] * 10)
    bus.topic("lag/b", partitions=2)
    given = {"endpoints": cluster.url, "subscribe": "lag/a,lag/b", "startingOffsets": "earliest"}
    options = Options.of(given, streaming=True)
    reader = StreamReader(options, full_schema(options, BinaryType()))
    read = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    report = reader.reportLatestOffset()
    lag = report["lag/a"]["lag"]
    assert lag["records"] == 6 and 6000 <= lag["bytes"] <= 7000
    assert report["lag/b"]["lag"] == {"records": 0, "bytes": 0}
    assert (report["lag/a"]["0"], read["lag/a"]["0"]) == (11, 5)
    reader.latestOffset(read, ReadAllAvailable())
    assert reader.reportLatestOffset()["lag/a"]["lag"] == {"records": 0, "bytes": 0}
    again = Options.of({**given, "startingOffsets": json.dumps(report)}, streaming=False)
    assert again.start == {"lag/a": {0: 11}, "lag/b": {0: 1, 1: 1}}, "the progress of a query can be pasted"


def test_a_stream_begins_at_the_end_unless_told(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    topic = bus.topic("late")
    topic.publish_many([b"old"] * 10)
    data = follow(spark, cluster.url, "late", startingOffsets="latest")
    query = data.writeStream.format("memory").queryName("late").start()
    try:
        wait_for(lambda: query.lastProgress, "a first look")
        topic.publish_many([b"new"] * 5)
        wait_for(lambda: spark.table("late").count() == 5, "the new rows")
        (progress,) = wait_for(
            lambda: [each for each in query.recentProgress if each.numInputRows == 5], "what is told of them"
        )
        # How far behind a query is: what it has read beside what there is.
        assert json.loads(progress.sources[0].latestOffset)["late"]["0"] == 16
        assert json.loads(progress.sources[0].endOffset)["late"]["0"] == 16
    finally:
        query.stop()


def test_new_topics_of_a_pattern_are_read_from_their_beginning(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    first = bus.topic("pattern/a")
    first.publish_many([b"a"] * 10)
    data = follow(spark, cluster.url, None, subscribePattern="pattern/.*", startingOffsets="latest")
    assert rows_of(done(land(data, tmp_path))) == []
    first.publish_many([b"a"] * 3)
    second = bus.topic("pattern/b", partitions=2)
    second.publish_many([b"b"] * 20, keys=[b"%d" % n for n in range(20)])
    done(land(data, tmp_path))
    expected = [each for each in all_of(first) if each[2] > 10] + all_of(second)
    assert landed(spark, tmp_path) == expected


def test_a_topic_that_a_node_does_not_know_yet_is_not_taken_for_deleted(
    cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("known/a", "known/b"):
        bus.topic(name).publish_many([b"x"] * 10)
    given = {"endpoints": cluster.url, "subscribePattern": "known/.*", "startingOffsets": "earliest"}
    options = Options.of({**given, "failOnDataLoss": "false"}, streaming=True)
    schema = full_schema(options, BinaryType())
    read = StreamReader(options, schema).latestOffset(
        StreamReader(options, schema).initialOffset(), ReadAllAvailable()
    )
    assert set(read) == {"known/a", "known/b"}
    # A restart that is answered by a node with an older map.
    client = connection(options.endpoints)._client
    listed = client.topics

    async def older() -> list[str]:
        return [name for name in await listed() if name != "known/b"]

    monkeypatch.setattr(client, "topics", older)
    assert StreamReader(options, schema).latestOffset(read, ReadAllAvailable()) == read


def test_a_topic_that_is_left_out_may_be_deleted_and_made_anew(
    cluster: RunningCluster, bus: hawser.Bus
) -> None:
    """Its place stays in the checkpoint: every restart reported its loss, and failOnDataLoss=false, given for
    ever, would hide those of the topics that the query reads."""
    stays, leaves = bus.topic("choice/stays"), bus.topic("choice/leaves")
    for topic in stays, leaves:
        topic.publish(b"a")
    given = {"endpoints": cluster.url, "startingOffsets": "earliest"}
    both = Options.of({**given, "subscribe": "choice/stays,choice/leaves"}, streaming=True)
    one = Options.of({**given, "subscribe": "choice/stays"}, streaming=True)
    schema = full_schema(both, BinaryType())
    read = StreamReader(both, schema).latestOffset(
        StreamReader(both, schema).initialOffset(), ReadAllAvailable()
    )
    for change in leaves.delete, lambda: bus.topic("choice/leaves").publish(b"c"):
        change()
        stays.publish(b"b")
        following = StreamReader(one, schema).latestOffset(read, ReadAllAvailable())
        assert following["choice/stays"] != read["choice/stays"]
        assert following["choice/leaves"]["uuid"] == read["choice/leaves"]["uuid"]
        read = following
    with pytest.raises(hawser.OffsetOutOfRange, match="topic 'choice/leaves' was deleted and made anew"):
        StreamReader(both, schema).latestOffset(read, ReadAllAvailable())


def test_a_topic_made_anew_is_a_loss(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("remade")
    topic.publish_many([b"a"] * 10)
    done(land(follow(spark, cluster.url, "remade"), tmp_path))
    topic.delete()
    topic = bus.topic("remade")
    topic.publish_many([b"b"] * 4)
    with pytest.raises(
        Exception, match="topic 'remade' was deleted and made anew; what came behind offset 10"
    ):
        done(land(follow(spark, cluster.url, "remade"), tmp_path))
    done(land(follow(spark, cluster.url, "remade", failOnDataLoss=False, groupId="remade"), tmp_path))
    offsets = [offset for _, _, offset in landed(spark, tmp_path)]
    assert offsets == sorted([*range(1, 11), *range(1, 5)])


def test_a_deleted_topic_ends_a_query(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic, other = bus.topic("gone"), bus.topic("stays")
    topic.publish(b"a")
    data = follow(spark, cluster.url, "gone,stays")
    query = data.writeStream.format("memory").queryName("gone").start()
    try:
        wait_for(lambda: spark.table("gone").count() == 1, "the first row")
        topic.delete()
        other.publish(b"b")
        with pytest.raises(
            Exception, match=r"topic 'gone' was deleted; what came behind offset 1 of partition 0"
        ):
            query.awaitTermination(60)
    finally:
        query.stop()


def test_what_retention_took_between_two_runs(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("trimmed")
    topic.publish_many([b"a"] * 10)
    done(land(follow(spark, cluster.url, "trimmed"), tmp_path))
    topic.publish_many([b"b"] * 50)
    trim(cluster, topic, 31)
    with pytest.raises(
        Exception, match=r"topic 'trimmed', partition 0: records 11 to 30 \(20\) are no longer"
    ):
        done(land(follow(spark, cluster.url, "trimmed"), tmp_path))
    done(land(follow(spark, cluster.url, "trimmed", failOnDataLoss=False, minPartitions=4), tmp_path))
    assert [offset for _, _, offset in landed(spark, tmp_path)] == [*range(1, 11), *range(31, 61)]


def test_the_mark_of_a_query_holds_retention_back(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    topic = bus.topic("marked", partitions=2)
    topic.publish_many([b"a"] * 100, keys=[b"%d" % n for n in range(100)])
    ends = [each.end for each in topic.info().partitions]
    data = follow(spark, cluster.url, "marked", groupId="landing", maxOffsetsPerTrigger=40)
    done(land(data, tmp_path))

    def marks() -> list[int]:
        return [each.mark + 1 for each in topic.info().records if each.name.startswith("group:spark:landing")]

    # The last micro-batch of a run is never told; the next run begins with it.
    assert all(1 < mark <= end for mark, end in zip(marks(), ends, strict=True))
    behind = marks()[0]
    trim(cluster, topic, ends[0])
    assert topic.info().partitions[0].start == behind
    done(land(data, tmp_path))
    assert marks() == ends
    trim(cluster, topic, ends[0])
    assert topic.info().partitions[0].start == ends[0]
    assert landed(spark, tmp_path) == sorted(("marked", n, at) for n in (0, 1) for at in range(1, ends[n]))
    assert topic.forget("group:spark:landing")


def test_a_wrong_option_ends_a_stream_before_it_begins(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="there is no topic 'unheard-of'"):
        done(land(follow(spark, cluster.url, "unheard-of"), tmp_path))
    with pytest.raises(Exception, match="a stream has no end"):
        done(land(follow(spark, cluster.url, "unheard-of", endingOffsets="latest"), tmp_path))
