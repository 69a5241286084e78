"""Decodes values and gap records in Spark, with the reason where that fails."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from hawser.errors import Corrupt
from hawser.record.recording import GAP_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["decoded", "gap_bounds", "is_gap"]

_FAULT_CHARACTERS: Final = 300


def decoded(value_format: str, kind: str) -> "Column":
    """Decode the column `value`: a struct of the `value` as `kind`, and its `fault`, which is null unless the
    value is not of that kind. UsageError if the format has no such kind."""
    parsed = DataType.fromDDL(kind)
    _faults_of(value_format, parsed)

    def decode(values: pyarrow.Array) -> pyarrow.Array:
        typed, faults = _faults_of(value_format, parsed)(values)
        return pyarrow.StructArray.from_arrays([typed, faults], names=["value", "fault"])

    function = cast(Any, F).arrow_udf(decode, f"struct<value: {kind}, fault: string>")
    return cast("Column", function(F.col("value")))


def _faults_of(value_format: str, kind: DataType) -> Callable[[Any], tuple[Any, Any]]:
    """The function that decodes an array of bytes, and gives the fault of each value that it cannot
    decode."""
    from hawser.spark.source.columns import CORRUPT
    from hawser.spark.values import typed

    permissive, strict = typed(value_format, kind, True), typed(value_format, kind, False)

    def make(values: Any) -> tuple[Any, Any]:
        columns = permissive(cast(Any, _Values(values)))
        faults: list[str | None] = [None] * len(values)
        for place, is_good in enumerate(columns[CORRUPT].is_null().to_pylist()):
            if not is_good:
                faults[place] = _fault(strict, values.slice(place, 1))
        return columns["value"], pyarrow.array(faults, pyarrow.string())

    return make


def _fault(strict: Callable[[Any], Any], value: Any) -> str:
    try:
        strict(_Values(value))
    except Corrupt as error:
        return str(error.__cause__)[:_FAULT_CHARACTERS]
    raise AssertionError("a value is corrupt in one mode and not in the other")


class _Values:
    """Values as the source has them, of no topic in particular and without gaps."""

    topic = ""
    partition = 0
    gaps: frozenset[int] = frozenset()

    def __init__(self, values: Any) -> None:
        self._values = values
        self.offsets = range(len(values))

    def value(self) -> Any:
        return self._values


def is_gap() -> "Column":
    """Whether a record is a gap, for samples that were lost before they could be recorded; never null."""
    return F.expr(
        "key is null and coalesce(octet_length(value), 0) = 0 "
        f"and coalesce(exists(headers, each -> each.key = '{GAP_HEADER}'), false)"
    )


def gap_bounds() -> tuple["Column", "Column"]:
    """The first and the last of those samples; null if a publisher wrote other bounds than a gap can have."""
    header = F.expr(f"filter(headers, each -> each.key = '{GAP_HEADER}')[0].value").cast("string")
    bounds = F.from_json(header, "first bigint, last bigint")
    is_possible = (bounds["first"] > 0) & (bounds["first"] <= bounds["last"])
    return F.when(is_possible, bounds["first"]), F.when(is_possible, bounds["last"])
