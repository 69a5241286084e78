"""Typed values that Spark's sink wrote otherwise than the source reads them. Found by review.

Maps became lists of pairs, which the source could not decode, and NaN and Infinity became null in JSON.
"""

from math import inf, nan
from typing import Any

import pyarrow
import pytest
from pyspark.sql.pandas.types import from_arrow_type

import hawser
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import rows_of
from hawser.spark.values import _decoder

MAPS = pyarrow.struct(
    [
        ("id", pyarrow.int64()),
        ("tags", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        (
            "parts",
            pyarrow.list_(pyarrow.struct([("more", pyarrow.map_(pyarrow.string(), pyarrow.float64()))])),
        ),
        ("deep", pyarrow.map_(pyarrow.string(), pyarrow.map_(pyarrow.string(), pyarrow.string()))),
    ]
)


def written(value_format: str, values: list[Any], kind: Any) -> list[bytes]:
    given = {"endpoints": "hawser://127.0.0.1:1", "topic": "t", "valueFormat": value_format}
    batch = pyarrow.record_batch({"value": pyarrow.array(values, kind)})
    rows: list[bytes] = rows_of(batch, Options.of(given, streaming=False)).column("value").to_pylist()
    return rows


@pytest.mark.parametrize("value_format", ["json", "msgpack"])
def test_maps_are_read_as_they_were_written(value_format: str) -> None:
    values: list[Any] = [
        {
            "id": 1,
            "tags": {"a": 1, "b": None},
            "parts": [{"more": {"x": 0.5}}, None],
            "deep": {"k": {"l": "m"}},
        },
        {"id": 2, "tags": {}, "parts": [{"more": None}], "deep": {"k": None}},
        {"id": 3, "tags": None, "parts": None, "deep": None},
    ]
    decode = _decoder(value_format, from_arrow_type(MAPS))
    assert [decode(data) for data in written(value_format, values, MAPS)] == values


def test_maps_without_names_stay_pairs() -> None:
    """An object of JSON has names only."""
    kind = pyarrow.struct([("m", pyarrow.map_(pyarrow.struct([("x", pyarrow.int64())]), pyarrow.int64()))])
    value = {"m": [({"x": 1}, 2)]}
    assert written("json", [value], kind) == [b'{"m":[[{"x":1},2]]}']


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_json_refuses_numbers_that_it_does_not_have(number: float) -> None:
    for kind, value in (
        (pyarrow.struct([("x", pyarrow.float64())]), {"x": number}),
        (pyarrow.struct([("x", pyarrow.list_(pyarrow.float32()))]), {"x": [0.0, number]}),
        (pyarrow.struct([("x", pyarrow.map_(pyarrow.string(), pyarrow.float64()))]), {"x": {"y": number}}),
    ):
        with pytest.raises(hawser.UsageError, match="JSON has no NaN"):
            written("json", [{"x": None}, value], kind)
        assert len(written("msgpack", [value], kind)) == 1
