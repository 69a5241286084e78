"""Rows without a value, which the sink refused. Found by review.

Kafka's topics have them, as tombstones. A record without a value has an empty one and a header that says so.
"""

from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import ArrayType, LongType, StructType

from hawser.errors import UsageError
from hawser.record.batch import Batch, Compression, Format
from hawser.record.record import NULL_HEADER, Record
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import payloads, rows_of
from hawser.spark.source.columns import CORRUPT, Chunk, Rows
from hawser.spark.values import typed

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
ROW = {"id": 7}
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "raw": (pyarrow.binary(), [b"a", None, b"", None, b"b"]),
    "json": (pyarrow.struct([("id", pyarrow.int64())]), [ROW, None, {"id": None}, None, ROW]),
    "msgpack": (pyarrow.struct([("id", pyarrow.int64())]), [ROW, None, {"id": None}, None, ROW]),
    "arrow": (
        pyarrow.list_(pyarrow.struct([("id", pyarrow.int64())])),
        [[ROW], None, [], None, [ROW, {"id": None}]],
    ),
}
OWN = [None, None, [("a", b"1")], [("a", b"1"), ("a", b"2")], None]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("value_format", VALUES)
def test_a_row_without_a_value_comes_back_without_one(
    value_format: str, with_headers: bool, compression: Compression
) -> None:
    kind, values = VALUES[value_format]
    given = {"endpoints": "hawser://127.0.0.1:1", "topic": "t", "valueFormat": value_format}
    columns: dict[str, Any] = {"value": pyarrow.array(values, kind)}
    headers = OWN if with_headers else [None] * len(OWN)
    pairs = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers]
    if with_headers:
        columns["headers"] = pyarrow.array(pairs, HEADERS)
    written = rows_of(pyarrow.record_batch(columns), Options.of(given, streaming=False))
    (payload,) = payloads(written, compression)
    batch = Batch.read(payload)
    batch.check()
    records = list(batch.records())
    assert [each.value == b"" and NULL_HEADER in each.headers for each in records] == [
        value is None for value in values
    ]
    rows = Rows("t", "u", 0, [(Chunk(batch), 0, 3, 1), (Chunk(batch), 3, 2, 4)])
    assert rows.headers().to_pylist() == pairs
    if value_format == "raw":
        assert rows.value().to_pylist() == values
        return
    spark: Any = StructType().add("id", LongType())
    spark = ArrayType(spark) if value_format == "arrow" else spark
    found = typed(value_format, spark, True)(rows)
    assert found["value"].to_pylist() == values
    assert found[CORRUPT].null_count == len(values)


def test_rows_without_values_alone() -> None:
    """Nothing is left to tell the type of the values by."""
    for value_format, (kind, _) in VALUES.items():
        given = {"endpoints": "hawser://127.0.0.1:1", "topic": "t", "valueFormat": value_format}
        column = pyarrow.record_batch({"value": pyarrow.nulls(2, kind)})
        (payload,) = payloads(rows_of(column, Options.of(given, streaming=False)), Compression.NONE)
        rows = Rows("t", "u", 0, [(Chunk(Batch.read(payload)), 0, 2, 1)])
        assert rows.value().null_count == 2 and rows.headers().null_count == 2


def test_a_landing_takes_a_row_without_a_value_for_good() -> None:
    from hawser.spark.pipelines.decoding import _faults_of

    values = pyarrow.array([b'{"id": 7}', None, b"", b"{"], pyarrow.binary())
    found, faults = _faults_of("json", StructType().add("id", LongType()))(values)
    assert found.to_pylist() == [ROW, None, None, None]
    assert [each is None for each in faults.to_pylist()] == [True, True, False, False]


def test_an_empty_value_with_other_headers_is_empty() -> None:
    batch = pyarrow.record_batch(
        {"value": [b""] * 2, "headers": pyarrow.array([[{"key": "a", "value": b""}], None], HEADERS)}
    )
    options = Options.of({"endpoints": "hawser://127.0.0.1:1", "topic": "t"}, streaming=False)
    (payload,) = payloads(rows_of(batch, options), Compression.NONE)
    assert Rows("t", "u", 0, [(Chunk(Batch.read(payload)), 0, 2, 1)]).value().to_pylist() == [b"", b""]


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("made", [Format.BARE, Format.ARROW])
def test_a_header_of_a_user_stays(made: Format, count: int) -> None:
    """A record was read as one without a value, or lost the header, whatever the header had in it."""
    rows: list[tuple[bytes, dict[str, bytes]]] = [
        (b"", {NULL_HEADER: b"mine"}),
        (b"x", {NULL_HEADER: b"mine"}),
        (b"x", {NULL_HEADER: b""}),
        (b"", {NULL_HEADER: b"", "a": b"1"}),
        (b"", {"a": b"1"}),
    ]
    records = [Record(value, None, headers) for value, headers in rows] * count
    batch = Batch.of(records)
    if made is Format.ARROW:
        batch = Batch.of_arrow(batch.to_arrow())
    found = Rows("t", "u", 0, [(Chunk(batch), 0, len(records), 1)])
    assert found.value().to_pylist() == [b"", b"x", b"x", None, b""] * count
    pairs = [{pair["key"]: pair["value"] for pair in each} for each in found.headers().to_pylist()]
    assert pairs == [*(headers for _, headers in rows[:3]), {"a": b"1"}, {"a": b"1"}] * count


@pytest.mark.parametrize("value", [b"", b"x", None])
def test_the_sink_writes_that_header_for_null_alone(value: bytes | None) -> None:
    headers = pyarrow.array([[{"key": NULL_HEADER, "value": b""}]], HEADERS)
    batch = pyarrow.record_batch({"value": pyarrow.array([value], pyarrow.binary()), "headers": headers})
    options = Options.of({"endpoints": "hawser://127.0.0.1:1", "topic": "t"}, streaming=False)
    with pytest.raises(UsageError, match="leave the header out"):
        rows_of(batch, options)
