"""Attacks on streams between topics and queues, in one session: rivals of one name, time that runs out,
retention, and very many tasks. Every row is there once, or the query says why it stops."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import hawser
from hawser.cluster.client.transaction.application_batch import (
    ApplicationBatch,
    drop_branches,
    query_batches,
)
from hawser.log.entry import Entry, Kind
from hawser.log.state.machine import Machine
from hawser.log.state.results import Result
from hawser.spark.connection import connection
from hawser.spark.source.claims import Claims
from hawser.transaction.identity import Label
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS
from tests.support.sink import begin, copy, counted, held_up, prepared
from tests.support.source import follow, read, trim, wait_for

pytestmark = pytest.mark.timeout(900)

TASKS = 200


def filled(bus: hawser.Bus, name: str, count: int) -> tuple[hawser.Topic[Any], Counter[bytes]]:
    """A topic, and what a copy of it has."""
    topic = bus.topic(name, partitions=2)
    values = [b"%s %d" % (name.encode(), number) for number in range(count)]
    topic.publish_many(values, keys=values)
    return topic, Counter(values)


def filled_queue(bus: hawser.Bus, name: str, count: int) -> tuple[hawser.Queue[Any], Counter[bytes]]:
    queue = bus.queue(name)
    values = [b"%d" % number for number in range(count)]
    queue.put_many(values)
    return queue, Counter(values)


def take(
    spark: SparkSession, url: str, queue: str, directory: Path, target: str, **options: Any
) -> StreamingQuery:
    """Begin to write what is in a queue now to a topic, in two tasks that can be held up."""
    given = {"endpoints": url, "queue": queue, "claimName": "rivals", "minPartitions": 2, **options}
    data = spark.readStream.format("hawser").options(**given).load().select("value")
    return begin(held_up(data, directory), url, directory, topic=target)


# Two of one name.


def test_two_queries_claim_under_one_name_at_once(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """The second one finds the first claim open, and might take it for one of its own that was lost."""
    queue, expected = filled_queue(bus, "rivals", 60)
    target = bus.topic("rivals/copy")
    (tmp_path / "hold").touch()
    first = take(spark, cluster.url, "rivals", tmp_path, "rivals/copy", maxOffsetsPerTrigger=40)
    wait_for((tmp_path / "held").exists, "a task with a part of its rows")
    with pytest.raises(Exception, match="another query has claimed under this claimName"):
        take(spark, cluster.url, "rivals", tmp_path / "second", "rivals/copy").awaitTermination()
    assert counted(target) == Counter()
    (tmp_path / "hold").unlink()
    first.awaitTermination()
    assert counted(target) == expected
    # Nothing is left for others once the next look has committed the last claim.
    take(spark, cluster.url, "rivals", tmp_path, "rivals/copy").awaitTermination()
    assert counted(target) == expected and queue.get(timeout=0) is None


def test_of_two_that_found_the_same_claim_one_holds_it(cluster: RunningCluster, bus: hawser.Bus) -> None:
    """Whichever is first, if it made the claim or found it: the other one reads nothing."""
    client = connection(cluster.url)
    for turn in range(4):
        name = f"found-{turn}"
        filled_queue(bus, name, 10)
        entry = client.open(name, "queue")

        async def opened(owner: str, name: str = name, entry: Any = entry) -> Claims:
            return Claims(client.router, client.coordinators, name, entry, "tests", owner)

        claims = [client.call(opened(owner)) for owner in ("one", "other")]
        made = client.call(claims[0].make(1, 6, None, 3600))
        found = client.call(claims[1].open_claim(1) if turn < 2 else claims[1].make(1, 6, None, 3600))
        assert made is not None and found is not None and (made == found) == (turn < 2)
        held = [made, found]
        winner = turn % 2
        client.call(claims[winner].hold(held[winner]))
        with pytest.raises(hawser.Fenced, match="another query has claimed"):
            client.call(claims[1 - winner].hold(held[1 - winner]))
        client.call(claims[winner].hold(held[winner]))
        client.call(claims[winner].commit(held[winner]))
        for each in claims:
            client.call(each.close())


def test_two_queries_write_under_one_name_at_once(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """Both have prepared rows of their first batch when the first of them is decided."""
    _, expected = filled(bus, "named", 40)
    target = bus.topic("named/copy", partitions=2)
    options: dict[str, Any] = {"topic": "named/copy", "txnAppId": "at once"}
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
        (directory / "hold").touch()
    before = prepared(cluster.url)
    queries = [copy(spark, cluster.url, "named", each, **options) for each in directories]
    for directory in directories:
        wait_for((directory / "held").exists, "a task with a part of its rows")
    wait_for(lambda: prepared(cluster.url) > before, "a task that has prepared")
    for directory in directories:
        (directory / "hold").unlink()
    failures = []
    for query in queries:
        try:
            query.awaitTermination()
        except Exception as error:
            failures.append(str(error))
    (failure,) = failures
    assert "another query writes under this application's name" in failure
    assert counted(target) == expected


# Time that runs out.


def test_branches_expire_under_a_query(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """A batch of which a part has expired fails as a whole, and is written again."""
    _, expected = filled(bus, "expired", 80)
    target = bus.topic("expired/copy")
    (tmp_path / "hold").touch()
    before = prepared(cluster.url)
    query = copy(spark, cluster.url, "expired", tmp_path, topic="expired/copy", orphanSeconds=5)
    wait_for(lambda: prepared(cluster.url) > before, "a task that has prepared")
    wait_for(lambda: prepared(cluster.url) == before, "the end of what it prepared")
    (tmp_path / "hold").unlink()
    with pytest.raises(Exception, match="is not prepared"):
        query.awaitTermination()
    assert counted(target) == Counter()
    copy(spark, cluster.url, "expired", tmp_path, topic="expired/copy").awaitTermination()
    assert counted(target) == expected


def give_back(url: str, queue: str) -> None:
    """The first claim, as when its time is over."""
    client = connection(url)
    entry = client.open(queue, "queue")

    async def drop() -> None:
        claims = Claims(client.router, client.coordinators, queue, entry, "rivals", "")
        claim = await claims.open_claim(1)
        assert claim is not None
        await drop_branches(client.router, client.coordinators, claims._batch(1), [claim.name])
        await claims.close()

    client.call(drop())


def test_a_claim_expires_while_its_query_is_down(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """The batch would be run again with messages that others may have: it is not."""
    queue, expected = filled_queue(bus, "lapsed", 20)
    target = bus.topic("lapsed/copy")
    (tmp_path / "hold").touch()
    query = take(spark, cluster.url, "lapsed", tmp_path, "lapsed/copy")
    wait_for((tmp_path / "held").exists, "a task with a part of its rows")
    query.stop()
    (tmp_path / "hold").unlink()
    give_back(cluster.url, "lapsed")
    message = queue.get(timeout=60)
    assert message is not None
    with pytest.raises(Exception, match="was returned meanwhile"):
        take(spark, cluster.url, "lapsed", tmp_path, "lapsed/copy").awaitTermination()
    assert counted(target) == Counter()
    others = [message, *queue.get_many(20, timeout=60)]
    assert Counter(bytes(each.data) for each in others) == expected
    for each in others:
        each.accept()


# Batches that are run again.


def test_whether_a_batch_is_decided_is_known_before_it_is_written(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one that is run again stages nothing."""
    target = bus.topic("versions", partitions=2)
    client = connection(cluster.url)
    application = f"versions@{client.open('versions', 'topic').uuid}".encode()
    apply, staged = Machine.apply, set()

    def noting(machine: Machine, entry: Entry) -> Result:
        label = Label.read(entry.transaction) if entry.kind == Kind.BATCH else None
        if label is not None and label.id.xid.global_id == application:
            staged.add(label.id)
        return apply(machine, entry)

    monkeypatch.setattr(Machine, "apply", noting)

    def undecided() -> int:
        batch = ApplicationBatch(application, b"", 7)
        return client.call(query_batches(client.router, client.coordinators, batch)).undecided

    assert undecided() == 0
    rows = spark.range(0, 40, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    options: dict[str, Any] = {"endpoints": cluster.url, "topic": "versions", "txnAppId": "versions"}
    for _ in range(2):
        rows.write.format("hawser").mode("append").options(**options, txnVersion=7).save()
        assert undecided() == 8
        assert counted(target) == Counter(b"%d" % number for number in range(40))
        # A branch for each task of the first run.
        assert len(staged) == 2


# Retention.


def test_retention_takes_what_a_batch_has_to_read_again(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """The batch was decided, and the driver gone before Spark noted it; meanwhile its records are no longer
    kept. Whoever says that this is fine loses nothing and gets nothing twice."""
    source, expected = filled(bus, "kept", 40)
    target = bus.topic("kept/copy", partitions=2)
    copy(spark, cluster.url, "kept", tmp_path, topic="kept/copy").awaitTermination()
    note = tmp_path / "checkpoint" / "commits" / "0"
    note.unlink()
    note.with_name(".0.crc").unlink(missing_ok=True)
    for each in source.info().partitions:
        trim(cluster, source, each.end, each.partition)
    with pytest.raises(Exception, match="are no longer kept"):
        copy(spark, cluster.url, "kept", tmp_path, topic="kept/copy").awaitTermination()
    source.publish_many([b"later"] * 10, keys=[b"%d" % number for number in range(10)])
    data = follow(spark, cluster.url, "kept", failOnDataLoss=False).select("key", "value")
    begin(held_up(data, tmp_path), cluster.url, tmp_path, topic="kept/copy").awaitTermination()
    assert counted(target) == expected + Counter({b"later": 10})


def test_retention_goes_past_what_is_prepared(
    spark: SparkSession, cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path
) -> None:
    """Rows lie in the target's log before they are committed, among others that retention takes."""
    _, expected = filled(bus, "passed", 80)
    target = bus.topic("passed/copy", partitions=2)
    (tmp_path / "hold").touch()
    before = prepared(cluster.url)
    query = copy(spark, cluster.url, "passed", tmp_path, topic="passed/copy")
    wait_for(lambda: prepared(cluster.url) > before, "a task that has prepared")
    target.publish_many([b"other"] * 400, keys=[b"%d" % number for number in range(400)])
    for each in target.info().partitions:
        trim(cluster, target, each.end, each.partition)
    assert counted(target) == Counter()
    (tmp_path / "hold").unlink()
    query.awaitTermination()
    assert counted(target) == expected


# Very many.


@pytest.mark.slow
def test_two_hundred_tasks_and_partitions(
    spark: SparkSession,
    cluster: RunningCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Each task has a branch, and one decision names them all; then one task reads from each partition."""
    bus = cluster.connect("patient", timeout=LIMIT_SECONDS)
    wide = bus.topic("wide", partitions=TASKS, replication=1)
    rows = spark.range(0, 5 * TASKS, 1, TASKS).selectExpr(
        "CAST(id AS STRING) AS value", f"CAST(id % {TASKS} AS INT) AS partition"
    )
    rows.write.format("hawser").mode("append").options(endpoints=cluster.url, topic="wide").save()
    assert counted(wide) == Counter(b"%d" % number for number in range(5 * TASKS))
    narrow = bus.topic("narrow", partitions=3)
    data = follow(spark, cluster.url, "wide").select("key", "value")
    query = begin(data, cluster.url, tmp_path, topic="narrow")
    query.awaitTermination()
    assert counted(narrow) == counted(wide)
    assert read(spark, cluster.url, "wide").rdd.getNumPartitions() >= TASKS
    record_property("tasks", TASKS)
