"""A program as users write it: a topic into files, at whatever master it is told.

Usage: query_program.py MASTER URL TOPIC DIRECTORY
Prints what is in the files at the end, as JSON.
"""

import json
import sys
from pathlib import Path

import hawser.spark


def main() -> None:
    master, url, topic, name = sys.argv[1:]
    directory = Path(name)
    spark = hawser.spark.session("query", master, **{"spark.executor.memory": "512m"})
    stream = spark.readStream.format("hawser").option("endpoints", url).option("subscribe", topic)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1000)
    files = stream.load().writeStream.format("parquet").queryName("query").trigger(availableNow=True)
    query = files.option("checkpointLocation", str(directory / "checkpoint")).start(str(directory / "files"))
    query.awaitTermination()
    rows = spark.read.parquet(str(directory / "files"))
    found = rows.selectExpr(
        "count(*) rows", "count(distinct partition, offset) offsets", "count(distinct value) messages"
    ).first()
    assert found is not None
    print(json.dumps(found.asDict()))
    spark.stop()


if __name__ == "__main__":
    main()
