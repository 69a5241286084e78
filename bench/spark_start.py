"""How long Spark takes from the start of a program to the first row of a source in Python, with each cure.

Run as a program: each way is a program of its own, `--rounds` times in turn, and the medians are printed.
The archive of classes is made first, unless there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from statistics import median

from hawser.spark.archive import make_archive
from hawser.spark.runtime.session import spark_home
from hawser.spark.runtime.spark_home import installed_home

WAYS = {
    "bare PySpark": {},
    "session": {"SPARK_HOME": str(installed_home()), "HAWSER_SPARK_ARCHIVE": "no"},
    "session, home of links": {"HAWSER_SPARK_ARCHIVE": "no"},
    "session, home of links, archive": {},
}

PROGRAM = """
import json, sys, time
began = time.perf_counter()
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)

class One(DataSource):
    @classmethod
    def name(cls):
        return "one"
    def schema(self):
        return "number int"
    def reader(self, schema):
        return Reader()

if sys.argv[1] == "bare PySpark":
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[2]").getOrCreate()
else:
    import hawser.spark
    spark = hawser.spark.session("bench", "local[2]")
stands = time.perf_counter()
spark.dataSource.register(One)
assert len(spark.read.format("one").load().collect()) == 1
row = time.perf_counter()
stream = spark.readStream.format("rate").load().writeStream.format("noop")
stream.trigger(availableNow=True).start().awaitTermination()
print(json.dumps([stands - began, row - stands, time.perf_counter() - row]))
spark.stop()
"""


def seconds(way: str) -> list[float]:
    """Until the session stands, from there to the first row, and for a first stream."""
    surroundings = {**os.environ, "PYSPARK_PYTHON": sys.executable, **WAYS[way]}
    command = [sys.executable, "-c", PROGRAM, way]
    done = subprocess.run(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    make_archive(spark_home())
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    loads = [os.getloadavg()[0]]
    for _ in range(rounds):
        for way, times in found.items():
            times.append(seconds(way))
            loads.append(os.getloadavg()[0])
    print(f"seconds, medians of {rounds}; load {min(loads):.1f} to {max(loads):.1f}")
    print(f"{'':34}{'session':>9}{'first row':>11}{'together':>10}{'lowest':>8}{'highest':>9}{'stream':>8}")
    for way, times in found.items():
        stands, row, stream = (median(each) for each in zip(*times, strict=True))
        whole = [each[0] + each[1] for each in times]
        line = f"{way:34}{stands:9.1f}{row:11.1f}{median(whole):10.1f}{min(whole):8.1f}{max(whole):9.1f}"
        print(f"{line}{stream:8.1f}")


if __name__ == "__main__":
    main()
