"""What the sink refuses, and how it says so; without Spark where it does not take part."""

from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import StructType

import hawser
from hawser.spark.connection import connection
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import check_columns
from hawser.spark.sink.targets import Targets
from tests.support.cluster import RunningCluster

SOMEWHERE = "127.0.0.1:7400"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs option.*endpoints"),
        ({"endpoints": "shm://"}, "transactions, which shared memory does not have"),
        ({"endpoints": SOMEWHERE, "topc": "t"}, "no option 'topc'; did you mean topic"),
        ({"endpoints": SOMEWHERE, "path": "t"}, r"name the topic with option\("),
        ({"endpoints": SOMEWHERE, "topic": "t", "queue": "q"}, "topic and queue exclude each other"),
        ({"endpoints": SOMEWHERE, "topic": " "}, "topic is empty"),
        ({"endpoints": SOMEWHERE, "valueFormat": "xml"}, "'xml' is not one of raw, json, msgpack, arrow"),
        ({"endpoints": SOMEWHERE, "txnVersion": "1"}, "both txnAppId and txnVersion"),
        ({"endpoints": SOMEWHERE, "txnAppId": "a"}, "both txnAppId and txnVersion"),
        ({"endpoints": SOMEWHERE, "txnAppId": "a" * 201, "txnVersion": "1"}, "txnAppId has 1 to 200 bytes"),
        ({"endpoints": SOMEWHERE, "txnAppId": "claim:a", "txnVersion": "1"}, "begins as the name of a claim"),
        ({"endpoints": SOMEWHERE, "orphanSeconds": "0"}, "'0' is not a whole number from 1 on"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], message: str) -> None:
    with pytest.raises(hawser.UsageError, match=message):
        Options.of(given, streaming=False)


def test_a_stream_counts_by_itself() -> None:
    given = {"endpoints": SOMEWHERE, "txnAppId": "a", "checkpointLocation": "here", "queryName": "q"}
    assert Options.of(given, streaming=True).application == "a"
    with pytest.raises(hawser.UsageError, match="leave txnVersion out"):
        Options.of({**given, "txnVersion": "1"}, streaming=True)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"id": "long"}, {"topic": "t"}, "writes the column value, and there are only id"),
        ({"value": "long"}, {"topic": "t"}, "value is binary or string, not bigint"),
        ({"value": "string"}, {"topic": "t", "valueFormat": "json"}, "value is a struct, not string"),
        ({"value": "string", "id": "long"}, {"topic": "t"}, "no column 'id'; it takes value, key"),
        ({"value": "string", "key": "long"}, {"topic": "t"}, "column key is bigint; cast it to binary"),
        ({"value": "string", "headers": "string"}, {"topic": "t"}, "headers is string; cast it to array"),
        ({"value": "string"}, {}, "needs option.*or a column topic"),
        ({"value": "string", "partition": "integer"}, {"queue": "q"}, "a queue has no partitions"),
    ],
)
def test_columns_that_are_no_messages(columns: dict[str, str], options: dict[str, str], message: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(hawser.UsageError, match=message):
        check_columns(schema, Options.of({"endpoints": SOMEWHERE, **options}, streaming=True))


ROWS: list[tuple[dict[str, list[Any]], dict[str, str], str]] = [
    ({"value": [b"a"], "partition": [2]}, {"topic": "t"}, "partition 2 of topic 't', which has 2"),
    ({"value": [b"a"], "partition": [-2]}, {"topic": "t"}, "a partition below 0"),
    ({"value": [b"a"], "topic": [None]}, {}, "a row has no topic"),
    ({"value": [b"a"], "headers": [[{"key": None, "value": b""}]]}, {"topic": "t"}, "neither a key nor"),
    ({"value": [b"a"], "headers": [[{"key": "a", "value": None}]]}, {"topic": "t"}, "value is null"),
    ({"value": [b"a"]}, {"topic": "nowhere"}, "nowhere"),
    ({"value": [b"a"]}, {"queue": "t"}, "'t' is a topic"),
]


@pytest.mark.parametrize(("columns", "options", "message"), ROWS)
def test_rows_that_are_no_messages(
    cluster: RunningCluster,
    bus: hawser.Bus,
    columns: dict[str, list[Any]],
    options: dict[str, str],
    message: str,
) -> None:
    bus.topic("t", partitions=2)
    given = Options.of({"endpoints": cluster.url, **options}, streaming=True)
    kinds = {"partition": pyarrow.int32(), "topic": pyarrow.string()}
    batch = pyarrow.record_batch(
        {name: pyarrow.array(each, kinds.get(name)) for name, each in columns.items()}
    )
    with pytest.raises(hawser.HawserError, match=message):
        list(Targets(connection(cluster.url), given).operations(batch))
