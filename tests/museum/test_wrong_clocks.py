"""Nodes with wrong clocks, as processes.

Found by review: a leader whose clock was an hour ahead removed messages that were seconds old from a topic
that keeps them for half an hour, and one whose clock was behind refused every publish for good.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from tests.support.clocks import SteppingClock
from tests.support.processes import ClusterProcesses, metric, until

# So short that the leader marks the time of the log every five seconds.
SECONDS = 320
COUNT = 200


class ClockReading:
    """A cluster of three nodes, each with a clock that can be stepped."""

    def __init__(self, directory: Path) -> None:
        self.cluster = ClusterProcesses(directory)
        self.clocks = {name: SteppingClock(directory / f"{name}.clock") for name in self.cluster.nodes}
        for name, node in self.cluster.nodes.items():
            node.prefix = self.clocks[name].prefix
        self.cluster.start()


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockReading]:
    directory = tmp_path_factory.mktemp("clocks")
    clocked = ClockReading(directory)
    try:
        yield clocked
    finally:
        clocked.cluster.kill()


@pytest.fixture
def bus(clocked: ClockReading) -> Iterator[hawser.Bus]:
    for clock in clocked.clocks.values():
        clock.step(0)
    with clocked.cluster.connect() as bus:
        yield bus


def unused(kind: str) -> str:
    return f"{kind}{time.monotonic_ns()}"


def kept(topic: hawser.Topic[Any]) -> int:
    return len(topic.read_oldest(COUNT).samples)


def publish_young(cluster: ClusterProcesses, topic: hawser.Topic[Any]) -> None:
    """Publish, and return when the log has marked the time of that: before, nothing of it can look old."""
    topic.publish_many([b"x"] * COUNT)
    head = cluster.shard(topic.name)["head"]
    until(lambda: cluster.shard(topic.name)["head"] > head, "a mark behind the records")


def look_again(cluster: ClusterProcesses) -> None:
    """Return when the nodes have looked several times at what they may remove: they do so once a second."""
    time.sleep(2.5)


@pytest.mark.parametrize("hours", [3, pytest.param(-3, marks=pytest.mark.soak)])
def test_a_leader_whose_clock_is_wrong_removes_nothing_young_and_hands_over(
    clocked: ClockReading, bus: hawser.Bus, hours: int
) -> None:
    cluster, name = clocked.cluster, unused("young")
    topic = bus.topic(name, retention_seconds=SECONDS)
    publish_young(cluster, topic)
    leader = cluster.leader(name)
    clocked.clocks[leader].step(hours)
    look_again(cluster)
    assert kept(topic) == COUNT
    until(lambda: cluster.leader(name) != leader, "another leader, whose clock is right")
    look_again(cluster)
    assert kept(topic) == COUNT
    wrong = {node["id"]: node for node in cluster.status()["nodes"] if node["clock_is_wrong"]}
    assert wrong.keys() == {leader}
    assert abs(wrong[leader]["clock_ahead_seconds"] - hours * 3600) < 60
    check = cluster.run("cluster", "status", "--check", code=4)
    assert f"node {leader}: clock 3 h {'ahead' if hours > 0 else 'behind'}" in check.stderr
    report = msgspec.json.decode(cluster.run("doctor", "-o", "json", code=4).stdout)
    (clocks,) = (each for each in report["checks"] if each["check"] == "clocks")
    assert clocks["verdict"] == "fail" and clocks["finding"].startswith(f"node {leader}: clock 3 h ")
    page = cluster.nodes[leader].http + "/metrics"
    assert metric(page, "hawser_clock_wrong") == 1
    assert abs((metric(page, "hawser_clock_ahead_seconds") or 0) - hours * 3600) < 60
    clocked.clocks[leader].step(0)
    until(lambda: metric(page, "hawser_clock_wrong") == 0, "the clock is right again")
    until(lambda: not any(node["clock_is_wrong"] for node in cluster.status()["nodes"]), "nobody complains")


@pytest.mark.parametrize("hours", [3, pytest.param(-3, marks=pytest.mark.soak)])
def test_clocks_that_all_step_remove_nothing_young(
    clocked: ClockReading, bus: hawser.Bus, hours: int
) -> None:
    topic = bus.topic(unused("young"), retention_seconds=SECONDS)
    publish_young(clocked.cluster, topic)
    for clock in clocked.clocks.values():
        clock.step(hours)
    look_again(clocked.cluster)
    assert kept(topic) == COUNT


def test_what_is_old_goes_whatever_its_producer_says(clocked: ClockReading, bus: hawser.Bus) -> None:
    """A time stamp from the future kept everything behind it."""
    topic = bus.topic(unused("old"), retention_seconds=1)
    topic.publish_many([b"x"] * COUNT)
    until(lambda: kept(topic) == 0, "what is old is gone")
    for clock in clocked.clocks.values():
        clock.step(-3)
    topic.publish_many([b"x"] * COUNT)
    until(lambda: kept(topic) == 0, "what is old is gone, by clocks that were set back")


@pytest.mark.parametrize("wrong", ["the leader's", "all"])
def test_a_leader_whose_clock_is_behind_refuses_nothing(
    clocked: ClockReading, bus: hawser.Bus, wrong: str
) -> None:
    topic, queue = bus.topic(unused("accepted")), bus.queue(unused("jobs"))
    topic.publish(b"before")
    queue.put(b"before")
    leaders = {clocked.cluster.leader(each.name) for each in (topic, queue)}
    for name, clock in clocked.clocks.items():
        if wrong == "all" or name in leaders:
            clock.step(-3)
    look_again(clocked.cluster)
    topic.publish(b"behind")
    queue.put(b"behind")
    with bus.transaction() as tx:
        tx.publish(topic, b"in a transaction")
        tx.publish(queue, b"in a transaction")
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [
        b"before",
        b"behind",
        b"in a transaction",
    ]
    assert queue.info().ready == 3
