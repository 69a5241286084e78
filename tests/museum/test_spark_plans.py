"""Mistakes that only the tasks of Spark found, and told in a traceback of each attempt. Found by review.

The driver sees them when it plans the query: a topic that is not there, a queue in place of a topic, values
of another format, a schema that the source does not have.
"""

from typing import Any

import msgspec
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

import hawser
from hawser.errors import NotFound
from hawser.spark import connection
from hawser.spark.sink import factory as sink
from hawser.spark.source import factory as source
from tests.support.cluster import RunningCluster

RAW = StructType().add("value", StringType())
TYPED = StructType().add("value", StructType().add("id", LongType()))


class Order(msgspec.Struct):
    id: int


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize(
    ("given", "schema", "error", "message"),
    [
        ({"topic": "nowhere"}, RAW, NotFound, "no topic 'nowhere'"),
        ({"queue": "nowhere"}, RAW, NotFound, "no queue 'nowhere'"),
        ({"topic": "work"}, RAW, hawser.UsageError, "'work' is a queue"),
        ({"queue": "orders"}, RAW, hawser.UsageError, "'orders' is a topic"),
        ({"topic": "orders", "valueFormat": "json"}, TYPED, hawser.UsageError, "values of the schema"),
    ],
)
def test_a_target_that_rows_do_not_fit_is_told_by_the_driver(
    cluster: RunningCluster,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    given: dict[str, str],
    schema: StructType,
    error: Any,
    message: str,
) -> None:
    monkeypatch.setattr(connection, "_APPEAR_SECONDS", 0.3)
    bus = cluster.connect()
    bus.queue("work")
    bus.topic("orders", schema=Order)
    given = {"endpoints": cluster.url, **given}
    with pytest.raises(error, match=message):
        if kind == "batch":
            sink.writer(given, schema, False)
        else:
            sink.stream_writer(given, schema)


def test_a_target_that_fits_is_looked_at_once(cluster: RunningCluster) -> None:
    """Spark makes writers all the time: a decision must not wait for a look at the topic."""
    bus = cluster.connect()
    bus.topic("fits")
    given = {"endpoints": cluster.url, "topic": "fits"}
    sink.stream_writer(given, RAW)
    bus.topic("fits").delete()
    sink.stream_writer(given, RAW)


@pytest.mark.parametrize(
    ("given", "schema", "message"),
    [
        ({}, StructType().add("id", LongType()), "a topic has no column 'id'"),
        ({}, RAW, "column value is binary, not string"),
        ({"valueFormat": "json"}, RAW, "values of json are objects"),
        ({"valueFormat": "arrow"}, TYPED, "a value of arrow has rows"),
    ],
)
def test_a_schema_that_topics_do_not_have_is_told_by_the_driver(
    given: dict[str, str], schema: StructType, message: str
) -> None:
    """Before anything is asked of the cluster: there is none at this address."""
    given = {"endpoints": "hawser://127.0.0.1:1", "subscribe": "t", **given}
    for reader in (source.reader, source.stream_reader):
        with pytest.raises(hawser.UsageError, match=message):
            reader(given, schema)
    queue = {"endpoints": "hawser://127.0.0.1:1", "queue": "q", "claimName": "c"}
    with pytest.raises(hawser.UsageError, match="column value is binary, not string"):
        source.stream_reader(queue, RAW)


def test_values_of_a_type_that_no_format_has_are_told_by_the_driver() -> None:
    given = {"endpoints": "hawser://127.0.0.1:1", "topic": "t", "valueFormat": "json"}
    inner = StructType().add("x", LongType()).add("x", LongType())
    with pytest.raises(hawser.UsageError, match=r"^value\.rows\[\] has the field 'x' more than once"):
        sink.writer(given, StructType().add("value", StructType().add("rows", ArrayType(inner))), False)
