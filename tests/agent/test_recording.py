"""Recorders between real shared memory and a real cluster: what is recorded, what they wait for, what is said
of what is lost."""

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from hawser.agent.recording import Recorder
from hawser.agent.recording import target as recording_target
from hawser.agent.recording.blocks import Block
from hawser.cluster.client.publish.partitioner import partition_of
from hawser.cluster.client.publish.stamped import AppendResult, StampedPartition
from hawser.record.batch import MAX_BATCH_BYTES, Batch
from hawser.record.record import Stamp
from hawser.record.recording import Gap, recorder_id
from hawser.testing import LocalBus
from tests.agent.recorded import check_tiling, recording, rows_of, until_recorded, until_state
from tests.support.cluster import RunningCluster
from tests.support.etcd import free_ports
from tests.support.processes import Daemon, until

NOWHERE = "hawser://127.0.0.1:1"


def a_topic(local: LocalBus, name: str = "t", **settings: Any) -> hawser.Topic[Any]:
    topic: hawser.Topic[Any] = local.connect("publisher").topic(name, **settings)
    return topic


def test_messages_are_recorded_as_they_were_published(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local)
    messages: list[tuple[bytes, bytes | None, dict[str, bytes]]] = [
        (b"plain", None, {}),
        (b"", None, {}),
        (b"keyed", b"k", {}),
        (b"", b"", {"a": b"", "b": b"\x00\xff"}),
        (b"x" * 60_000, None, {"h": b"v"}),
        (b"last", None, {}),
    ]
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        for data, key, headers in messages:
            topic.publish(data, key=key, headers=headers)
        until_recorded(recorder, len(messages))
        status = recorder.status()
    samples = topic.read_oldest(100).samples
    rows = rows_of(cluster.url, target)
    assert [(row.record.value, row.record.key, dict(row.record.headers)) for row in rows] == messages
    assert [row.record.timestamp_ns for row in rows] == [each.timestamp_ns for each in samples]
    assert {row.producer for row in rows} == {recorder_id("recorder", topic.info().uuid).decode()}
    assert check_tiling(rows) == (len(messages), 0)
    assert (status.recorded, status.gaps, status.lost, status.lag, status.error) == (6, 0, 0, 0, None)


def test_a_recorder_goes_on_where_the_last_one_was(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local, history=0, depth=300)
    for run in range(4):
        topic.publish_many([b"%d" % (100 * run + number) for number in range(100)])
        with recording(local.url, "t", cluster.url, target=target) as recorder:
            if run == 0:
                # Nobody waited for it then.
                until_recorded(recorder, 100)
                continue
            until_recorded(recorder, 100 * (run + 1))
            assert recorder.status().recorded == 100
    rows = rows_of(cluster.url, target)
    assert check_tiling(rows) == (300, 100)
    assert [row.record.value for row in rows if row.gap is None] == [b"%d" % each for each in range(100, 400)]


def test_what_was_overwritten_before_is_a_gap(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local, history=10)
    topic.publish_many([b"%d" % number for number in range(1, 101)])
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_recorded(recorder, 100)
        status = recorder.status()
    rows = rows_of(cluster.url, target)
    assert [row.gap for row in rows[:3]] == [Gap(1, 1), Gap(2, 90), None]
    assert check_tiling(rows) == (10, 90)
    assert (status.recorded, status.gaps, status.lost, status.position) == (10, 2, 90, 100)


def test_publishers_do_not_wait_beyond_max_lag(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local, history=0, depth=50)
    with recording(local.url, "t", cluster.url, target=target, max_lag=20) as recorder:
        until_state(recorder, "recording")
        topic.publish(b"1")
        until_recorded(recorder, 1)
    topic.publish_many([b"%d" % number for number in range(2, 201)])
    with recording(local.url, "t", cluster.url, target=target, max_lag=20) as recorder:
        until_recorded(recorder, 200)
        topic.publish(b"201")
        until_recorded(recorder, 201)
    rows = rows_of(cluster.url, target)
    samples, gone = check_tiling(rows)
    assert samples + gone == 201 and gone > 0
    assert [int(row.record.value) for row in rows if row.gap is None] == [
        row.sequence for row in rows if row.gap is None
    ]


def test_a_max_lag_beyond_what_the_topic_keeps_is_refused(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    """Publishers would wait for the dead recorder all the same, and for ever."""
    topic = a_topic(local, history=4, depth=4)
    with recording(local.url, "t", cluster.url, target=target, max_lag=9) as recorder:
        until_state(recorder, "failed")
        assert "--max-lag 9 is more than the 8 samples that topic 't' retains" in str(recorder.status().error)
    with recording(local.url, "t", cluster.url, target=target, max_lag=8) as recorder:
        until_state(recorder, "recording")
    for number in range(100):
        topic.publish(b"%d" % number, timeout=0)


def test_without_max_lag_publishers_wait_for_a_dead_recorder(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local, history=0, depth=50)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
    with pytest.raises(hawser.Full):
        topic.publish_many([b"x"] * 60, timeout=0)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        topic.publish_many([b"y"] * 60)
        until(lambda: recorder.status().lag == 0 and recorder.status().position >= 100, "all recorded")
        assert recorder.status().lost == 0


def test_a_region_made_anew_is_a_new_stream(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        topic.publish_many([b"a"] * 5)
        until_recorded(recorder, 5)
        topic.delete(force=True)
        until_state(recorder, "waiting for topic")
        again = local.connect("another").topic("t")
        until_state(recorder, "recording")
        again.publish_many([b"b"] * 3)
        until(lambda: recorder.status().recorded == 8, "the other region recorded")
        assert recorder.status().position == 3
    rows = rows_of(cluster.url, target)
    first, second = rows[:5], rows[5:]
    assert first[0].producer != second[0].producer
    assert (check_tiling(first), check_tiling(second)) == ((5, 0), (3, 0))


def test_a_target_that_is_deleted_is_made_again_and_says_what_it_lacks(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        topic.publish_many([b"a"] * 5)
        until_recorded(recorder, 5)
        cluster.connect("deleter").topic(target, create=False).delete()
        topic.publish_many([b"b"] * 3)
        until(lambda: recorder.status().recorded == 8, "the rest recorded")
    rows = rows_of(cluster.url, target)
    assert [row.gap for row in rows] == [Gap(1, 1), Gap(2, 5), None, None, None]
    assert check_tiling(rows) == (3, 5)


def test_large_messages_and_one_that_no_batch_can_hold(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    sizes = [1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20, MAX_BATCH_BYTES, 2]
    topic = a_topic(local, slot_size=MAX_BATCH_BYTES + 4096)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        for number, size in enumerate(sizes):
            topic.publish(bytes([number]) * size, headers={"n": b"%d" % number} if size > 1 << 20 else None)
        until_recorded(recorder, len(sizes))
        assert recorder.status().lost == 1
    rows = rows_of(cluster.url, target)
    assert check_tiling(rows) == (6, 1)
    assert [0 if row.gap else len(row.record.value) for row in rows] == [
        0 if size == MAX_BATCH_BYTES else size for size in sizes
    ]
    assert rows[4].record.headers == {"n": b"4"} and rows[5].gap == Gap(6, 6)


def test_two_hosts_into_one_topic(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    with LocalBus() as other:
        hosts = {"one": local, "two": other}
        topics = {name: a_topic(host) for name, host in hosts.items()}
        options = {"target": target, "partitions": 3}
        with (
            recording(local.url, "t", cluster.url, name="one", **options) as first,
            recording(other.url, "t", cluster.url, name="two", **options) as second,
        ):
            until_state(first, "recording")
            until_state(second, "recording")
            for number in range(50):
                for name, topic in topics.items():
                    topic.publish(f"{name} {number}".encode())
            until_recorded(first, 50)
            until_recorded(second, 50)
        rows = rows_of(cluster.url, target)
        for name, topic in topics.items():
            producer = recorder_id(name, topic.info().uuid)
            mine = [row for row in rows if row.producer == producer.decode()]
            assert {row.partition for row in mine} == {partition_of(producer, 3)}
            assert check_tiling(mine) == (50, 0)
            assert [row.record.value for row in mine] == [f"{name} {each}".encode() for each in range(50)]


def test_a_compressed_target_gets_compressed_batches(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    cluster.connect().topic(target, compression="zstd")
    topic = a_topic(local)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        topic.publish_many([b"v" * 100] * 60)
        until_recorded(recorder, 60)
    assert check_tiling(rows_of(cluster.url, target)) == (60, 0)


# Waiting.


def test_what_compression_makes_too_large_is_recorded_as_it_is(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    cluster.connect().topic(target, compression="lz4")
    largest = MAX_BATCH_BYTES - 4096
    topic = a_topic(local, slot_size=largest, history=1, depth=1)
    topic.publish(os.urandom(largest))
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_recorded(recorder, 1)
        assert recorder.status().recorded == 1


def test_a_topic_that_cannot_be_read_is_no_topic_to_wait_for(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local, slot_size=64)
    file = local.directory / "t.topic"
    data = file.read_bytes()
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        topic.delete(force=True)
        file.write_bytes(b"damaged" + data[7:])
        file.chmod(0o600)
        until_state(recorder, "failed")
        assert "not a Hawser topic" in (recorder.status().error or "")
        file.unlink()
        until_state(recorder, "waiting for topic")
        a_topic(local, slot_size=64).publish(b"x")
        until(lambda: recorder.status().recorded == 1, "a sample")


def test_a_sample_that_cannot_be_read_is_told_once(
    cluster: RunningCluster,
    local: LocalBus,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = []

    def refuse(self: Block, stamp: Stamp) -> Batch:
        tries.append(stamp)
        raise hawser.Corrupt("key and headers cannot be read")

    caplog.set_level("INFO", "hawser.agent")
    monkeypatch.setattr(Block, "batch", refuse)
    a_topic(local, history=1).publish(b"x")
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until(lambda: len(tries) >= 3, "some tries")
        until_state(recorder, "failed")
        assert "key and headers" in (recorder.status().error or "")
        # A slow machine may have told of the cluster, too.
        told = [each.message for each in caplog.records if each.name == "hawser.agent"]
        assert told.count("topic t is not recorded: key and headers cannot be read") == 1
        monkeypatch.undo()
        until_recorded(recorder, 1)


def test_a_cluster_that_never_answered_is_told(local: LocalBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hawser.agent")
    a_topic(local)
    with recording(local.url, "t", NOWHERE):
        until(lambda: any(each.name == "hawser.agent" for each in caplog.records), "a line of the log")
    (line,) = [each.message for each in caplog.records if each.name == "hawser.agent"]
    assert line.startswith("recording to t waits: no node of the cluster answers")


def test_what_was_never_answered_is_counted_once_it_is_there(
    cluster: RunningCluster, local: LocalBus, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = StampedPartition.publish
    unanswered: list[AppendResult | None] = []

    async def lose_the_answer(
        self: StampedPartition, batch: Batch, timeout: float, follows: int
    ) -> AppendResult | None:
        landed = await publish(self, batch, timeout, follows)
        if not unanswered:
            unanswered.append(landed)
            raise hawser.OutcomeUnknown("no answer")
        return landed

    monkeypatch.setattr(StampedPartition, "publish", lose_the_answer)
    a_topic(local, history=3).publish_many([b"x"] * 3)
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until(lambda: recorder.status().recorded == 3, "all that is recorded")
    assert unanswered == [AppendResult(1, 3, True)]
    assert check_tiling(rows_of(cluster.url, target)) == (3, 0)


def test_it_waits_for_its_topic_then_for_the_cluster(local: LocalBus) -> None:
    with recording(local.url, "t", NOWHERE) as recorder:
        until_state(recorder, "waiting for topic")
        until(lambda: "no topic 't'" in (recorder.status().error or ""), "a reason")
        topic = a_topic(local)
        until_state(recorder, "waiting for cluster")
        topic.publish_many([b"x"] * 10)
        until(lambda: recorder.status().lag == 10, "a lag of 10")
        until(lambda: "127.0.0.1:1" in (recorder.status().error or ""), "a reason")


def test_it_goes_on_when_the_cluster_is_back(tmp_path: Path, local: LocalBus, record_property: Any) -> None:
    topic = a_topic(local, history=0, depth=1000)
    with RunningCluster(tmp_path) as own, recording(local.url, "t", own.url) as recorder:
        until_state(recorder, "recording")
        for node in ("n1", "n2"):
            own.stop(node)
        topic.publish_many([b"%d" % number for number in range(100)])
        until_state(recorder, "waiting for cluster")
        record_property("said", recorder.status().error)
        for node in ("n1", "n2"):
            own.start(node)
        until_recorded(recorder, 100)
        assert recorder.status().state == "recording"
        assert check_tiling(rows_of(own.url, "t")) == (100, 0)


def test_it_finds_another_cluster_at_the_same_address(
    tmp_path: Path, local: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_target, "_PAUSE_MOST_SECONDS", 0.1)
    (port,) = free_ports(1)
    arguments = ["up", "--nodes", "1", "--listen", f"127.0.0.1:{port}", "--dir"]
    topic = a_topic(local)
    with recording(local.url, "t", f"hawser://127.0.0.1:{port}", replication=1) as recorder:
        with Daemon([*arguments, str(tmp_path / "first")], tmp_path / "first.log"):
            until_state(recorder, "recording")
            topic.publish_many([b"a"] * 5)
            until_recorded(recorder, 5)
        topic.publish_many([b"b"] * 3)
        with Daemon([*arguments, str(tmp_path / "second")], tmp_path / "second.log") as second:
            until(lambda: recorder.status().recorded == 8, "the rest recorded")
            rows = rows_of(second.ready, "t")
    assert [row.gap for row in rows] == [Gap(1, 1), Gap(2, 5), None, None, None]


def test_a_second_one_of_the_name_waits_for_the_first(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local)
    arguments = (local.url, "t", cluster.url)
    with recording(*arguments, target=target) as first:
        until_state(first, "recording")
        with recording(*arguments, target=target) as second:
            until(lambda: "held by a living" in (second.status().error or ""), "a reason")
            topic.publish(b"x")
            until_recorded(first, 1)
            assert second.status().recorded == 0
    assert check_tiling(rows_of(cluster.url, target)) == (1, 0)


class Order(msgspec.Struct):
    number: int


class Invoice(msgspec.Struct):
    number: int
    total: float


def test_a_typed_topic_stays_typed(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local, schema=Order)
    topic.publish(Order(7))
    with recording(local.url, "t", cluster.url, target=target) as recorder:
        until_recorded(recorder, 1)
    recorded = cluster.connect().topic(target, schema=Order)
    assert recorded.subscribe(start="earliest").take_value(60) == Order(7)
    other = f"{target[:50]}-other"
    cluster.connect().topic(other, schema=Invoice)
    with pytest.raises(hawser.SettingsMismatch, match="has the schema 'msgpack:Invoice:"):
        Recorder(local.url, "t", cluster.url, name="agent", target=other).run(threading.Event())


def test_a_target_with_other_settings_is_refused_for_good(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    cluster.connect().topic(target, partitions=2)
    a_topic(local)
    recorder = Recorder(local.url, "t", cluster.url, name="r", target=target, partitions=3)
    with pytest.raises(hawser.SettingsMismatch, match="partitions=3 was asked for but it has partitions=2"):
        recorder.run(threading.Event())
    assert recorder.status().state == "failed"
    assert "partitions=2" in (recorder.status().error or "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"domain_url": "hawser://h:1"}, "URL of a domain"),
        ({"topic": ""}, "a name has"),
        ({"to": "hawser://"}, "URL of a cluster"),
        ({"to": "shm://"}, "URL of a cluster"),
        ({"name": "n" * 56}, "bus name"),
        ({"name": "n" * 50}, "group name"),
        ({"target": "a//b"}, "empty part"),
        ({"partitions": 0}, "partitions=0 is outside"),
        ({"replication": 8}, "replication=8 is outside"),
        ({"max_lag": 0}, "max_lag=0"),
    ],
)
def test_arguments_that_cannot_be_right(changed: dict[str, Any], message: str) -> None:
    arguments = {"domain_url": "shm:///d", "topic": "t", "to": NOWHERE, "name": "r", **changed}
    with pytest.raises(hawser.UsageError, match=message):
        Recorder(**arguments)
