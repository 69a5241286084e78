"""Streams written to topics: every row once, whatever is run again, held up, stopped or killed on the way."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import hawser
from tests.support.cluster import RunningCluster
from tests.support.sink import begin, copy, counted, prepared
from tests.support.source import follow, wait_for


def filled(bus: hawser.Bus, name: str, count: int = 300) -> tuple[hawser.Topic[Any], Counter[bytes]]:
    """A topic, and what a copy of it has."""
    topic = bus.topic(name, partitions=2)
    values = [b"%s %d" % (name.encode(), number) for number in range(count)]
    topic.publish_many(values, keys=values)
    return topic, Counter(values)


def forget_last_note(directory: Path) -> None:
    """Let Spark believe that its last batch was not done."""
    notes = sorted((directory / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(notes) > 1
    notes[-1].unlink()
    notes[-1].with_name(f".{notes[-1].name}.crc").unlink(missing_ok=True)


def test_a_stream_is_written_once(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """Also when Spark does not know that its last batch was written, as after a driver that was killed
    between the decision and its own note of it."""
    source, expected = filled(bus, "once")
    target = bus.topic("once/copy", partitions=3)
    copy(spark, cluster.url, "once", tmp_path, topic="once/copy").awaitTermination()
    assert counted(target) == expected
    forget_last_note(tmp_path)
    copy(spark, cluster.url, "once", tmp_path, topic="once/copy").awaitTermination()
    assert counted(target) == expected
    source.publish_many([b"more"] * 10)
    copy(spark, cluster.url, "once", tmp_path, topic="once/copy").awaitTermination()
    assert counted(target) == expected + Counter({b"more": 10})
    # A canary: under another name nobody knows what was written, and the last batch is there twice.
    forget_last_note(tmp_path)
    copy(spark, cluster.url, "once", tmp_path, topic="once/copy", txnAppId="canary").awaitTermination()
    assert counted(target) == expected + Counter({b"more": 20})


def test_a_checkpoint_that_is_older_than_what_was_written_is_refused(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """Its next batches have numbers that were decided, and rows that nobody wrote."""
    source, expected = filled(bus, "restored", 20)
    target = bus.topic("restored/copy", partitions=2)
    copy(spark, cluster.url, "restored", tmp_path, topic="restored/copy").awaitTermination()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "saved")
    for number in range(2):
        source.publish(b"%d" % number)
        expected[b"%d" % number] += 1
        copy(spark, cluster.url, "restored", tmp_path, topic="restored/copy").awaitTermination()
    source.publish(b"unseen")
    newest = (tmp_path / "checkpoint").rename(tmp_path / "newest")
    (tmp_path / "saved").rename(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="those up to 2: the checkpoint is older than what this query wrote"):
        copy(spark, cluster.url, "restored", tmp_path, topic="restored/copy").awaitTermination()
    assert counted(target) == expected
    (tmp_path / "checkpoint").rename(tmp_path / "saved")
    newest.rename(tmp_path / "checkpoint")
    copy(spark, cluster.url, "restored", tmp_path, topic="restored/copy").awaitTermination()
    assert counted(target) == expected + Counter([b"unseen"])


def test_a_checkpoint_that_is_older_by_one_batch_is_refused_unless_that_is_the_same(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """A copy of a checkpoint is one, with which a second query goes on."""
    source, expected = filled(bus, "copied", 20)
    target = bus.topic("copied/copy")
    checkpoint, saved = tmp_path / "checkpoint", tmp_path / "saved"

    def write() -> None:
        copy(spark, cluster.url, "copied", tmp_path, topic="copied/copy").awaitTermination()

    def restore() -> None:
        shutil.rmtree(checkpoint)
        shutil.copytree(saved, checkpoint)

    write()
    shutil.copytree(checkpoint, saved)
    source.publish(b"1")
    write()
    restore()
    write()
    restore()
    source.publish(b"2")
    with pytest.raises(Exception, match="from other offsets of its sources"):
        write()
    assert counted(target) == expected + Counter([b"1"])


def test_a_query_is_stopped_between_prepare_and_decision(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    _, expected = filled(bus, "stopped", 80)
    target = bus.topic("stopped/copy")
    (tmp_path / "hold").touch()
    query = copy(spark, cluster.url, "stopped", tmp_path, topic="stopped/copy")
    wait_for(lambda: prepared(cluster.url) == 1, "one task that has prepared")
    query.stop()
    assert counted(target) == Counter()
    (tmp_path / "hold").unlink()
    copy(spark, cluster.url, "stopped", tmp_path, topic="stopped/copy").awaitTermination()
    assert counted(target) == expected
    wait_for(lambda: not prepared(cluster.url), "the end of what was prepared first")


def test_of_two_queries_with_one_name_the_second_is_refused(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """A new checkpoint counts its batches from 0 again: what it reads would be taken for repeats."""
    _, expected = filled(bus, "named", 20)
    target = bus.topic("named/copy")
    options: dict[str, Any] = {"topic": "named/copy", "txnAppId": "copies"}
    copy(spark, cluster.url, "named", tmp_path / "one", **options).awaitTermination()
    with pytest.raises(Exception, match="another query writes under this application's name"):
        copy(spark, cluster.url, "named", tmp_path / "two", **options).awaitTermination()
    assert counted(target) == expected
    copy(
        spark, cluster.url, "named", tmp_path / "two", topic="named/copy", txnAppId="more"
    ).awaitTermination()
    assert counted(target) == expected + expected


def test_foreach_batch_writes_to_two_topics_under_one_name(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """And from a new checkpoint, which counts its batches from 0 again, to none."""
    _, expected = filled(bus, "each", 20)
    targets = [bus.topic("each/a"), bus.topic("each/b")]

    def write(batch: DataFrame, number: int) -> None:
        for target in targets:
            options: dict[str, Any] = {"topic": target.name, "txnAppId": "each", "txnVersion": number}
            rows = batch.select("value").write.format("hawser").mode("append")
            rows.options(endpoints=cluster.url, **options).save()

    def run(directory: Path) -> None:
        data = follow(spark, cluster.url, "each").writeStream.foreachBatch(write)
        data.option("checkpointLocation", str(directory)).trigger(
            availableNow=True
        ).start().awaitTermination()

    run(tmp_path / "one")
    with pytest.raises(Exception, match="another query writes under this application's name"):
        run(tmp_path / "two")
    assert [counted(target) for target in targets] == [expected, expected]


def test_an_aggregation_is_written_to_a_queue(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    source = bus.topic("readings")
    totals = bus.queue("totals")
    for run in (1, 2):
        source.publish_many([b"1"] * 10, keys=[b"a"] * 10)
        data = follow(spark, cluster.url, "readings").groupBy("key").count()
        rows = data.selectExpr("key", "CAST(count AS STRING) AS value")
        query = (
            rows.writeStream.outputMode("complete")
            .format("hawser")
            .options(endpoints=cluster.url, queue="totals", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        message = totals.get(timeout=30)
        assert message is not None and (message.key, bytes(message.data)) == (b"a", b"%d" % (10 * run))
        message.accept()
    assert totals.get(timeout=0) is None


def test_an_empty_batch_is_one(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    filled(bus, "empty", 10)
    target = bus.topic("empty/copy")
    data = follow(spark, cluster.url, "empty").select("value").where("value IS NULL")
    begin(data, cluster.url, tmp_path, topic="empty/copy").awaitTermination()
    assert counted(target) == Counter()
    begin(data, cluster.url, tmp_path, topic="empty/copy").awaitTermination()


def test_leaders_go_in_mid_batch(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    _, expected = filled(bus, "leaders", 150)
    target = bus.topic("leaders/copy", partitions=3)
    (tmp_path / "hold").touch()
    query = copy(spark, cluster.url, "leaders", tmp_path, topic="leaders/copy")
    wait_for((tmp_path / "held").exists, "a task with a part of its rows")
    victim = target.info().partitions[0].leader
    assert victim is not None
    cluster.stop(victim)
    (tmp_path / "hold").unlink()
    query.awaitTermination()
    cluster.start(victim)
    assert counted(target) == expected
