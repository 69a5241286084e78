"""A program as users write it, for a cluster whose workers have no Hawser: a topic is copied to another.

Usage: bare_program.py MASTER SETTINGS WAY URL SOURCE TARGET DIRECTORY
Settings are JSON. WAY is `found` if Spark finds the source by itself, or a zip file that is sent along with
a source that is registered. Prints as JSON where tasks had Hawser from, and what it says of shared memory.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hawser.spark


def main() -> None:
    master, settings, way, url, source, target, name = sys.argv[1:]
    spark = hawser.spark.session("bare", master, **json.loads(settings))
    if way != "found":
        from pyspark_hawser import DefaultSource

        spark.sparkContext.addPyFile(way)
        spark.dataSource.register(DefaultSource)
    stream = spark.readStream.format("hawser").options(
        endpoints=url, subscribe=source, startingOffsets="earliest"
    )
    rows = stream.load().select("key", "value").writeStream.format("hawser")
    rows = rows.options(endpoints=url, topic=target).trigger(availableNow=True)
    rows.option("checkpointLocation", str(Path(name, "checkpoint"))).start().awaitTermination()
    read = spark.read.format("hawser").options(endpoints=url, subscribe=target).load()
    # What is sent to the workers must not be of a module that they do not have.
    found = spark.range(1).mapInArrow(_place, "executable string, hawser string, error string").first()
    assert found is not None
    print(json.dumps({"rows": read.count(), **found.asDict()}))
    spark.stop()


def _place(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    import hawser

    for _ in batches:
        try:
            hawser.connect()
        except hawser.UsageError as error:
            row = {"executable": sys.executable, "hawser": hawser.__file__, "error": str(error)}
            yield pyarrow.RecordBatch.from_pylist([row])


if __name__ == "__main__":
    main()
