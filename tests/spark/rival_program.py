"""A query that will not share its checkpoint: started again until it has failed often enough.

Usage: rival_program.py DIRECTORY FAILURES
Prints the errors, as a list in JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import hawser.spark


def start(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Numbers into files, some every second."""
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    files = numbers.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    return files.start(str(directory / "files"))


def main() -> None:
    directory, failures = Path(sys.argv[1]), int(sys.argv[2])
    spark = hawser.spark.session("rival", "local[1]")
    errors: list[str] = []
    while len(errors) < failures:
        try:
            start(spark, directory).awaitTermination()
        except PySparkException as error:
            errors.append(str(error))
    print(json.dumps(errors))
    spark.stop()


if __name__ == "__main__":
    main()
