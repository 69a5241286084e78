"""What tests of the Spark source share."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hawser import Topic
from hawser.cluster import wire
from hawser.log.entry import Kind
from hawser.log.state.commands import TrimTo, encode_command
from hawser.log.state.results import Trimmed, decode_result
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS


def read(spark: SparkSession, url: str, topics: str, schema: str | None = None, **options: Any) -> DataFrame:
    """These topics as a batch."""
    reader = spark.read.format("hawser").options(endpoints=url, subscribe=topics, **options)
    return (reader if schema is None else reader.schema(schema)).load()


def follow(spark: SparkSession, url: str, topics: str | None, **options: Any) -> DataFrame:
    """These topics as a stream, from their beginning unless told otherwise."""
    given = {"endpoints": url, "startingOffsets": "earliest", **options}
    if topics is not None:
        given["subscribe"] = topics
    return spark.readStream.format("hawser").options(**given).load()


def land(data: DataFrame, directory: Path) -> StreamingQuery:
    """What is there now, into Parquet, from where the last query in this directory stopped."""
    return (
        data.writeStream.format("parquet")
        .option("path", str(directory / "table"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def landed(spark: SparkSession, directory: Path) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of all rows there, sorted."""
    rows = spark.read.parquet(str(directory / "table")).select("topic", "partition", "offset").collect()
    return sorted((row.topic, row.partition, row.offset) for row in rows)


def shard_of(topic: Topic[Any], partition: int = 0) -> str:
    return topic.info().partitions[partition].shard


def trim(cluster: RunningCluster, topic: Topic[Any], offset: int, partition: int = 0) -> None:
    """What retention does: forget the records below `offset`. Returns when every replica has."""
    info = topic.info().partitions[partition]
    payload = encode_command(TrimTo(offset))
    answer = cluster.ask(wire.Execute(info.shard, Kind.TRIM, payload), info.leader)
    assert isinstance(answer, wire.Executed), answer
    result = decode_result(answer.result)
    assert isinstance(result, Trimmed), result

    def has_applied(node: str) -> bool:
        return bool(cluster.ask(wire.Fetch(info.shard, 1, 1, 0.0), node).start == result.start)

    wait_for(lambda: all(map(has_applied, cluster.nodes)), "the trim on every replica")


def wait_for(condition: Callable[[], Any], what: str, seconds: float = LIMIT_SECONDS) -> Any:
    """What `condition` gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return found


class Barrier:
    """Rows wait here: each task says that it has begun, and goes on when it is opened."""

    def __init__(self, directory: Path) -> None:
        self._begun = directory / "begun"
        self._open = directory / "open"

    def through(self, data: DataFrame) -> DataFrame:
        begun, opened = str(self._begun), str(self._open)

        def wait(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                Path(begun).touch()
                while not os.path.exists(opened):
                    time.sleep(0.01)
                yield batch

        return data.mapInArrow(wait, data.schema)

    def wait_until_reached(self) -> None:
        wait_for(self._begun.exists, "the first row")

    def open(self) -> None:
        self._open.touch()
