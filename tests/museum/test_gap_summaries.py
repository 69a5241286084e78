"""Gaps that ended a landing with a TypeError, when all of it was landed. Found by review.

The sink copies the record of a gap to a topic where it has another producer, or none. And anybody can publish
a record with the header of a gap and anything in it.
"""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hawser.spark.pipelines.report.landing_summary import summarize

GAPS = pyarrow.schema(
    [
        ("producer", pyarrow.string()),
        ("first_missing", pyarrow.int64()),
        ("last_missing", pyarrow.int64()),
    ]
)


@pytest.mark.parametrize(
    ("gaps", "samples"),
    [
        ([("recorder:a/r", 1, 9), (None, 1, 9), (None, 5, 12)], 9 + 12),
        ([("recorder:a/r", None, None), ("recorder:a/r", 1, 9)], 9),
        ([(None, None, None), (None, None, 3), (None, 3, None)], 0),
        ([("p", -(1 << 63), (1 << 63) - 1), ("p", 9, 1), ("p", 0, 5), ("p", 2, 2)], 1),
    ],
)
def test_any_gap_is_summed_up(tmp_path: Path, gaps: list[tuple[Any, ...]], samples: int) -> None:
    rows = [dict(zip(GAPS.names, gap, strict=True)) for gap in gaps]
    for table, made in (("raw", []), ("gaps", rows)):
        place = tmp_path / "tables" / table
        place.mkdir(parents=True)
        if made:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made, GAPS), place / "0.parquet")
        (place / "_SUCCESS").touch()
    assert summarize(tmp_path, [], 0.0).gap_samples == samples
