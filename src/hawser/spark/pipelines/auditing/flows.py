"""What the pipeline's tables are made with: rows become evidence, and all evidence becomes verdicts.

Spark does not let the function of a table look at its rows' columns, which mapping batches does. So the
streams are mapped where the file is read, and verdicts are made of one row that has all evidence in it.
"""

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow
from pyspark.sql import functions as F  # noqa: N812

from hawser.record.origin import GAP_HEADER
from hawser.spark.pipelines.auditing.judging import judge
from hawser.spark.pipelines.auditing.lines import VERDICT, Run, Verdict
from hawser.spark.pipelines.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Committed", "gap_header", "judged"]

Committed = dict[str, dict[int, Range]]
"""Of each topic, of each partition: the offsets that batches of a landing have committed."""

_FINDING: Final = pyarrow.struct(
    [
        ("word", pyarrow.string()),
        ("first", pyarrow.int64()),
        ("last", pyarrow.int64()),
        ("reason", pyarrow.string()),
    ]
)
_TYPES: Final = {
    **dict.fromkeys(("topic", "region", "tier", "who"), pyarrow.string()),
    "partition": pyarrow.int32(),
    "is_queue": pyarrow.bool_(),
    "findings": pyarrow.list_(_FINDING),
}
_VERDICTS: Final = pyarrow.list_(
    pyarrow.struct([(name, _TYPES.get(name, pyarrow.int64())) for name in Verdict._fields])
)


def gap_header() -> "Column":
    """The header of a gap record, as `gap`; null in all other rows. A message of a user may look like a gap
    record, with no key and an empty value, and have other headers."""
    found = f"get(filter(headers, each -> each.key = '{GAP_HEADER}'), 0).value"
    return F.expr(f"case when key is null and octet_length(value) = 0 then {found} end as gap")


def judged(committed: str, topics: frozenset[str]) -> "Column":
    """Of the column `runs`, an array of all rows of evidence: an array of the verdicts on these topics.
    `committed` is JSON of `Committed`, or empty without a landing."""

    def make(arrays: pyarrow.Array) -> pyarrow.Array:
        return pyarrow.array([_rows(runs, committed, topics) for runs in arrays.to_pylist()], _VERDICTS)

    function = cast(Any, F).arrow_udf(make, f"array<struct<{VERDICT}>>")
    return cast("Column", function(F.col("runs")))


def _rows(runs: list[dict[str, Any]], committed: str, topics: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {**verdict._asdict(), "findings": [finding._asdict() for finding in verdict.findings]}
        for verdict in judge(map(Run.of, runs), _ranges(committed), topics)
    ]


def _ranges(committed: str) -> dict[tuple[str, int], Range] | None:
    if not committed:
        return None
    found = msgspec.json.decode(committed, type=Committed)
    return {(topic, partition): each for topic, parts in found.items() for partition, each in parts.items()}
