"""A Python source and sink that do nothing: the minimum cost of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType


class EmptyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A source with a given number of micro-batches, each with one task and no rows."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"batch": min(start["batch"] + 1, self._batches)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end is already known."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())

    def commit(self, end: dict[str, int]) -> None:
        """There is nothing to commit."""


class _Taking:
    """Discards all rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class EmptyWriter(_Taking, DataSourceArrowWriter):
    """The writer of a batch."""


class EmptyStreamWriter(_Taking, DataSourceStreamArrowWriter):
    """The writer of a stream."""


class NullSource(DataSource):
    """`format("nothing")`; as a source the option `batches` is its number of micro-batches."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "key binary, value binary, offset bigint"

    def streamReader(self, schema: StructType) -> EmptyReader:  # noqa: N802
        return EmptyReader(int(self.options["batches"]))

    def writer(self, schema: StructType, overwrite: bool) -> EmptyWriter:
        return EmptyWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> EmptyStreamWriter:  # noqa: N802
        return EmptyStreamWriter()
