"""Queries of Spark that began twice: what a first micro-batch has was known to nobody but the driver that was
killed in it."""

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType

import hawser
from hawser.spark.source.columns import full_schema
from hawser.spark.source.options import Options
from hawser.spark.source.queue import QueueReader
from hawser.spark.source.stream import StreamReader
from tests.support.cluster import RunningCluster
from tests.support.source import trim


def opened(kind: Any, cluster: RunningCluster, **given: str) -> Any:
    """A reader as it is beside a driver."""
    options = Options.of({"endpoints": cluster.url, **given}, streaming=True)
    return kind(options, full_schema(options, BinaryType()))


@pytest.mark.parametrize("beginning", ["earliest", "latest"])
def test_a_first_batch_that_is_run_again_has_the_same_records(
    cluster: RunningCluster, beginning: str
) -> None:
    """Spark asked a second time where it begins. What had come, or was no longer kept, since the first time
    was in no batch, and nobody was told."""
    topic = cluster.connect().topic(f"begun-{beginning}")
    topic.publish_many([b"before"] * 10)
    given = {"subscribe": topic.name, "startingOffsets": beginning}
    reader = opened(StreamReader, cluster, **given)
    start = reader.initialOffset()
    topic.publish_many([b"now"] * 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    first = 1 if beginning == "earliest" else 11
    topic.publish_many([b"later"] * 5)
    trim(cluster, topic, 8)
    again = opened(StreamReader, cluster, **given)
    for believed in (start, again.initialOffset(), {topic.name: {**end[topic.name], "0": 21}}):
        (split,) = again.partitions(believed, end)
        assert (split.wanted.first, split.wanted.end) == (first, 16)
    (split,) = again.partitions(end, again.latestOffset(end, ReadAllAvailable()))
    assert (split.wanted.first, split.wanted.end) == (16, 21)


def test_a_checkpoint_ahead_of_the_log_is_a_loss(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a backup was restored. The query waited until the log had grown to where it was, and nobody
    read the records until then."""
    topic = cluster.connect().topic("restored")
    topic.publish_many([b"before"] * 10)
    given = {"subscribe": topic.name}
    end = opened(StreamReader, cluster, **given).initialOffset()
    (place,) = end.values()
    del place["began"]
    ahead = {topic.name: {**place, "0": 31}}
    text = "the log ends at record 10, and this query has read up to record 30. So 20 records are gone"
    with pytest.raises(hawser.OffsetOutOfRange, match=text):
        opened(StreamReader, cluster, **given).latestOffset(ahead, ReadAllAvailable())
    reader = opened(StreamReader, cluster, **given, failOnDataLoss="false")
    anew = reader.latestOffset(ahead, ReadAllAvailable())
    assert anew == {topic.name: {"uuid": place["uuid"], "0": 1}} and reader.partitions(ahead, anew) == []
    assert reader.latestOffset(anew, ReadAllAvailable()) == end | {topic.name: place}
    (split,) = reader.partitions(anew, {topic.name: place})
    assert (split.wanted.first, split.wanted.end) == (1, 11)
    (message,) = [each.getMessage() for each in caplog.records if each.name == "hawser.spark.source"]
    assert text in message
    # At the end is not behind it.
    assert opened(StreamReader, cluster, **given).latestOffset(end, ReadAllAvailable()) == end


def test_a_first_claim_is_read_by_one_query(cluster: RunningCluster) -> None:
    """A second query of the same claimName took it for its own that had been lost, and both read it."""
    queue = cluster.connect().queue("begun")
    queue.put_many([b"message"] * 10)
    readers = [opened(QueueReader, cluster, queue="begun", claimName="tests") for _ in range(2)]
    starts = [reader.initialOffset() for reader in readers]
    ends = [
        reader.latestOffset(start, ReadAllAvailable()) for reader, start in zip(readers, starts, strict=True)
    ]
    assert ends[0]["messages"] == ends[1]["messages"] == [[1, 10]]
    (share,) = readers[1].partitions(starts[1], ends[1])
    assert len(list(readers[1].read(share))) > 0
    with pytest.raises(hawser.Fenced, match="another query has claimed under this claimName"):
        readers[0].partitions(starts[0], ends[0])
    for reader in readers:
        reader.stop()
