"""Rows written as a batch: columns, targets, typed values, and what is refused."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

import hawser
from tests.support.cluster import RunningCluster
from tests.support.source import read


def write(data: DataFrame, url: str, **options: Any) -> None:
    data.write.format("hawser").mode("append").options(endpoints=url, **options).save()


def values(spark: SparkSession, url: str, topic: str) -> list[bytes]:
    return sorted(bytes(row.value) for row in read(spark, url, topic, "value binary").collect())


def test_rows_become_messages(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("written", partitions=3)
    keys = [None if n % 5 == 0 else b"k%d" % (n % 7) for n in range(1000)]
    rows = [(key, b"v%d" % n) for n, key in enumerate(keys)]
    write(
        spark.createDataFrame(rows, "key binary, value binary").repartition(4), cluster.url, topic="written"
    )
    found = read(spark, cluster.url, "written").select("key", "value", "producer").collect()
    assert {(row.key and bytes(row.key), bytes(row.value), row.producer) for row in found} == {
        (key, value, None) for key, value in rows
    }
    assert len(found) == 1000
    # Where everybody's messages of a key are.
    topic.publish_many([b"x"] * 7, keys=[b"k%d" % n for n in range(7)])
    keyed = read(spark, cluster.url, "written").where("key IS NOT NULL")
    assert keyed.select("key", "partition").distinct().count() == 7


def test_topic_partition_and_headers_of_rows(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    bus.topic("spread/a", partitions=3)
    bus.topic("spread/b", compression="zstd")
    data = spark.range(60).selectExpr(
        "IF(id % 2 = 0, 'spread/a', 'spread/b') AS topic",
        "IF(id % 2 = 0, CAST(id % 3 AS INT), NULL) AS partition",
        "IF(id % 4 = 0, array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)), NULL) "
        "AS headers",
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
    )
    write(data, cluster.url)
    found = read(spark, cluster.url, "spread/a,spread/b", includeHeaders=True).collect()
    assert len(found) == 60
    for row in found:
        number = int(row.value)
        assert row.topic == ("spread/a" if number % 2 == 0 else "spread/b") and bytes(row.key) == row.value
        assert row.partition == (number % 3 if number % 2 == 0 else 0)
        headers = None if row.headers is None else [(each.key, int(each.value)) for each in row.headers]
        assert headers == ([("n", number)] if number % 4 == 0 else None)


def test_typed_values_come_back_as_they_went(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    class Order(msgspec.Struct):
        id: int
        tags: list[str]

    bus.topic("typed/msgpack", schema=Order)
    for name in ("typed/json", "typed/arrow"):
        bus.topic(name)
    struct = "struct(id, array('a', CAST(id AS STRING)) AS tags) AS value"
    data = spark.range(20).selectExpr(struct)
    for value_format in ("json", "msgpack"):
        write(data, cluster.url, topic=f"typed/{value_format}", valueFormat=value_format)
    arrays = data.selectExpr("array(value, value) AS value")
    write(arrays, cluster.url, topic="typed/arrow", valueFormat="arrow")
    expected = sorted((n, ["a", str(n)]) for n in range(20))
    for value_format in ("json", "msgpack", "arrow"):
        typed = read(
            spark,
            cluster.url,
            f"typed/{value_format}",
            valueFormat=value_format,
            valueSchema="id bigint, tags array<string>",
        )
        if value_format == "arrow":
            typed = typed.selectExpr("value[1] AS value")
        assert sorted((row.value.id, row.value.tags) for row in typed.collect()) == expected
    with pytest.raises(Exception, match=r"typed/msgpack.* carries values of the schema"):
        write(data, cluster.url, topic="typed/msgpack", valueFormat="json")
    with bus.topic("typed/msgpack", schema=Order).subscribe(start="earliest") as orders:
        assert next(iter(orders)).value.tags[0] == "a"


def test_rows_without_a_value_repeated_headers_and_maps_of_any_key_come_back(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    bus.topic("odd")
    kind = "struct<id: bigint, names: map<int, string>, at: timestamp_ntz, `Straße`: float>"
    value = "named_struct('id', id, 'names', map(1, 'a', 2, null), 'at', TIMESTAMP_NTZ'1930-01-01 12:00:00', "
    data = spark.range(4).selectExpr(
        f"IF(id % 2 = 0, {value} 'Straße', FLOAT(0.1)), null) AS value",
        "array(struct('a' AS key, X'31' AS value), struct('a' AS key, X'32' AS value)) AS headers",
        "CAST(id AS STRING) AS key",
    )
    write(
        data.selectExpr(f"CAST(value AS {kind}) AS value", "headers", "key"),
        cluster.url,
        topic="odd",
        valueFormat="json",
    )
    found = read(spark, cluster.url, "odd", valueFormat="json", valueSchema=kind[7:-1], includeHeaders="true")
    written = data.collect()
    assert sorted(found.select("value", "headers", "key").collect(), key=lambda row: bytes(row.key)) == [
        (row.value, row.headers, row.key.encode()) for row in written
    ]
    assert [row.value is None for row in written] == [False, True, False, True]


def test_rows_become_messages_of_a_queue(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    queue = bus.queue("work")
    write(
        spark.range(300).selectExpr("CAST(id AS STRING) AS value").repartition(3), cluster.url, queue="work"
    )
    got = [bytes(message.data) for message in queue.get_many(300, timeout=30)]
    while len(got) < 300:
        got += [bytes(message.data) for message in queue.get_many(300, timeout=30)]
    assert sorted(map(int, got)) == list(range(300))


def test_nothing_of_a_batch_that_fails(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    """One task has prepared its rows when another fails."""
    bus.topic("failed", partitions=2)
    data = spark.range(0, 40, 1, 2).selectExpr(
        "IF(id < 39, CAST(id AS STRING), raise_error('enough')) AS value"
    )
    with pytest.raises(Exception, match="enough"):
        write(data, cluster.url, topic="failed")
    write(spark.range(40, 45).selectExpr("CAST(id AS STRING) AS value"), cluster.url, topic="failed")
    assert values(spark, cluster.url, "failed") == [b"40", b"41", b"42", b"43", b"44"]


def test_a_version_is_written_once(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("versions")
    for version in (3, 3, 4, 3):
        data = spark.range(version, version + 1).selectExpr("CAST(id AS STRING) AS value")
        write(data, cluster.url, topic="versions", txnAppId="daily", txnVersion=version)
    assert values(spark, cluster.url, "versions") == [b"3", b"4"]


def test_what_a_task_cannot_write_is_said(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    bus.topic("refused")
    data = spark.range(1).selectExpr("'a' AS value", "7 AS partition")
    with pytest.raises(Exception, match="partition 7 of topic 'refused', which has 1"):
        write(data, cluster.url, topic="refused")
    assert values(spark, cluster.url, "refused") == []


def test_topics_are_not_overwritten(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("kept")
    data = spark.range(1).selectExpr("'a' AS value").write.format("hawser")
    with pytest.raises(Exception, match="written behind what they have"):
        data.mode("overwrite").options(endpoints=cluster.url, topic="kept").save()
