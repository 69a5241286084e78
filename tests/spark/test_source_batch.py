"""Topics as a batch: every column, every way to say what is wanted, odd contents."""

import datetime
import json
import os
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hawser
from hawser.cluster import wire
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import GAP_HEADER, Gap, recorder_id
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster
from tests.support.source import read, trim

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NOON_NS = int(NOON.timestamp()) * 10**9


def publish(cluster: RunningCluster, topic: Any, records: list[Record], stamp: Stamp) -> None:
    """A batch as it is, of any producer."""
    info = topic.info().partitions[0]
    answer = cluster.ask(wire.Publish(info.shard, bytes(Batch.of(records, stamp).data)), info.leader)
    assert isinstance(answer, wire.Executed), answer


def test_every_column(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("columns", partitions=2)
    before = datetime.datetime.now(datetime.UTC)
    for number in range(20):
        headers = {"a": b"1", "b": b""} if number % 3 == 0 else None
        topic.publish(b"value %d" % number, key=b"%d" % number if number % 2 else None, headers=headers)
    data = read(spark, cluster.url, "columns", includeHeaders=True)
    assert data.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("producer", "string"),
        ("producer_sequence", "bigint"),
    ]
    rows = data.collect()
    assert len(rows) == 20
    found = {}
    for row in rows:
        number = int(bytes(row.value).split()[1])
        found[number] = row
        assert row.key == (b"%d" % number if number % 2 else None)
        expected = [("a", b"1"), ("b", b"")] if number % 3 == 0 else None
        assert (row.headers and [tuple(each) for each in row.headers]) == expected
        assert row.topic == "columns" and row.timestampType == 0 and row.producer.startswith("tests#")
        assert before.replace(tzinfo=None) - datetime.timedelta(seconds=1) <= row.timestamp
    assert sorted(found) == list(range(20))
    for partition in (0, 1):
        mine = sorted((row.offset, row.producer_sequence) for row in rows if row.partition == partition)
        assert [offset for offset, _ in mine] == list(range(1, len(mine) + 1))
        assert [sequence for _, sequence in mine] == sorted(sequence for _, sequence in mine)


def test_only_what_the_schema_has_is_built(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    bus.topic("projected").publish_many([b"x"] * 50)
    data = read(spark, cluster.url, "projected", "offset bigint NOT NULL, topic string")
    assert data.columns == ["offset", "topic"]
    assert sorted(row.offset for row in data.collect()) == list(range(1, 51))
    for schema, words in (
        ("offset int", "column offset is bigint, not int"),
        ("price double", "no column 'price'"),
        ("headers array<struct<key:string,value:binary>>", "needs option includeHeaders"),
    ):
        with pytest.raises(Exception, match=words):
            read(spark, cluster.url, "projected", schema).collect()


def test_a_recorder_and_its_gaps(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    """`producer_sequence` is the offset in the region; of a gap it is the last one."""
    topic = bus.topic("recorded")
    name = recorder_id("agent", "region")
    samples = [Record(b"s%d" % n, timestamp_ns=NOON_NS) for n in range(1, 4)]
    publish(cluster, topic, samples, Stamp(name, 1, 1))
    gap = Record(b"", headers={GAP_HEADER: Gap(4, 9).encode()}, timestamp_ns=NOON_NS)
    publish(cluster, topic, [gap], Stamp(name, 9, 1))
    many = [Record(b"s%d" % n, timestamp_ns=NOON_NS) for n in range(10, 60)]
    publish(cluster, topic, many, Stamp(name, 10, 1))
    publish(cluster, topic, [Record(b"nobody's", timestamp_ns=NOON_NS)], Stamp())
    rows = read(spark, cluster.url, "recorded", includeHeaders=True).orderBy("offset").collect()
    assert [row.producer_sequence for row in rows] == [1, 2, 3, 9, *range(10, 60), None]
    assert {row.producer for row in rows[:-1]} == {"recorder:agent/region"} and rows[-1].producer is None
    assert Gap.decode(bytes(rows[3].headers[0].value)) == Gap(4, 9)
    parts = read(spark, cluster.url, "recorded", minPartitions=9).orderBy("offset").collect()
    assert [row.producer_sequence for row in parts] == [row.producer_sequence for row in rows]


def test_ranges_by_offset(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("ranged")
    topic.publish_many([b"x"] * 100)

    def offsets(**options: Any) -> list[int]:
        schema = "offset bigint"
        return sorted(row.offset for row in read(spark, cluster.url, "ranged", schema, **options).collect())

    def at(offset: int) -> str:
        return json.dumps({"ranged": {"0": offset}})

    assert offsets(startingOffsets=at(11), endingOffsets=at(21)) == list(range(11, 21))
    assert offsets(startingOffsets=at(-2), endingOffsets=at(-1), minPartitions=7) == list(range(1, 101))
    assert offsets(startingOffsets="latest") == []
    assert offsets(startingOffsets=at(101)) == []
    for options, words in (
        ({"startingOffsets": at(102)}, "offset 102 of topic 'ranged', partition 0 is not there yet"),
        ({"endingOffsets": at(102)}, "is not there yet"),
        ({"startingOffsets": '{"ranged":{"1":1}}'}, "names ranged/1, which this query does not read"),
    ):
        with pytest.raises(Exception, match=words):
            offsets(**options)
    trim(cluster, topic, 31)
    assert offsets() == list(range(31, 101))
    assert offsets(startingOffsets=at(5), failOnDataLoss=False) == list(range(31, 101))
    with pytest.raises(Exception, match=r"records 5 to 30 \(26\) are no longer kept"):
        offsets(startingOffsets=at(5))


def test_a_start_by_time(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("timed")
    for second in range(0, 100, 10):
        times = [NOON_NS + (second + place) * 10**9 for place in range(10)]
        publish(cluster, topic, [Record(b"", timestamp_ns=each) for each in times], Stamp())
    noon_ms = NOON_NS // 10**6
    for moment, first in (
        (noon_ms - 1, 0),
        (noon_ms + 37_000, 37),
        (noon_ms + 36_001, 37),
    ):
        rows = read(spark, cluster.url, "timed", "timestamp timestamp", startingTimestamp=moment).collect()
        seconds = sorted((row.timestamp - NOON.replace(tzinfo=None)).total_seconds() for row in rows)
        assert seconds == list(range(first, 100)), moment


def test_an_empty_topic(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("empty", partitions=3)
    assert read(spark, cluster.url, "empty").collect() == []


def test_several_topics_by_name_and_by_pattern(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    for name in ("several/a", "several/b", "several-c"):
        bus.topic(name).publish(name.encode())
    assert {row.topic for row in read(spark, cluster.url, "several/a,several-c").collect()} == {
        "several/a",
        "several-c",
    }
    reader = spark.read.format("hawser").option("endpoints", cluster.url)
    matched = reader.option("subscribePattern", "several/.*").load().collect()
    assert {bytes(row.value) for row in matched} == {b"several/a", b"several/b"}
    with pytest.raises(Exception, match="there is no topic 'several/d'"):
        read(spark, cluster.url, "several/a,several/d").collect()
    with pytest.raises(Exception, match="no topic matches"):
        reader.option("subscribePattern", "nothing.*").load().collect()


def test_batches_of_every_size_and_huge_messages(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, record_property: Any
) -> None:
    topic = bus.topic("sizes", compression="lz4")
    sizes = [1, 1, 2, 23, 24, 25, 1, 40_000, 3, 1]
    expected: list[bytes] = []
    for size in sizes:
        values = [b"%d/%d" % (len(expected), place) for place in range(size)]
        topic.publish_many(values)
        expected += values
    huge = [os.urandom(5 << 20), b"", os.urandom(9 << 20)]
    for each in huge:
        topic.publish(each)
    expected += huge
    rows = read(spark, cluster.url, "sizes", "offset bigint, value binary", minPartitions=5).collect()
    assert [bytes(row.value) for row in sorted(rows, key=lambda row: row.offset)] == expected
    record_property("rows", len(rows))


def test_one_partition_uses_every_core(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("hot").publish_many([b""] * 120_000)
    data = read(spark, cluster.url, "hot", "offset bigint")
    assert data.rdd.getNumPartitions() == 2, "the cores of the session, whatever the machine has"
    assert data.count() == data.distinct().count() == 120_000


def test_a_wrong_option_is_told(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="no option 'subscrbe'; did you mean subscribe"):
        spark.read.format("hawser").options(endpoints="127.0.0.1:1", subscrbe="x").load()


# Shared memory.


def test_topics_in_sql(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    """Found by review: Spark loses the options of a table. The source refuses to be one and says what works
    instead. A table with columns is made without asking the source, which says so when the table is used."""
    bus.topic("sql").publish_many([b"1", b"2"])
    options = f"USING hawser OPTIONS (endpoints '{cluster.url}', subscribe 'sql')"
    with pytest.raises(Exception, match=r"CREATE TABLE loses the options .* CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused {options}")
    spark.sql(f"CREATE TABLE lost (value binary) {options}")
    try:
        with pytest.raises(Exception, match="CREATE TABLE loses options; write CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM lost").collect()
        with pytest.raises(Exception, match=r"CREATE TABLE loses options; write with df\.write"):
            spark.sql("INSERT INTO lost VALUES (CAST('3' AS BINARY))").collect()
    finally:
        spark.sql("DROP TABLE lost")
    spark.sql(f"CREATE TEMPORARY VIEW in_sql {options}")
    found = spark.sql("SELECT CAST(value AS STRING) AS text FROM in_sql ORDER BY offset").collect()
    assert [row.text for row in found] == ["1", "2"]


def test_topics_of_this_host(spark: SparkSession) -> None:
    with LocalBus() as local, hawser.connect(local.url, name="camera") as bus:
        topic = bus.topic("frames", history=8)
        for number in range(20):
            topic.publish(b"frame %d" % number, key=b"k", headers={"n": b"%d" % number})
        rows = read(spark, local.url, "frames", includeHeaders=True).orderBy("offset").collect()
        assert len(rows) >= 8
        assert [row.offset for row in rows] == list(range(21 - len(rows), 21))
        assert [bytes(row.value) for row in rows] == [b"frame %d" % (row.offset - 1) for row in rows]
        first = rows[0]
        assert (bytes(first.key), first.partition, first.producer) == (b"k", 0, "camera")
        assert first.producer_sequence == first.offset
        assert bytes(first.headers[0].value) == b"%d" % (first.offset - 1)
        with pytest.raises(Exception, match="nothing"):
            read(spark, local.url, "nothing").collect()


def test_a_task_on_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hawser.spark.source import factory

    with LocalBus() as local, hawser.connect(local.url) as bus:
        bus.topic("frames").publish(b"x")
        given = {"endpoints": local.url, "subscribe": "frames"}
        schema = factory.schema(given)
        assert not isinstance(schema, str)
        reader = factory.reader(given, schema)
        (partition,) = reader.partitions()
        assert next(iter(reader.read(partition))).num_rows == 1
        monkeypatch.setattr("hawser.spark.source.local._boot", lambda: "another")
        with pytest.raises(hawser.UsageError, match=r"in the memory of host .*use a local master"):
            next(iter(reader.read(partition)))
