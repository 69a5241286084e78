"""What tests of the Spark sink share: a query from one topic to another that can be held up, and what it
wrote."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import hawser
from hawser.api.info import PartitionInfo
from hawser.cluster.client.admin.transactions import Stage, survey_transactions
from hawser.spark.connection import connection
from tests.support.source import follow, wait_for


def copy(
    spark: SparkSession, url: str, source: str, directory: Path, per_batch: int = 100, **options: Any
) -> StreamingQuery:
    """Begin to write what is in a topic now to another one, in two tasks for each micro-batch; the second of
    them stops before its last rows while there is a file `hold`, and fails at its first attempt if there is a
    file `fail`."""
    data = follow(spark, url, source, maxOffsetsPerTrigger=per_batch, minPartitions=2)
    return begin(held_up(data.select("key", "value"), directory), url, directory, **options)


def begin(data: DataFrame, url: str, directory: Path, **options: Any) -> StreamingQuery:
    """Begin to write all there is now."""
    return (
        data.writeStream.format("hawser")
        .options(endpoints=url, **options)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def held_up(data: DataFrame, directory: Path) -> DataFrame:
    place = str(directory)

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if context.partitionId() == 1:
                if os.path.exists(f"{place}/fail") and context.attemptNumber() == 0:
                    raise ValueError("as told")
                while os.path.exists(f"{place}/hold"):
                    Path(place, "held").touch()
                    time.sleep(0.01)
            yield batch.slice(half)

    return data.mapInArrow(wait, data.schema)


def prepared(url: str) -> int:
    """How many branches wait for a decision."""
    cluster = connection(url)
    survey = cluster.call(survey_transactions(cluster.router, 30))
    return sum(each.stage is Stage.PREPARED for each in survey.transactions)


def partitions_of(topic: hawser.Topic[Any]) -> list[PartitionInfo]:
    """As they are now. As long as nobody says where one ends it is asked again."""

    def known() -> list[PartitionInfo] | None:
        found = topic.info().partitions
        return found if all(each.end for each in found) else None

    found: list[PartitionInfo] = wait_for(known, f"the ends of {topic.name}")
    return found


def counted(topic: hawser.Topic[Any]) -> Counter[bytes]:
    """How often each value is in a topic."""
    found: Counter[bytes] = Counter()
    for each in partitions_of(topic):
        samples = topic.read_oldest(each.end - each.start, partition=each.partition).samples
        found.update(bytes(sample.data) for sample in samples)
    return found
