"""A program that does what most programs do with Spark, so that Java records the classes for the archive.

`archive.py` runs it with options for Java. It prints the class path and ends when Java has ended, which
writes the archive.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from hawser.spark.runtime.session import session

_ROWS = 10


class Numbers(DataSource):
    """A batch of Arrow for a batch query and for the first micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "at timestamp, number bigint, value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchOfNumbers()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        return StreamOfNumbers()


class BatchOfNumbers(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _batches()


class StreamOfNumbers(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802, Spark's name
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802, Spark's name
        return {"number": _ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _batches()


def _batches() -> Iterator[Any]:
    at = pyarrow.array([0] * _ROWS, pyarrow.timestamp("us", tz="UTC"))
    number = pyarrow.array(range(_ROWS), pyarrow.int64())
    value = pyarrow.array([b"{}"] * _ROWS, pyarrow.binary())
    yield pyarrow.RecordBatch.from_arrays([at, number, value], names=["at", "number", "value"])


def rehearse(spark: SparkSession, directory: Path) -> None:
    """A query, a stream into files and one with state, tables, SQL."""
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("numbers").load()
    numbers.createOrReplaceTempView("numbers")
    spark.sql("select number % 2, count(*), max(at), from_json(string(value), 'a int') from numbers"
              " group by all order by 1").collect()  # fmt: skip
    stream = spark.readStream.format("numbers").load()
    files = directory / "files"
    landing = stream.writeStream.format("parquet").option("checkpointLocation", str(directory / "landing"))
    landing.trigger(availableNow=True).start(str(files)).awaitTermination()
    assert spark.read.parquet(str(files)).count() == _ROWS
    counts = stream.withWatermark("at", "1 minute").groupBy("at").count().writeStream.format("noop")
    counts = counts.option("checkpointLocation", str(directory / "counts")).trigger(availableNow=True)
    counts.start().awaitTermination()
    numbers.write.saveAsTable("kept")
    assert len(spark.table("kept").toPandas()) == _ROWS


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        spark = session(
            "rehearsal",
            "local[2]",
            **{
                "spark.driver.memory": "1g",
                "spark.driver.extraJavaOptions": sys.argv[1],
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
                "spark.sql.warehouse.dir": f"{name}/warehouse",
            },
        )
        rehearse(spark, Path(name).absolute())
        gateway: Any = spark.sparkContext._gateway
        java = gateway.proc
        print(gateway.jvm.java.lang.System.getProperty("java.class.path"))
        spark.stop()
        # Java ends when its standard input does.
        java.stdin.close()
        java.wait()


if __name__ == "__main__":
    main()
