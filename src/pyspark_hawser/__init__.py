"""What Spark looks for by its name: `format("hawser")` finds `DefaultSource` here.

Spark imports every module whose name begins like this one's before it looks for any source; one that failed,
or took its time, would be in the way of all. So nothing else is imported before it is used.
"""

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    # Spark 3 has no sources in Python and does not look here.
    pass
else:
    if TYPE_CHECKING:
        from pyspark.sql.datasource import (
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            DataSourceWriter,
        )
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """Topics and queues of a cluster, as batches and streams; topics in shared memory, as batches."""

        @classmethod
        def name(cls) -> str:
            return "hawser"

        def schema(self) -> "StructType | str":
            from hawser.spark.source import factory

            return factory.schema(self.options)

        def reader(self, schema: "StructType") -> "DataSourceReader":
            from hawser.spark.source import factory

            return factory.reader(self.options, schema)

        def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
            from hawser.spark.source import factory

            return factory.stream_reader(self.options, schema)

        def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
            from hawser.spark.sink import factory

            return factory.writer(self.options, schema, overwrite)

        def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
            from hawser.spark.sink import factory

            return factory.stream_writer(self.options, schema)
