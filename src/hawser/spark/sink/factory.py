"""Chooses the writer of a query, after it has checked the packages that Spark needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hawser.errors import UsageError
from hawser.spark.python_workers import set_imports_aside
from hawser.spark.requirements import check_packages

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["stream_writer", "writer"]


def writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "DataSourceWriter":
    check_packages()
    from hawser.spark.sink.options import Options
    from hawser.spark.sink.targets import check_target
    from hawser.spark.sink.writer import BatchWriter

    if overwrite:
        raise UsageError('topics and queues are written behind what they have; use mode("append")')
    options = Options.of(given, streaming=False)
    made = BatchWriter(options, schema)
    check_target(options)
    set_imports_aside()
    return made


def stream_writer(given: Mapping[str, str], schema: "StructType") -> "DataSourceStreamWriter":
    check_packages()
    from hawser.spark.sink.options import Options
    from hawser.spark.sink.targets import check_target
    from hawser.spark.sink.writer import StreamWriter

    options = Options.of(given, streaming=True)
    made = StreamWriter(options, schema)
    check_target(options)
    set_imports_aside()
    return made
