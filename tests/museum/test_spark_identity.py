"""Batches of Spark that were taken for repeats of others, so that their rows were lost and no error said so.

The sink's writers run here as Spark runs them, but without Spark: a task has the properties that Spark gives
it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

import hawser
from hawser.cluster.client.transaction.application_batch import ApplicationBatch, decide_batch
from hawser.spark.connection import connection
from hawser.spark.sink.checkpoint import source_of
from hawser.spark.sink.options import Options
from hawser.spark.sink.writer import BatchWriter, StreamWriter
from tests.support.cluster import RunningCluster

VALUES = StructType().add("value", "binary")


def in_batch(query: str, number: int) -> dict[str, str]:
    """The properties of a task in `foreachBatch`."""
    return {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}


class Driver:
    """Writes batches of one task each."""

    def __init__(self, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._url = cluster.url
        self._patch = monkeypatch

    def write(
        self, rows: Iterable[bytes], properties: dict[str, str] | None = None, **options: object
    ) -> None:
        """As `DataFrame.write`, or in `foreachBatch` if the task has the properties of a query."""
        writer = BatchWriter(self._options(options, streaming=False), VALUES)
        writer.commit([self._run(writer.write, rows, properties or {})])

    def prepared(self, rows: Iterable[bytes], times: int, **options: object) -> tuple[BatchWriter, Any]:
        """As `write` with these rows so many times, before its end: the writer, and what it is to commit."""
        writer = BatchWriter(self._options(options, streaming=False), VALUES)
        return writer, self._run(
            lambda given: writer.write(each for each in given for _ in range(times)), rows, {}
        )

    def stream(self, rows: Iterable[bytes], number: int, **options: object) -> None:
        """As a micro-batch of the query `query`."""
        writer = StreamWriter(self._options(options, streaming=True), VALUES)
        writer.commit([self._run(writer.write, rows, in_batch("query", number))], number)

    def _options(self, options: dict[str, object], *, streaming: bool) -> Options:
        given = {name: str(value) for name, value in options.items()}
        return Options.of({"endpoints": self._url, **given}, streaming=streaming)

    def _run(
        self, write: Callable[[Iterator[Any]], Any], rows: Iterable[bytes], properties: dict[str, str]
    ) -> Any:
        task = SimpleNamespace(
            getLocalProperty=properties.get,
            partitionId=lambda: 0,
            attemptNumber=lambda: 0,
            taskAttemptId=lambda: 0,
        )
        with self._patch.context() as patch:
            patch.setattr(TaskContext, "get", lambda: task)
            return write(iter([pyarrow.record_batch({"value": pyarrow.array(rows, pyarrow.binary())})]))


@pytest.fixture
def driver(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(cluster, monkeypatch)


def values(topic: hawser.Topic[Any]) -> list[bytes]:
    return [bytes(sample.data) for sample in topic.read_oldest(10).samples]


def test_one_name_writes_to_several_targets(cluster: RunningCluster, driver: Driver) -> None:
    """What the second target was to get was taken for a repeat of what the first one had got."""
    bus = cluster.connect()
    topics, queue = [bus.topic(name) for name in ("a", "b")], bus.queue("c")
    version: dict[str, Any] = {"txnAppId": "landing", "txnVersion": 0}
    targets: list[dict[str, Any]] = [{"topic": "a"}, {"topic": "b"}, {"queue": "c"}]
    for target in 2 * targets:
        driver.write([b"row"], **target, **version)
    assert [values(topic) for topic in topics] == [[b"row"], [b"row"]]
    assert [bytes(message.data) for message in queue.get_many(2, timeout=0)] == [b"row"]


def test_a_new_checkpoint_under_an_old_name_is_refused(cluster: RunningCluster, driver: Driver) -> None:
    """Its batches, which foreachBatch writes, count from 0 again: they were taken for repeats."""
    topic = cluster.connect().topic("checkpoints")
    for number in range(2):
        version: dict[str, Any] = {"topic": "checkpoints", "txnAppId": "landing", "txnVersion": number}
        driver.write([b"%d" % number], in_batch("old", number), **version)
    driver.write([b"1"], in_batch("old", 1), **version)
    with pytest.raises(hawser.Fenced, match="another query writes under this application's name"):
        driver.write([b"2"], in_batch("new", 0), **version | {"txnVersion": 0})
    assert values(topic) == [b"0", b"1"]


def test_a_name_that_belongs_to_no_query_is_refused_in_foreach_batch(
    cluster: RunningCluster, driver: Driver
) -> None:
    """Nobody knows whether a batch that was written over Spark Connect was of this query."""
    topic = cluster.connect().topic("moved")
    version: dict[str, Any] = {"topic": "moved", "txnAppId": "landing"}
    driver.write([b"0"], txnVersion=0, **version)
    with pytest.raises(hawser.Fenced, match="give this one a name of its own"):
        driver.write([b"1"], in_batch("query", 1), txnVersion=1, **version)
    driver.write([b"1"], in_batch("query", 1), txnVersion=1, **version | {"txnAppId": "landing-2"})
    assert values(topic) == [b"0", b"1"]


def test_an_older_checkpoint_is_refused_in_foreach_batch(cluster: RunningCluster, driver: Driver) -> None:
    """A query runs its last micro-batch again, and none before it."""
    topic = cluster.connect().topic("older")
    for number in range(3):
        version: dict[str, Any] = {"topic": "older", "txnAppId": "landing", "txnVersion": number}
        driver.write([b"%d" % number], in_batch("query", number), **version)
    with pytest.raises(hawser.Fenced, match="those up to 2: the checkpoint is older"):
        driver.write([b"3"], in_batch("query", 1), **version | {"txnVersion": 1})
    # Versions that are not the numbers of micro-batches may come back in any order.
    driver.write([b"0"], in_batch("query", 7), **version | {"txnVersion": 1})
    assert values(topic) == [b"0", b"1", b"2"]


def test_a_batch_in_parts_is_written_again(cluster: RunningCluster, driver: Driver) -> None:
    """Batch 0 has the versions 0 and 1, batch 1 the versions 2 and 3. When the driver was killed in batch 0,
    its first part was refused for good, because its version is the number of the batch by chance."""
    topic = cluster.connect().topic("parts")
    for _ in range(2):
        for version in range(2):
            row = b"%d" % version
            driver.write([row], in_batch("query", 0), topic="parts", txnAppId="landing", txnVersion=version)
    assert values(topic) == [b"0", b"1"]


def plan(checkpoint: Path, number: int, *ends: str) -> None:
    """What Spark notes before it runs a micro-batch: where that ends in each source."""
    checkpoint.joinpath("offsets").mkdir(parents=True, exist_ok=True)
    note = "\n".join(("v1", f'{{"batchTimestampMs":{time.time_ns()}}}', *ends))
    checkpoint.joinpath("offsets", str(number)).write_text(note)


def end(offset: int) -> str:
    """Of a topic."""
    return f'{{"topic":{{"0":{offset}}}}}'


def list_files(checkpoint: Path, name: str, *files: tuple[str, int], source: str = "1") -> None:
    """What Spark notes of a source of files, by default the second: the number at which each was found."""
    listed = checkpoint / "sources" / source / name
    listed.parent.mkdir(parents=True, exist_ok=True)
    lines = (f'{{"path":"{path}","timestamp":7,"batchId":{number}}}' for path, number in files)
    listed.write_text("\n".join(("v1", *lines)))


def skipped(cluster: RunningCluster) -> int:
    """How many batches all nodes together have counted as repeats."""
    return sum(node.observers.skipped_batches for node in cluster._nodes.values())


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the sink has logged, and not the nodes, which run in this process too."""
    return [each.getMessage() for each in caplog.records if each.name == "hawser.spark.sink"]


def test_a_batch_that_is_skipped_is_named_and_counted(
    cluster: RunningCluster, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that gave two batches one number lost the second one, and nothing said so."""
    topic = cluster.connect().topic("skipped")
    before = skipped(cluster)
    version: dict[str, Any] = {"topic": "skipped", "txnAppId": "landing", "txnVersion": 7}
    driver.write([b"one"], in_batch("query", 3), **version)
    assert not logged(caplog) and skipped(cluster) == before
    driver.write([b"other"], in_batch("query", 3), **version)
    (message,) = logged(caplog)
    assert message.startswith("batch 7 of 'landing' for topic 'skipped' was written before and is skipped")
    # A call that is slow is sent again, and counted again.
    assert message.endswith("(query query)") and skipped(cluster) > before
    assert values(topic) == [b"one"]


def test_a_claim_that_is_committed_again_is_not_counted(cluster: RunningCluster) -> None:
    """When home had forgotten the claim, the query of a queue counted as a writer whose batch was skipped."""
    node, claim = connection(cluster.url), ApplicationBatch(b"claim:0:name", b"query", 1)
    before = skipped(cluster)
    assert node.call(decide_batch(node.router, node.coordinators, claim, []))
    assert not node.call(decide_batch(node.router, node.coordinators, claim, [b"forgotten"]))
    assert skipped(cluster) == before


@pytest.mark.parametrize("rows", [[b"other"], []])
def test_a_copied_checkpoint_is_refused_where_it_differs(
    cluster: RunningCluster, driver: Driver, tmp_path: Path, rows: list[bytes]
) -> None:
    """Two queries counted the same batches, and what the second one wrote was taken for a repeat."""
    topic = cluster.connect().topic(f"copied-{len(rows)}")
    one, other = (
        {"topic": topic.name, "checkpointLocation": each}
        for each in (tmp_path / "one", (tmp_path / "an other").as_uri())
    )
    plan(tmp_path / "one", 0, end(10))
    plan(tmp_path / "an other", 0, end(11))
    driver.stream(rows, 0, **one)
    with pytest.raises(hawser.Fenced, match=r"from other offsets.* another query has a copy"):
        driver.stream([b"lost"], 0, **other)
    # The same batch again, planned by whomever, is a repeat.
    plan(tmp_path / "an other", 0, end(10))
    driver.stream([b"lost"], 0, **other)
    assert values(topic) == rows


@pytest.mark.parametrize("rows", [[b"4"], []])
def test_a_target_that_lost_batches_is_named(
    cluster: RunningCluster, driver: Driver, rows: list[bytes]
) -> None:
    """A target that was restored from a backup took a query's next batch, and those between were lost."""
    topic = cluster.connect().topic(f"restored-{len(rows)}")
    # The first batch for a target may have any number.
    driver.stream([b"1"], 1, topic=topic.name)
    with pytest.raises(hawser.OffsetOutOfRange, match="batches 2 to 3 are missing there"):
        driver.stream(rows, 4, topic=topic.name)
    with pytest.raises(
        hawser.OffsetOutOfRange, match=r"batch 2 is missing there.* behind the rows of batch 1"
    ):
        driver.stream(rows, 3, topic=topic.name)
    # With a checkpoint of the time of the backup, and without those that are gone.
    driver.stream([b"2"], 2, topic=topic.name)
    driver.stream(rows, 4, topic=topic.name, txnAppId="without")
    assert values(topic) == [b"1", b"2", *rows]


def test_files_tell_batches_apart(cluster: RunningCluster, driver: Driver, tmp_path: Path) -> None:
    """A source of files ends at a number, so other files under that number were taken for a repeat."""
    topic = cluster.connect().topic("files")
    one, copy = tmp_path / "one", tmp_path / "copy"
    for checkpoint in (one, copy):
        plan(checkpoint, 3, end(10), '{"logOffset":2}')
    list_files(one, "2", ("a", 2), ("b", 2))
    list_files(copy, "2", ("a", 2), ("c", 2))
    driver.stream([b"row"], 3, topic="files", checkpointLocation=one)
    with pytest.raises(hawser.Fenced, match="from other offsets"):
        driver.stream([b"lost"], 3, topic="files", checkpointLocation=copy)
    # Where they are listed with those before them, they are the same.
    (copy / "sources" / "1" / "2").unlink()
    list_files(copy, "2.compact", ("b", 2), ("0", 0), ("1", 1), ("a", 2))
    driver.stream([b"lost"], 3, topic="files", checkpointLocation=copy)
    assert values(topic) == [b"row"]


def test_files_that_are_not_listed_tell_nothing(tmp_path: Path) -> None:
    plan(tmp_path, 0, end(10), '{"logOffset":2}')
    assert source_of(str(tmp_path), 0) == b""
    list_files(tmp_path, "2", ("a", 2))
    assert len(source_of(str(tmp_path), 0)) == 16
    list_files(tmp_path, "2", ("a", 1))
    assert source_of(str(tmp_path), 0) == b""


def test_files_of_a_source_with_a_name_are_told_apart(tmp_path: Path) -> None:
    """Spark 4.3 notes them so with `spark.sql.streaming.queryEvolution.enableSourceEvolution`."""
    plan(tmp_path, 0, 'one:{"logOffset":0}', 'two:{"logOffset":0}')
    list_files(tmp_path, "0", ("a", 0), source="one")
    assert source_of(str(tmp_path), 0) == b""
    list_files(tmp_path, "0", ("b", 0), source="two")
    before = source_of(str(tmp_path), 0)
    list_files(tmp_path, "0", ("c", 0), source="two")
    assert len(before) == 16 and source_of(str(tmp_path), 0) not in (b"", before)


def test_a_topic_that_was_made_anew_is_another_target(cluster: RunningCluster, driver: Driver) -> None:
    bus = cluster.connect()
    version: dict[str, Any] = {"topic": "anew", "txnAppId": "landing", "txnVersion": 0}
    for _ in range(2):
        topic = bus.topic("anew")
        driver.write([b"row"], **version)
        assert values(topic) == [b"row"]
        topic.delete()
