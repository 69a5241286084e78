"""What Spark computes for an audit, on rows of a test."""

from typing import Any

from pyspark.sql import SparkSession

from hawser.record.origin import GAP_HEADER
from hawser.spark.pipelines.auditing.flows import gap_header

SCHEMA = "id int, key binary, value binary, headers array<struct<key: string, value: binary>>"


def test_an_ordinary_message_is_no_gap_and_stops_no_audit(spark: SparkSession) -> None:
    """A message with headers, without a key and with an empty value ended every audit of its topic."""
    gap = (GAP_HEADER, b'{"first":7,"last":9}')
    rows: list[tuple[Any, ...]] = [
        (1, None, b"", [("trace-id", b"1")]),
        (2, None, b"", []),
        (3, None, b"", None),
        (4, None, None, [gap]),
        (5, b"key", b"", [gap]),
        (6, None, b"value", [gap]),
        (7, None, b"", [("trace-id", b"1"), gap]),
        (8, None, b"", [(GAP_HEADER, b"\xff")]),
        (9, None, b"", [(GAP_HEADER, None)]),
    ]
    found = spark.createDataFrame(rows, SCHEMA).select("id", gap_header()).collect()
    gaps = {row["id"]: bytes(row["gap"]) for row in found if row["gap"] is not None}
    assert gaps == {7: gap[1], 8: b"\xff"}
