"""The functions of the audit pipeline: rows become evidence, and all evidence becomes verdicts.

Spark forbids analysis of columns in the function of a table, and mapping batches needs it. So the streams are
mapped when the file is read, and one row that holds all evidence becomes the verdicts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from hawser.record.recording import GAP_HEADER
from hawser.spark.pipelines.auditing.evidence import BLOCK_MESSAGES
from hawser.spark.pipelines.auditing.lines import VERDICT, Run, Verdict
from hawser.spark.pipelines.auditing.verdicts import judge
from hawser.spark.pipelines.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Committed", "content_hash", "gap_header", "judged", "with_hashes_where_needed"]

Committed = dict[str, dict[int, Range]]
"""The offsets that batches of a landing have committed, by topic and partition."""

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

# The blocks of a partition, or of a region, and the sides of each.
_COMPARED: Final = (
    "published",
    "put",
    "taken",
    "returned",
    "accepted",
    "moved",
    "recorded",
    "replicated",
    "landed",
)
_BLOCK: Final = {
    "place": "if(region = '', concat(topic, '/', partition), region)",
    "block": f"first div {BLOCK_MESSAGES}",
}
_SIDE: Final = ("what", "partition", "who", "owner", "carrier")
_OF_A_SIDE: Final = {
    "low": "min(first)",
    "high": "max(last)",
    "messages": "sum(last - first + 1)",
    # Half of each hash, because a sum of whole ones would overflow.
    "half": "sum(hash & 4294967295) & 4294967295",
    "sized_half": "sum(case when what in ('published', 'recorded') then sized_hash & 4294967295 end)"
    " & 4294967295",
}
_OF_A_BLOCK: Final = {
    "messages": "sum(messages)",
    "is_even": "count(*) = 1 or (min(low) = max(low) and min(high) = max(high) and min(half) = max(half)"
    " and min(messages) = max(messages) and max(messages) = max(high) - min(low) + 1"
    " and coalesce(min(sized_half) = max(sized_half), true))",
}
# Of 8 bytes each, and of 4 more for the size; all of them are in one row.
_MOST_HASHES: Final = 1 << 23


def gap_header() -> "Column":
    """The header of a gap record, as `gap`; null in all other rows. A message of a user may look like a gap
    record, with no key and an empty value, and have other headers."""
    found = f"get(filter(headers, each -> each.key = '{GAP_HEADER}'), 0).value"
    return F.expr(f"case when key is null and octet_length(value) = 0 then {found} end as gap")


def content_hash() -> "Column":
    """The hash of a record in the log, and of the same record in a table. Spark leaves nulls out of a hash;
    so the hash also covers which columns are null, and how many headers there are."""
    nulls = [F.col(name).isNull() for name in ("key", "value")]
    headers = [
        F.coalesce(F.size("headers"), F.lit(0)),
        F.expr("transform(headers, each -> each.value is null)"),
    ]
    return F.xxhash64("offset", "timestamp", "key", "value", "headers", *nulls, *headers).alias("hash")


def with_hashes_where_needed(
    evidence: "DataFrame", columns: Sequence[str], most: int = _MOST_HASHES
) -> "DataFrame":
    """These columns of the evidence, with `hashes` and `sizes` only in blocks of which some tier has other
    numbers or other sums than another one: equal blocks need no comparison of messages. If there
    are very many such blocks the first ones have them, with `most` messages in all. A comparison without them
    says so."""
    # With `withColumn` and `drop` Spark would look for the tables of evidence before it has made them.
    keyed = evidence.select("*", *_named(_BLOCK))
    sides = keyed.where(F.col("what").isin(*_COMPARED)).groupBy(*_BLOCK, *_SIDE).agg(*_named(_OF_A_SIDE))
    uneven = sides.groupBy(*_BLOCK).agg(*_named(_OF_A_BLOCK)).where("not is_even")
    # One partition suffices: there are as many rows as blocks, not as messages.
    running = F.sum("messages").over(Window.partitionBy("is_even").orderBy(*_BLOCK))
    numbered = uneven.select(*_BLOCK, running.alias("running")).where(F.col("running") <= most)
    looked_at = F.broadcast(numbered.select(*_BLOCK, F.lit(True).alias("is_looked_at")))
    each = {name: F.when(F.col("is_looked_at"), F.col(name)).alias(name) for name in ("hashes", "sizes")}
    joined = keyed.join(looked_at, list(_BLOCK), "left")
    return joined.select(*(each.get(name, F.col(name)) for name in columns))


def _named(expressions: dict[str, str]) -> "list[Column]":
    return [F.expr(text).alias(name) for name, text in expressions.items()]


def judged(committed: str, topics: frozenset[str]) -> "Column":
    """The verdicts on these topics, as an array, from the column `runs`, an array of all rows of evidence.
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
