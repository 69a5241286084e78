"""Chooses the reader of a query by its options, after it has checked the packages that Spark needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hawser.spark.python_workers import set_imports_aside
from hawser.spark.requirements import check_packages

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["reader", "schema", "stream_reader"]


def schema(given: Mapping[str, str]) -> "StructType | str":
    """The columns of a query whose user gave no schema."""
    check_packages()
    from hawser.spark.source.options import Options
    from hawser.spark.source.schema import schema_of

    found = schema_of(Options.of(given))
    set_imports_aside()
    return found


def reader(given: Mapping[str, str], schema: "StructType") -> "DataSourceReader":
    check_packages()
    from hawser.spark.source.batch import BatchReader
    from hawser.spark.source.local import LocalReader
    from hawser.spark.source.options import Options
    from hawser.spark.source.schema import table_of

    options = Options.of(given, streaming=False)
    # Report at the driver what a task would find wrong with the schema.
    table_of(options, schema)
    return LocalReader(options, schema) if options.is_local else BatchReader(options, schema)


def stream_reader(given: Mapping[str, str], schema: "StructType") -> "DataSourceStreamReader":
    check_packages()
    from hawser.spark.source.options import Options
    from hawser.spark.source.queue import QueueReader
    from hawser.spark.source.schema import table_of
    from hawser.spark.source.stream import StreamReader

    options = Options.of(given, streaming=True)
    table_of(options, schema)
    return StreamReader(options, schema) if options.queue is None else QueueReader(options, schema)
