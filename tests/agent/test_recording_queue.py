"""Recorders of queues between real shared memory and a real cluster: what is moved, what they wait for, who
is kept away meanwhile."""

from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.record.batch import MAX_BATCH_BYTES
from hawser.testing import LocalBus
from tests.agent.recorded import recording, until_recorded, until_state
from tests.agent.support import Agent
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS, until


def a_queue(local: LocalBus, name: str = "q", **settings: Any) -> "hawser.Queue[Any]":
    queue: hawser.Queue[Any] = local.connect("producer").queue(name, **settings)
    return queue


def taken(
    cluster: RunningCluster, name: str, count: int
) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    """All there is in a queue of the cluster, which must be so many."""
    found: list[tuple[bytes, bytes | None, dict[str, bytes]]] = []
    with cluster.connect("reader").queue(name, create=False) as queue:
        assert queue.info().head == count
        while len(found) < count:
            with queue.get_many(1000, LIMIT_SECONDS) as together:
                assert together, "nothing comes any more"
                found += [(bytes(each), each.key, each.headers) for each in together]
    return found


def is_empty(queue: "hawser.Queue[Any]") -> bool:
    found = queue.info()
    return (found.ready, found.claimed) == (0, 0)


def test_messages_are_moved_as_they_were_put(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    queue = a_queue(local, slot_size=70_000)
    messages: list[tuple[bytes, bytes | None, dict[str, bytes]]] = [
        (b"plain", None, {}),
        (b"", None, {}),
        (b"keyed", b"k", {}),
        (b"", b"", {"a": b"", "b": b"\x00\xff"}),
        (b"x" * 60_000, None, {"h": b"v"}),
        (b"last", None, {}),
    ]
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        for data, key, headers in messages:
            queue.put(data, key=key, headers=headers)
        until_recorded(recorder, len(messages))
        until(lambda: is_empty(queue), "all accepted")
        status = recorder.status()
    assert (status.recorded, status.gaps, status.lost, status.lag, status.error) == (6, 0, 0, 0, None)
    assert taken(cluster, target, len(messages)) == messages
    assert queue.info().slots_leaked == 0


def test_a_recorder_goes_on_where_the_last_one_was(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    queue = a_queue(local, capacity=300, max_deliveries=1)
    for run in range(4):
        queue.put_many([b"%d" % (100 * run + number) for number in range(100)])
        with recording(local.url, "q", cluster.url, target=target) as recorder:
            until_recorded(recorder, 100 * (run + 1))
    assert is_empty(queue)
    assert [int(data) for data, _, _ in taken(cluster, target, 400)] == list(range(400))


def test_what_others_had_before(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    """What they accepted is not recorded, what they gave back is, what was dying is a dead letter."""
    queue = a_queue(local, max_deliveries=2)
    queue.put_many([b"%d" % number for number in range(10)])
    with local.connect("other").queue("q") as others:
        got = others.get_many(6, 0)
        for message in (got[1], got[4]):
            message.accept()
        got[5].reject()
        # What it still has keeps a consumer that was closed.
        del got, message
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_recorded(recorder, 10)
    assert [int(data) for data, _, _ in taken(cluster, target, 7)] == [0, 2, 3, 6, 7, 8, 9]
    assert [bytes(each) for each in queue.dead_letters().peek(10)] == [b"5"]


def _hold_some(url: str, channel: Channel) -> None:
    held = hawser.connect(url, name="victim").queue("q").get_many(5, 0)
    channel.tell("ready")
    sleep_for_ever()
    del held


def test_what_the_dead_had_claimed_comes_first(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    queue = a_queue(local)
    queue.put_many([b"%d" % number for number in range(20)])
    with victim(lambda channel: _hold_some(local.url, channel)) as child:
        assert child.hear() == "ready"
        with recording(local.url, "q", cluster.url, target=target) as recorder:
            until(lambda: "has consumers" in (recorder.status().error or ""), "it waits for the other")
            child.kill()
            until_recorded(recorder, 20)
    assert [int(data) for data, _, _ in taken(cluster, target, 20)] == list(range(20))


def test_nobody_else_gets_messages(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    queue = a_queue(local)
    other = local.connect("other").queue("q")
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        with pytest.raises(hawser.UsageError, match="recorded by 'recorder'"):
            other.get(0)
        with pytest.raises(hawser.UsageError, match="held by"):
            queue.forget("recorder")
    # Also while it is not running, until it is forgotten.
    queue.put(b"x")
    with pytest.raises(hawser.UsageError, match="hawser queue forget"):
        other.get(0)
    assert [(each.name, each.held) for each in queue.info().records] == [("recorder", False)]
    with recording(local.url, "q", cluster.url, name="another", target=target) as second:
        until(lambda: "recorded by 'recorder'" in (second.status().error or ""), "the second one waits")
    assert queue.forget("recorder")
    message = other.get(0)
    assert message is not None
    message.accept()


def test_a_full_queue_of_the_cluster_pushes_back(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    far = cluster.connect("owner").queue(target, capacity_bytes=1 << 20)
    queue = a_queue(local, slot_size=40_000, capacity=8, max_consumers=1, max_held=4)
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        put, is_full, status = 0, False, recorder.status()
        while not (is_full and "full" in (status.error or "").lower()):
            try:
                queue.put(b"%d" % put + b"x" * 39_000, timeout=1)
                put += 1
            except hawser.Full:
                is_full = True
            status = recorder.status()
        assert status.state == "waiting for cluster"
        seen: list[int] = []
        while len(seen) < put:
            with far.get_many(10, LIMIT_SECONDS) as together:
                seen += [int(bytes(each).rstrip(b"x")) for each in together]
        until_recorded(recorder, put)
    assert seen == list(range(put))
    assert is_empty(queue)


def test_a_message_that_no_batch_can_hold_is_a_dead_letter(
    cluster: RunningCluster, local: LocalBus, target: str
) -> None:
    sizes = [1, (1 << 20) + 1, MAX_BATCH_BYTES, 2]
    queue = a_queue(local, slot_size=MAX_BATCH_BYTES + 4096, capacity=8, max_held=4, max_consumers=1)
    for size in sizes:
        queue.put(bytes(size))
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_recorded(recorder, 4)
        until(lambda: is_empty(queue), "all settled")
    assert [len(data) for data, _, _ in taken(cluster, target, 3)] == [1, (1 << 20) + 1, 2]
    assert [len(each) for each in queue.dead_letters().peek(2)] == [MAX_BATCH_BYTES]


def test_a_queue_made_anew_is_a_new_stream(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    queue = a_queue(local)
    with recording(local.url, "q", cluster.url, target=target) as recorder:
        until_state(recorder, "recording")
        queue.put_many([b"a"] * 5)
        until_recorded(recorder, 5)
        queue.delete(force=True)
        until_state(recorder, "waiting for topic")
        again = local.connect("another").queue("q")
        again.put_many([b"b"] * 3)
        until(lambda: recorder.status().recorded == 8, "the other region recorded")
    assert [data for data, _, _ in taken(cluster, target, 8)] == [b"a"] * 5 + [b"b"] * 3


def test_a_topic_of_the_cluster_is_no_target(cluster: RunningCluster, local: LocalBus, target: str) -> None:
    cluster.connect("owner").topic(target)
    a_queue(local)
    with (
        pytest.raises(hawser.SettingsMismatch, match="is a topic"),
        recording(local.url, "q", cluster.url, target=target) as recorder,
    ):
        until_state(recorder, "failed")


def test_the_agent_looks_at_what_it_is(
    cluster: RunningCluster, local: LocalBus, target: str, tmp_path: Path
) -> None:
    queue = a_queue(local)
    queue.put_many([b"x"] * 10)
    arguments = ["--record", f"q={target}", "--to", cluster.url, "--name", "mover"]
    with Agent(local, tmp_path, *arguments) as agent:
        agent.until_figure(10, "recorder_recorded_total", "q", target)
        assert agent.figure("recorder_recording", "q", target) == 1
        assert agent.stop() == 0
    assert [each.name for each in queue.info().records] == ["mover"]
    assert len(taken(cluster, target, 10)) == 10
