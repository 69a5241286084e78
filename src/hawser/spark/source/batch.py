"""A batch query: records of some topics, up to an end that planning fixes."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hawser.spark.connection import connection
from hawser.spark.python_workers import set_imports_aside
from hawser.spark.source.offsets import ranges
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split, batch_end, beginning, plan
from hawser.spark.source.schema import check_topics, table_of
from hawser.spark.source.task import read_split

__all__ = ["BatchReader"]


class BatchReader(DataSourceReader):
    """Plans at the driver; Spark sends it to the tasks, where it reads."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = connection(options.endpoints)
        topics = cluster.topics(options)
        check_topics(options, topics)
        bounds = cluster.bounds(topics, options)
        start = beginning(options, cluster, topics, bounds)
        end = batch_end(options, cluster, topics, bounds)
        set_imports_aside()
        return list(plan(ranges(start, end), options.min_partitions, options.max_records))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark runs a task, with a partition of its own making, even if there is nothing to read.
        if isinstance(partition, Split):
            yield from read_split(partition, self._options, table_of(self._options, self._schema))
