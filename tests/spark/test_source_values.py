"""Typed values: what the formats become, and what becomes of values that are none."""

import datetime
import decimal
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow
import pytest
from pyspark.sql import SparkSession

import hawser
from hawser.cluster import wire
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import GAP_HEADER, Gap, recorder_id
from hawser.spark.pipelines.decoding import decoded, gap_bounds, is_gap
from hawser.spark.pipelines.topics import common_fields
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster
from tests.support.source import read

FIELDS = (
    "id bigint, small tinyint, ratio double, name string, raw binary, yes boolean, at timestamp, day date, "
    "price decimal(8,2), tags array<string>, inner struct<x: int, more: map<string, double>>"
)


@dataclass
class Order:
    id: int
    name: str


def values(data: Any) -> list[Any]:
    return [row.value for row in data.orderBy("partition", "offset").collect()]


WHOLE = {
    "id": 7,
    "small": -128,
    "ratio": 2,
    "name": "ü",
    "raw": b"\0\1",
    "yes": True,
    "at": datetime.datetime(2026, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    "day": datetime.date(2026, 1, 2),
    "price": decimal.Decimal("12.50"),
    "tags": ["a", None],
    "inner": {"x": None, "more": {"k": 1.5}},
    "unknown": "left out",
}


@pytest.mark.parametrize("value_format", ["json", "msgpack"])
def test_every_type(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, value_format: str) -> None:
    encode: Any = msgspec.json.encode if value_format == "json" else msgspec.msgpack.encode
    topic = bus.topic(f"types-{value_format}")
    topic.publish(encode(WHOLE))
    topic.publish(encode({}))
    data = read(spark, cluster.url, topic.name, valueFormat=value_format, valueSchema=FIELDS)
    whole, nothing = values(data)
    assert whole.asDict(recursive=True) == {
        **{name: value for name, value in WHOLE.items() if name != "unknown"},
        "ratio": 2.0,
        "at": datetime.datetime(2026, 1, 1, 12),  # noqa: DTZ001
    }
    assert set(nothing.asDict().values()) == {None}
    by_schema = read(spark, cluster.url, topic.name, "value struct<id: bigint>", valueFormat=value_format)
    assert [row.value.id for row in by_schema.collect()] == [7, None]


POISON = [
    b"",
    b"{",
    b"3",
    b'{"id": "seven"}',
    b'{"id": 1}{"id": 2}',
    b'{"small": 128}',
    b'{"price": 1234567.89}',
]


def test_poison_fails_the_query_with_its_place(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    for number, poison in enumerate(POISON):
        topic = bus.topic(f"poison-{number}")
        topic.publish_many([b'{"id": 1}'] * 3 + [poison] + [b'{"id": 2}'])
        data = read(spark, cluster.url, topic.name, valueFormat="json", valueSchema=FIELDS)
        words = f"topic '{topic.name}', partition 0, offset 4: the value is not json of the schema"
        with pytest.raises(Exception, match=words):
            data.collect()


def test_poison_is_kept_where_that_is_wanted(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, record_property: Any
) -> None:
    topic = bus.topic("permissive")
    good = [b'{"id": %d}' % number for number in range(1000)]
    mixed = [
        value
        for number, each in enumerate(good)
        for value in ([each, POISON[number % 7]] if number % 5 == 0 else [each])
    ]
    topic.publish_many(mixed)
    data = read(spark, cluster.url, topic.name, valueFormat="json", valueSchema=FIELDS, mode="PERMISSIVE")
    rows = data.orderBy("offset").collect()
    assert len(rows) == len(mixed)
    found = [bytes(row._corrupt_record) for row in rows if row._corrupt_record is not None]
    assert found == [each for each in mixed if each in POISON]
    assert [row.value.id for row in rows if row.value is not None] == list(range(1000))
    record_property("rows", len(rows))
    record_property("poison", len(found))


def test_a_gap_is_not_poison(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("gapped")
    gap = Record(b"", headers={GAP_HEADER: Gap(1, 9).encode()}, timestamp_ns=1)
    info = topic.info().partitions[0]
    data = bytes(Batch.of([gap], Stamp(recorder_id("a", "r"), 9, 1)).data)
    assert isinstance(cluster.ask(wire.Publish(info.shard, data), info.leader), wire.Executed)
    topic.publish(b'{"id": 5}')
    found = values(read(spark, cluster.url, "gapped", valueFormat="json", valueSchema="id int"))
    assert [None if each is None else each.id for each in found] == [None, 5]


def test_topics_with_a_schema(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("orders", schema=Order).publish_many([Order(1, "a"), Order(2, "b")])
    data = read(spark, cluster.url, "orders", valueFormat="msgpack", valueSchema="id int, name string")
    assert data.select("value.*").orderBy("id").collect() == [(1, "a"), (2, "b")]
    with pytest.raises(Exception, match="read it with valueFormat=msgpack or raw, not json"):
        read(spark, cluster.url, "orders", valueFormat="json", valueSchema="id int").collect()
    # The query's idea of the schema is another than the topic's.
    with pytest.raises(Exception, match=r"offset 1: the value is not msgpack of the schema \(Expected `int"):
        read(spark, cluster.url, "orders", valueFormat="msgpack", valueSchema="name int").collect()
    with pytest.raises(Exception, match="the column value is a struct"):
        read(spark, cluster.url, "orders", "value string", valueFormat="msgpack").collect()


def test_arrow_brings_its_schema(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    schema = pyarrow.schema([("x", pyarrow.int32()), ("name", pyarrow.string())])
    topic = bus.topic("arrow", schema=schema)
    # Known before there is a message, because the topic was made with it.
    data = read(spark, cluster.url, "arrow", valueFormat="arrow")
    assert dict(data.dtypes)["value"] == "array<struct<x:int,name:string>>"
    for number in range(30):
        rows = {"x": list(range(number)), "name": [f"n{each}" for each in range(number)]}
        topic.publish(pyarrow.RecordBatch.from_pydict(rows, schema))
    data = read(spark, cluster.url, "arrow", valueFormat="arrow")
    assert dict(data.dtypes)["value"] == "array<struct<x:int,name:string>>"
    assert [len(each) for each in values(data)] == list(range(30))
    total = (
        data.selectExpr("offset", "inline(value)").where("x = offset - 2 and name = concat('n', x)").count()
    )
    assert total == 29
    narrow = read(spark, cluster.url, "arrow", valueFormat="arrow", valueSchema="x bigint")
    assert dict(narrow.dtypes)["value"] == "array<struct<x:bigint>>"
    assert values(narrow)[2] == [(0,), (1,)]


class Part(msgspec.Struct):
    code: str
    weights: list[float] = []


class Shipment(msgspec.Struct, rename="camel"):
    order_id: int
    sent_at: datetime.datetime | None
    parts: dict[str, Part]


def test_a_topic_names_its_fields(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    sent = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    bus.topic("shipments", schema=Shipment).publish(Shipment(7, sent, {"a": Part("x", [0.5])}))
    data = read(spark, cluster.url, "shipments", valueFormat="msgpack")
    assert dict(data.dtypes)["value"] == (
        "struct<orderId:bigint,sentAt:timestamp,parts:map<string,struct<code:string,weights:array<double>>>>"
    )
    (row,) = data.select("value.orderId", "value.parts.a.code", "value.parts.a.weights").collect()
    assert tuple(row) == (7, "x", [0.5])
    assert common_fields(cluster.url, ["shipments"]).startswith("orderId bigint, sentAt timestamp")
    bus.topic("plain").publish(b"{}")
    with pytest.raises(Exception, match="needs the fields of the values"):
        read(spark, cluster.url, "plain,shipments", valueFormat="msgpack")
    with pytest.raises(hawser.UsageError, match="say with --schema"):
        common_fields(cluster.url, ["plain", "shipments"])


class Box(msgspec.Struct, omit_defaults=True, frozen=True):
    kind: str = 'it\'s \\ "so"'
    weight: float | None = 1.5


class Delivery(msgspec.Struct, omit_defaults=True):
    id: int
    level: int = 1
    at: datetime.datetime = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    tags: list[str] = []
    first: Box = Box()
    boxes: dict[str, Box] = {}


def test_what_a_value_leaves_out_is_its_default(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus
) -> None:
    """The fields of the topic say in comments what that is."""
    topic = bus.topic("deliveries", schema=Delivery)
    box = Box("flat", None)
    topic.publish_many([Delivery(1), Delivery(2, 5, tags=["t"], first=box, boxes={"a": Box(), "b": box})])
    data = read(spark, cluster.url, "deliveries", valueFormat="msgpack").select(
        "offset", "partition", "value"
    )
    one, two = values(data)
    usual, flat = ('it\'s \\ "so"', 1.5), ("flat", None)
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert one.at.astimezone(datetime.UTC) == two.at.astimezone(datetime.UTC) == moment
    assert (one.id, one.level, one.tags, one.first, one.boxes) == (1, 1, [], usual, {})
    assert (two.id, two.level, two.tags, two.first) == (2, 5, ["t"], flat)
    assert two.boxes == {"a": usual, "b": flat}
    kind = common_fields(cluster.url, ["deliveries"])
    raw = read(spark, cluster.url, "deliveries").select("offset", "partition", "value")
    landed = raw.select("offset", "partition", decoded("msgpack", f"struct<{kind}>")["value"].alias("value"))
    assert values(landed) == [one, two]
    wrong = "level bigint COMMENT 'if left out: much'"
    with pytest.raises(Exception, match="does not end in JSON of the type bigint"):
        read(spark, cluster.url, "deliveries", valueFormat="msgpack", valueSchema=wrong).collect()


def test_arrow_that_is_none(spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic = bus.topic("half-arrow")
    with pytest.raises(Exception, match="there is none yet"):
        read(spark, cluster.url, "half-arrow", valueFormat="arrow")
    batch = pyarrow.RecordBatch.from_pydict({"x": [1, 2]})
    topic.publish(batch)
    topic.publish(b"no arrow")
    topic.publish(pyarrow.RecordBatch.from_pydict({"y": [1]}))
    topic.publish(pyarrow.RecordBatch.from_pydict({"x": ["text"]}))
    data = read(spark, cluster.url, "half-arrow", valueFormat="arrow", mode="PERMISSIVE")
    rows = data.orderBy("offset").collect()
    assert [row.value for row in rows] == [[(1,), (2,)], None, None, None]
    assert [row._corrupt_record is None for row in rows] == [True, False, False, False]
    with pytest.raises(Exception, match="offset 2: the value is not arrow"):
        read(spark, cluster.url, "half-arrow", valueFormat="arrow").collect()


def test_typed_values_of_this_host(spark: SparkSession) -> None:
    with LocalBus() as local, hawser.connect(local.url) as bus:
        bus.topic("orders", schema=Order).publish(Order(3, "c"))
        data = read(spark, local.url, "orders", valueFormat="msgpack", valueSchema="id int, name string")
        assert data.select("value.*").collect() == [(3, "c")]


def test_a_gap_that_cannot_be_has_no_bounds(spark: SparkSession) -> None:
    """Anybody can publish a record with the header of a gap: it must not end a landing."""
    headers = [
        b'{"first": 3, "last": 9}',
        b'{"first": -9223372036854775808, "last": 9223372036854775807}',
        b'{"first": 9, "last": 3}',
        b'{"first": 1e400, "last": "x"}',
        b'{"first": 1}',
        b"{",
        b"\xff",
        None,
    ]
    rows = [(None, value, [(GAP_HEADER, each)]) for each in headers for value in (b"", None)]
    kind = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    first, last = gap_bounds()
    data = spark.createDataFrame(rows, kind)
    assert data.where(~is_gap()).isEmpty()
    found = data.where(is_gap())
    found = found.select(first.alias("first"), last.alias("last"), (last - first + 1).alias("missing"))
    assert found.collect() == [(3, 9, 7)] * 2 + [(None, None, None)] * 14
