"""Topics that appear, and appear again, while a query runs. Found by review.

The reader runs here as beside a driver, over topics that the test lists.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMinRows
from pyspark.sql.types import BinaryType

from hawser.cluster.client.admin.offsets import Bounds
from hawser.cluster.wire import TopicEntry
from hawser.spark.source import stream
from hawser.spark.source.columns import full_schema
from hawser.spark.source.offsets import Bounded, Range
from hawser.spark.source.options import Options
from hawser.spark.source.stream import StreamReader

LIMIT = ReadMinRows(10)
RECORD_BYTES = 100


class Cluster:
    """Topics by name, each with its uuid and the ends of its partitions. The answering node lists those in
    `listed`; those in `appearing` are there too, but it does not know them yet."""

    def __init__(self) -> None:
        self.listed: dict[str, tuple[str, list[int]]] = {}
        self.appearing: dict[str, tuple[str, list[int]]] = {}
        self.waited_for: list[str] = []

    def topics(self, options: Options, all_of_them: bool = True) -> dict[str, TopicEntry]:
        return {name: self._entry(name) for name in self.listed}

    def topic(self, name: str) -> TopicEntry | None:
        self.waited_for.append(name)
        return self._entry(name) if name in self.appearing else None

    def bounds(self, topics: dict[str, TopicEntry], options: Options) -> dict[str, Bounded]:
        every = self.appearing | self.listed
        return {
            name: Bounded(entry.uuid, {number: Bounds(1, end) for number, end in enumerate(every[name][1])})
            for name, entry in topics.items()
        }

    def record_bytes(self, wanted: Sequence[Range]) -> list[int]:
        return [RECORD_BYTES] * len(wanted)

    def _entry(self, name: str) -> TopicEntry:
        uuid, ends = (self.appearing | self.listed)[name]
        return TopicEntry(1, uuid, len(ends), {})


class Query:
    """One that waits for an hour until it has 10 records."""

    def __init__(self, **given: str) -> None:
        asked = {"endpoints": "hawser://127.0.0.1:1", "subscribePattern": ".*", "startingOffsets": "earliest"}
        options = Options.of({**asked, "failOnDataLoss": "false", **given}, streaming=True)
        self.reader = StreamReader(options, full_schema(options, BinaryType()))

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Where the next micro-batch ends, with the topics as they are listed now."""
        self.reader._known_until = 0.0
        return self.reader.latestOffset(start, LIMIT)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(stream, "connection", lambda endpoints: made)
    return made


def test_a_new_topic_is_in_the_offsets_at_once(cluster: Cluster) -> None:
    """It waited with the others, for as long as maxTriggerDelay, and its lag was told as 0 until then."""
    query = Query(minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    cluster.listed = {"a": ("u1", [6])}
    first = query.latest(query.reader.initialOffset())
    cluster.listed = {"a": ("u1", [9])}
    assert query.latest(first) == first, "it waits"

    cluster.listed |= {"b": ("u2", [4])}
    second = query.latest(first)
    assert second == {"a": {"uuid": "u1", "0": 9}, "b": {"uuid": "u2", "0": 1}}
    assert query.reader.reportLatestOffset()["b"]["lag"] == {"records": 3, "bytes": 3 * RECORD_BYTES}
    assert query.latest(second) == second, "it waits again, since it has read what there was"

    cluster.listed |= {"b": ("u2", [4, 7])}
    third = query.latest(second)
    assert third == {"a": {"uuid": "u1", "0": 9}, "b": {"uuid": "u2", "0": 4, "1": 1}}
    cluster.listed |= {"b": ("u3", [4, 7])}
    fourth = query.latest(third)
    assert fourth == {"a": {"uuid": "u1", "0": 9}, "b": {"uuid": "u3", "0": 1, "1": 1}}
    assert query.latest(fourth) == fourth
    cluster.listed |= {"b": ("u3", [5, 7])}
    assert query.latest(fourth)["b"] == {"uuid": "u3", "0": 5, "1": 7}, "10 records are enough"


def test_a_topic_is_waited_for_each_time_it_is_missing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first time: then a node that did not know the topic yet made it a loss, which ends a query."""
    query = Query()
    there, after = {"a": ("u1", [6])}, {"a": ("u1", [8])}
    cluster.listed = there
    first = query.latest(query.reader.initialOffset())
    cluster.listed, cluster.appearing = {}, there
    assert [query.latest(first) for _ in range(2)] == [first, first]
    assert cluster.waited_for == ["a", "a"] and not told(caplog)

    cluster.listed, cluster.appearing = {}, {}
    assert [query.latest(first) for _ in range(2)] == [first, first]
    assert cluster.waited_for == ["a"] * 3, "one that does not appear is waited for once"
    (line,) = told(caplog)
    assert line.startswith("topic 'a' was deleted")
    cluster.listed = after
    second = query.latest(first)
    assert second == {"a": {"uuid": "u1", "0": 8}}
    cluster.listed, cluster.appearing = {}, after
    assert query.latest(second) == second
    assert cluster.waited_for == ["a"] * 4 and len(told(caplog)) == 1


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "hawser.spark.source"]
