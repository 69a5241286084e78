"""What is traced on a host is in the cluster once: every record at its position, or in a gap that says so."""

import mmap
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.agent.recording import PayloadRecorder, TraceRecorder
from hawser.agent.recording.blocks import Block
from hawser.agent.recording.trace_source import TraceSource
from hawser.memory import Domain
from hawser.memory.trace_ring import TraceNames, open_ring, switch
from hawser.record.recording import Gap
from hawser.record.trace import RECORD_BYTES, TraceRecord, split_trace_key, trace_records
from hawser.testing import LocalBus
from tests.agent.recorded import Row, at_work, check_tiling, rows_of, until_recorded, until_state
from tests.agent.support import Agent
from tests.agent.test_recovery import SETTINGS, take_part
from tests.support.children import victim
from tests.support.cluster import RunningCluster
from tests.support.processes import hawser_command, until

HEAD_AT = 128


def a_topic(local: LocalBus, name: str = "t", **settings: Any) -> hawser.Topic[Any]:
    topic: hawser.Topic[Any] = local.connect("publisher").topic(name, **{"trace": "metadata", **settings})
    return topic


def head_of(local: LocalBus) -> int:
    return open_ring(Domain.of_url(local.url)).head


def trace_recorder(local: LocalBus, cluster: RunningCluster, target: str) -> TraceRecorder:
    return TraceRecorder(local.url, target, cluster.url, name="tracer")


def record_all(local: LocalBus, cluster: RunningCluster, target: str) -> list[Row]:
    """The rows of the target when everything that was traced until now is in it."""
    with at_work(trace_recorder(local, cluster, target)) as recorder:
        until_recorded(recorder, head_of(local))
    return rows_of(cluster.url, target)


def traced(row: Row) -> tuple[str, str, TraceRecord]:
    """(topic or queue, participant, record) of a row that is no gap."""
    (record,) = trace_records(row.record.value)
    assert row.record.key is not None and row.record.timestamp_ns == record.time_ns
    assert row.sequence == record.position + 1
    return (*split_trace_key(row.record.key), record)


def test_everything_that_happens_is_recorded_with_names(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local)
    subscription = local.connect("reader").topic("t").subscribe()
    topic.publish(b"payload")
    with subscription.take(60) as sample:  # type: ignore[union-attr]
        assert bytes(sample) == b"payload"
    jobs = local.connect("worker").queue("jobs", trace="metadata")
    jobs.put(b"job")
    with jobs.get(60) as job:  # type: ignore[union-attr]
        assert bytes(job) == b"job"
    rows = record_all(local, cluster, target)
    assert check_tiling(rows) == (len(rows), 0)
    assert rows[0].producer.startswith("recorder:tracer/")
    found = [(name, who, record.what, record.sequence) for name, who, record in map(traced, rows)]
    assert found == [
        ("t", "", "switched", 0),
        ("t", "reader", "subscribe", 0),
        ("t", "publisher", "subscribe", 0),
        ("t", "publisher", "publish", 1),
        ("t", "reader", "take", 1),
        ("t", "reader", "release", 1),
        ("jobs", "", "switched", 0),
        ("jobs", "worker", "subscribe", 0),
        ("jobs", "worker", "put", 1),
        ("jobs", "worker", "subscribe", 0),
        ("jobs", "worker", "claim", 1),
        ("jobs", "worker", "accept", 1),
    ]
    assert {record.pid for _, _, record in map(traced, rows)} == {os.getpid()}


def test_the_dead_are_named(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    a_topic(local, "x", **SETTINGS)
    with at_work(trace_recorder(local, cluster, target)) as recorder:
        with victim(take_part(local, "x")) as child:
            child.hear()
            until_recorded(recorder, head_of(local))
        local.connect("helper").recover()
        until_recorded(recorder, head_of(local))
    rows = [traced(row) for row in rows_of(cluster.url, target)]
    deaths = [(name, who) for name, who, record in rows if record.what == "recover"]
    assert deaths == [("x", "victim")] * 2


def test_what_was_overwritten_before_is_a_gap(
    cluster: RunningCluster, local: LocalBus, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", "64")
    topic = a_topic(local)
    topic.publish_many([b"%d" % number for number in range(200)])
    head = head_of(local)
    rows = record_all(local, cluster, target)
    assert [row.gap for row in rows[:3]] == [Gap(1, 1), Gap(2, head - 64), None]
    assert check_tiling(rows) == (64, head - 64)
    assert [record.sequence for _, _, record in map(traced, rows[2:])] == list(range(137, 201))


def test_a_recorder_goes_on_where_the_last_one_was(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local)
    for _ in range(3):
        topic.publish_many([b"x"] * 50)
        rows = record_all(local, cluster, target)
    assert check_tiling(rows) == (152, 0)


def test_two_of_one_name_write_everything_once(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local)
    with (
        at_work(trace_recorder(local, cluster, target)),
        at_work(trace_recorder(local, cluster, target)) as other,
    ):
        for _ in range(50):
            topic.publish_many([b"x"] * 20)
        until_recorded(other, head_of(local))
    rows = rows_of(cluster.url, target)
    assert check_tiling(rows) == (1002, 0)
    assert [record.position for _, _, record in map(traced, rows)] == list(range(1002))


def test_a_recorder_that_leaves_one_out_is_found(
    cluster: RunningCluster, local: LocalBus, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = TraceSource._block

    def leave_one_out(self: TraceSource, first: int, data: bytes) -> Block:
        return block(self, first, data[: 3 * RECORD_BYTES] + data[4 * RECORD_BYTES :])

    monkeypatch.setattr(TraceSource, "_block", leave_one_out)
    topic = a_topic(local)
    topic.publish_many([b"x"] * 10)
    with at_work(trace_recorder(local, cluster, target)) as recorder:
        until_recorded(recorder, head_of(local) - 1)
    with pytest.raises(AssertionError):
        [traced(row) for row in rows_of(cluster.url, target)]


def test_a_ring_made_anew_is_a_new_stream(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local)
    with at_work(trace_recorder(local, cluster, target)) as recorder:
        topic.publish(b"first")
        until_recorded(recorder, head_of(local))
        (local.directory / ".trace").unlink()
        domain = Domain.of_url(local.url)
        switch(domain, domain.open("t"), 1)
        topic.publish_many([b"second"] * 5)
        until(lambda: recorder.status().recorded >= 9, "the rest recorded", recorder.status)
    rows = rows_of(cluster.url, target)
    streams = {row.producer: [each for each in rows if each.producer == row.producer] for row in rows}
    kinds = [[traced(row)[2].what for row in stream] for stream in streams.values()]
    assert [check_tiling(stream) for stream in streams.values()] == [(len(each), 0) for each in kinds]
    assert kinds[0][:3] == ["switched", "subscribe", "publish"]
    assert kinds[1] == ["switched", *["publish"] * 5]


def test_what_is_behind_a_hole_is_taken_before_a_ring_is_left(local: LocalBus) -> None:
    topic = a_topic(local)
    topic.publish(b"x")
    ring = local.directory / ".trace"
    source = TraceSource(local.url, TraceNames(Domain.of_url(local.url)))
    before = source.head
    with ring.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        # As a writer leaves it that is killed before it writes.
        memory[HEAD_AT : HEAD_AT + 8] = (before + 1).to_bytes(8, "little")
    topic.publish(b"y")
    ring.unlink()
    taken: list[tuple[int, int]] = []
    with pytest.raises(hawser.Closed):
        while True:
            part = source.take(0.1)
            if part is not None:
                taken.append((part.first, part.last))
                source.commit()
                assert source.mark == part.last
    assert taken == [(1, before), (before + 2, source.head)]


def test_a_tracer_goes_on_where_the_last_one_was(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    topic = a_topic(local, target, trace="payload", history=0, depth=100)
    for run in range(3):
        with at_work(PayloadRecorder(local.url, target, cluster.url, name="tracer")) as recorder:
            if run == 0:
                until_state(recorder, "recording")
            topic.publish(b"%d" % (2 * run))
            until_recorded(recorder, 2 * run + 1)
        topic.publish(b"%d" % (2 * run + 1))
    rows = rows_of(cluster.url, target)
    assert [row.record.value for row in rows] == [b"%d" % number for number in range(5)]


def test_it_waits_for_a_ring(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    with at_work(trace_recorder(local, cluster, target)) as recorder:
        until(lambda: "nothing is traced" in (recorder.status().error or ""), "it waits", recorder.status)
        assert recorder.status().state == "waiting for topic"
        a_topic(local).publish(b"x")
        until_recorded(recorder, 3)


def test_payloads_are_recorded_from_the_place_of_the_tracer(
    cluster: RunningCluster, local: LocalBus, target: str, tmp_path: Path
) -> None:
    topic = a_topic(local, target, trace="payload", max_subscribers=1)
    with Agent(
        local, tmp_path, "--trace", f"{target[:50]}-trace", "--to", cluster.url, look_seconds="0.1"
    ) as agent:
        works = ("recorder_recording", target, target)
        agent.until_figure(1, *works)
        # The only place for a subscriber is free.
        with topic.subscribe() as subscription:
            topic.publish(b"one", key=b"k", headers={"h": b"v"})
            assert subscription.take_value(60) == b"one"
            agent.until_figure(1, "recorder_recorded_total", target, target)
        domain = Domain.of_url(local.url)
        switch(domain, domain.open(target), 0)
        until(lambda: agent.figure(*works) == 0, "it stops")
        topic.publish(b"untraced")
        switch(domain, domain.open(target), 2)
        agent.until_figure(1, *works)
        topic.publish(b"three")
        agent.until_figure(3, "recorder_position", target, target)
        assert agent.figure("recorder_lost_total", ".trace", f"{target[:50]}-trace") == 0
    rows = rows_of(cluster.url, target)
    assert check_tiling(rows)[0] >= 2
    assert (rows[0].record.value, rows[0].record.key) == (b"one", b"k")
    assert rows[-1].record.value == b"three"


def test_a_second_tracer_waits_for_the_first(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    topic = a_topic(local, target, trace="payload")
    first = PayloadRecorder(local.url, target, cluster.url, name="first")
    second = PayloadRecorder(local.url, target, cluster.url, name="second")
    with ExitStack() as stack:
        with at_work(first):
            until_state(first, "recording")
            stack.enter_context(at_work(second))
            until(lambda: "held by a living" in (second.status().error or ""), "it waits", second.status)
            assert second.status().state == "waiting for topic"
            topic.publish(b"x")
            until_recorded(first, 1)
        topic.publish(b"y")
        until_recorded(second, 2)
    assert [row.record.value for row in rows_of(cluster.url, target) if row.gap is None] == [b"x", b"y"]


def test_where_to_has_to_be_said(local: LocalBus) -> None:
    for arguments in (["--trace", "t"], ["--to", "hawser://127.0.0.1:1"]):
        done = hawser_command("agent", "--url", local.url, *arguments, code=2)
        assert "--record and --trace need --to" in done.stderr
    arguments = ["--trace", "t", "--record", "a=t", "--to", "hawser://127.0.0.1:1"]
    assert "topic of its own" in hawser_command("agent", "--url", local.url, *arguments, code=2).stderr


def test_what_goes_wrong_is_in_the_log(
    cluster: RunningCluster, local: LocalBus, target: str, tmp_path: Path
) -> None:
    topic = a_topic(local, target, trace="payload")
    topic.publish(b"x")
    with Agent(local, tmp_path, "--trace", target, "--to", cluster.url, look_seconds="0.1") as agent:
        said = f"{target!r} is not recorded with payloads"
        until(lambda: any(line.startswith(said) for line in agent.messages()), "it is said")
        (local.directory / ".trace").unlink()
        (local.directory / ".trace").write_bytes(b"scribble" * 1000)
        hawser_command("topic", "pub", target, "y", "--url", local.url)
        said = "trace records were not written"
        until(lambda: any(said in line for line in agent.messages()), "it is said", agent.messages)
        assert agent.figure("topic_untraced_total", target) > 0
