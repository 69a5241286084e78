"""A cluster was restored from a backup while its clients lived on: they waited in silence until the log had
grown to where they were, and never got the records before that. Found by review."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType

import hawser
from hawser import aio
from hawser.agent.recording import stream as recording_stream
from hawser.record.recording import Gap
from hawser.spark.source.columns import full_schema
from hawser.spark.source.options import Options
from hawser.spark.source.stream import StreamReader
from hawser.testing import LocalBus
from tests.agent.recorded import check_tiling, recording, rows_of, until_recorded, until_state
from tests.support.cluster import RunningCluster
from tests.support.processes import until

SECONDS = 60.0
NOWHERE = "hawser://127.0.0.1:1"
GONE = r"topic 'orders', partition 0: the log was put back.* Records 5 to 9, .* are not in it any more"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


def publish(topic: Any, first: int, last: int) -> None:
    topic.publish_many([b"%d" % number for number in range(first, last + 1)])


def publish_one_by_one(topic: Any, first: int, last: int) -> None:
    for number in range(first, last + 1):
        topic.publish(b"%d" % number)


def taken(subscription: Any, count: int) -> list[bytes]:
    """So many samples, one by one."""
    return [bytes(subscription.take(SECONDS)) for _ in range(count)]


def until_taken(subscription: Any, value: bytes) -> None:
    """Take samples up to this one, again if they were taken before."""
    while True:
        with suppress(hawser.Fenced):
            sample = subscription.take(SECONDS)
            assert sample is not None
            if bytes(sample) == value:
                return


@contextmanager
def stopped(bus: Any) -> Iterator[None]:
    """The event loop of a bus stands still, as if its process were stopped."""
    is_over = threading.Event()
    bus._thread.loop.call_soon_threadsafe(is_over.wait, SECONDS)
    try:
        yield
    finally:
        is_over.set()


@pytest.fixture
def topic(cluster: RunningCluster, tmp_path: Path) -> Any:
    """There is a backup with four samples."""
    topic = cluster.connect("publisher").topic("orders")
    publish(topic, 1, 4)
    cluster.back_up(tmp_path / "backup")
    return topic


@pytest.mark.parametrize("group", [None, "g"])
def test_a_subscription_ahead_of_the_log_ends_with_an_error(
    cluster: RunningCluster, topic: Any, tmp_path: Path, group: str | None
) -> None:
    publish(topic, 5, 9)
    subscription = topic.subscribe(start="earliest", group=group)
    assert len(taken(subscription, 9)) == 9
    cluster.restore(tmp_path / "backup")
    with pytest.raises(hawser.OffsetOutOfRange, match=GONE):
        subscription.take(SECONDS)
    subscription.close()
    with topic.subscribe(start="earliest", group=group) as again:
        publish(topic, 5, 6)
        assert taken(again, 6) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("group", [None, "g"])
def test_the_same_with_asyncio(
    cluster: RunningCluster, topic: Any, tmp_path: Path, group: str | None
) -> None:
    async def read() -> None:
        async with aio.connect(cluster.url, connect_timeout=SECONDS) as bus:
            opened = bus.topic("orders")
            async with opened.subscribe(start="earliest", group=group) as subscription:
                for _ in range(9):
                    assert await subscription.take(SECONDS) is not None
                await asyncio.to_thread(cluster.restore, tmp_path / "backup")
                with pytest.raises(hawser.OffsetOutOfRange, match=GONE):
                    await subscription.take(SECONDS)

    publish(topic, 5, 9)
    asyncio.run(read())


@pytest.mark.parametrize("group", [None, "g"])
def test_a_log_that_grew_again_is_told_from_the_one_that_was_read(
    cluster: RunningCluster, topic: Any, tmp_path: Path, group: str | None
) -> None:
    """It has as many records as before when the client comes back: others."""
    url = cluster.url
    reader = hawser.connect(url, name="reader", connect_timeout=SECONDS)
    publish(topic, 5, 9)
    subscription = reader.topic("orders").subscribe(start="earliest", group=group)
    assert len(taken(subscription, 9)) == 9
    with stopped(reader):
        cluster.restore(tmp_path / "backup")
        publish(topic, 10, 20)
    with pytest.raises(hawser.OffsetOutOfRange, match=GONE):
        subscription.take(SECONDS)
    subscription.close()
    with reader.topic("orders").subscribe(start="earliest", group=group) as again:
        assert taken(again, 15) == [b"%d" % number for number in (*range(1, 5), *range(10, 21))]
    reader.close()


def test_a_group_is_not_moved_by_what_was_read_of_another_log(
    cluster: RunningCluster, topic: Any, tmp_path: Path
) -> None:
    """The records between were passed over: the position it was moved from was the same in both logs."""
    consumer = cluster.connect("consumer")
    member = consumer.topic("orders").subscribe(start="earliest", group="g")
    taken(member, 4)
    member.commit()
    cluster.back_up(tmp_path / "with member")
    publish(topic, 5, 9)
    assert taken(member, 5) == [b"5", b"6", b"7", b"8", b"9"]
    with stopped(consumer):
        cluster.restore(tmp_path / "with member")
        publish(topic, 10, 20)
    with pytest.raises((hawser.OffsetOutOfRange, hawser.Fenced)):
        member.commit()
    member.close()
    with consumer.topic("orders").subscribe(start="earliest", group="g") as again:
        assert taken(again, 11) == [b"%d" % number for number in range(10, 21)]


def test_a_read_after_what_is_gone_raises(cluster: RunningCluster, topic: Any, tmp_path: Path) -> None:
    """It returned nothing until the log had grown."""
    publish(topic, 5, 9)
    last = topic.read_oldest(100).last
    assert topic.read_oldest(100, after=last).samples == []
    cluster.restore(tmp_path / "backup")
    with pytest.raises(hawser.OffsetOutOfRange, match="no record 9 to read after; the log ends at record 4"):
        topic.read_oldest(100, after=last)


def test_a_query_of_spark_is_told_that_its_log_was_put_back(
    cluster: RunningCluster, topic: Any, tmp_path: Path
) -> None:
    """The log had grown past the checkpoint, and the records before that were never read."""

    def opened(**more: str) -> Any:
        options = Options.of({"endpoints": cluster.url, "subscribe": "orders", **more}, streaming=True)
        return StreamReader(options, full_schema(options, BinaryType()))

    publish(topic, 5, 9)
    reader = opened(startingOffsets="earliest")
    checkpoint = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    cluster.halt()
    cluster.go_on()
    assert opened().latestOffset(checkpoint, ReadAllAvailable()) == checkpoint
    cluster.restore(tmp_path / "backup")
    publish(topic, 10, 20)
    with pytest.raises(hawser.OffsetOutOfRange, match=r"record 9, up to .* another one now"):
        opened().latestOffset(checkpoint, ReadAllAvailable())
    going_on = opened(failOnDataLoss="false")
    anew = going_on.latestOffset(checkpoint, ReadAllAvailable())
    end = going_on.latestOffset(anew, ReadAllAvailable())
    (split,) = going_on.partitions(anew, end)
    assert (split.wanted.first, split.wanted.end) == (1, 16)


def test_a_member_goes_on_in_a_group_whose_generations_are_counted_again(
    cluster: RunningCluster, topic: Any, tmp_path: Path
) -> None:
    """It waited for a generation above the one that it knew; each commit was refused for the old one."""
    orders: Any = cluster.connect("consumer").topic("orders")
    with orders.subscribe(start="earliest", group="g") as member:
        taken(member, 4)
        member.commit()
        cluster.back_up(tmp_path / "with member")
        for _ in range(3):
            orders.subscribe(group="g").close()
        until(lambda: member._consumer._generation == 7, "the member knows the last generation")
        cluster.restore(tmp_path / "with member")
        publish(topic, 5, 9)
        deadline = monotonic() + SECONDS
        while True:
            assert monotonic() < deadline
            until_taken(member, b"9")
            with suppress(hawser.Fenced):
                member.commit()
                break
    with orders.subscribe(group="g") as again:
        publish(topic, 10, 10)
        assert taken(again, 1) == [b"10"]


@pytest.mark.parametrize("lives_on", [True, False])
def test_a_recorder_records_again_what_its_region_has(
    cluster: RunningCluster, local: LocalBus, tmp_path: Path, caplog: pytest.LogCaptureFixture, lives_on: bool
) -> None:
    """It went on behind what it had recorded: nothing said that the samples between were missing."""
    region = local.connect("publisher").topic("t", history=3, depth=4)
    with ExitStack() as first:
        recorder = first.enter_context(recording(local.url, "t", cluster.url))
        until_state(recorder, "recording")
        publish_one_by_one(region, 1, 4)
        until_recorded(recorder, 4)
        cluster.back_up(tmp_path / "backup")
        publish_one_by_one(region, 5, 20)
        until_recorded(recorder, 20)
        if not lives_on:
            first.close()
            recorder = first.enter_context(recording(local.url, "t", NOWHERE))
        cluster.restore(tmp_path / "backup")
        if not lives_on:
            first.close()
            recorder = first.enter_context(recording(local.url, "t", cluster.url))
        publish_one_by_one(region, 21, 21)
        until_recorded(recorder, 21)
        status = recorder.status()
    rows = rows_of(cluster.url, "t")
    assert check_tiling(rows) == (21 - status.lost, status.lost)
    assert {Gap(5, 5), Gap(6, 13), Gap(6, 14)} >= {row.gap for row in rows if row.gap is not None}
    recorded = [int(row.record.value) for row in rows if row.gap is None]
    assert recorded[:4] == [1, 2, 3, 4] and recorded[4:] == list(range(22 - len(recorded[4:]), 22))
    assert set(range(15, 21)) <= set(recorded)
    assert "ends after sample 4, but samples up to 20 were recorded before" in caplog.text


def test_an_idle_recorder_records_again(
    cluster: RunningCluster, local: LocalBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published that would make it look."""
    monkeypatch.setattr(recording_stream, "_LOOK_SECONDS", 0.1)
    region = local.connect("publisher").topic("t", history=20)
    with recording(local.url, "t", cluster.url) as recorder:
        until_state(recorder, "recording")
        for first in (1, 5):
            publish_one_by_one(region, first, first + 3)
            until_recorded(recorder, first + 3)
            if first == 1:
                cluster.back_up(tmp_path / "backup")
        cluster.restore(tmp_path / "backup")
        until(lambda: recorder.status().recorded == 12, "what was lost recorded again")
    assert check_tiling(rows_of(cluster.url, "t")) == (8, 0)


def test_a_recorded_queue_says_what_is_gone(
    cluster: RunningCluster, local: LocalBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = local.connect("producer").queue("q")
    with recording(local.url, "q", cluster.url) as recorder:
        until_state(recorder, "recording")
        for run in range(2):
            queue.put_many([b"%d" % (4 * run + number) for number in range(1, 5)])
            until_recorded(recorder, 4 * run + 4)
            if run == 0:
                cluster.back_up(tmp_path / "backup")
        cluster.restore(tmp_path / "backup")
        queue.put(b"9")
        until_recorded(recorder, 9)
        assert recorder.status().lost == 4
    recorded = cluster.connect("consumer").queue("q")
    assert recorded.get_values(5, SECONDS) == [b"1", b"2", b"3", b"4", b"9"]
    assert "messages 5 to 8 were recorded before and are no longer in any queue" in caplog.text
