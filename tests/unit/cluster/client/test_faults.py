"""Publishing and subscribing while leaders move and nodes stop: nothing lost, nothing twice, order kept."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import hawser
from tests.support.cluster import RunningCluster

SECONDS = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as running:
        yield running


class Traffic:
    """A publisher and a subscriber in threads of their own, until told to stop."""

    def __init__(self, publisher: hawser.Topic[Any], subscriber: hawser.Topic[Any]) -> None:
        self._publisher = publisher
        self._subscription = subscriber.subscribe(start="earliest")
        self._is_over = threading.Event()
        self.futures: list[Future[hawser.Receipt]] = []
        self.taken: list[tuple[int, int, int]] = []
        self._threads = [threading.Thread(target=each) for each in (self._publish, self._take)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._is_over.is_set():
            number = len(self.futures)
            future = self._publisher.publish_nowait(str(number).encode(), key=str(number % 7).encode())
            self.futures.append(future)
            if number % 50 == 0:
                future.exception()

    def _take(self) -> None:
        for sample in self._subscription:
            self.taken.append((sample.partition, sample.offset, int(bytes(sample))))

    def wait_for_more(self, count: int) -> None:
        """Return when so many more were acknowledged."""
        last = len(self.futures) + count
        pause = threading.Event()
        while len(self.futures) <= last:
            pause.wait(0.005)
        self.futures[last].result(SECONDS)

    def judge(self) -> dict[str, int]:
        """Stop, and check that what was acknowledged is what was taken."""
        self._is_over.set()
        self._threads[0].join(SECONDS)
        self._publisher.flush()
        receipts = [future.result() for future in self.futures]
        expected = {(each.partition, each.first_offset, number) for number, each in enumerate(receipts)}
        waiting = threading.Event()
        for _ in range(1000):
            if len(self.taken) >= len(expected) or waiting.wait(0.02):
                break
        self._subscription.close()
        self._threads[1].join(SECONDS)
        check(self.taken, expected)
        return {"acknowledged": len(receipts), "taken": len(self.taken)}


def check(taken: list[tuple[int, int, int]], expected: set[tuple[int, int, int]]) -> None:
    """AssertionError unless `taken` is exactly what was acknowledged, each partition and key in order."""
    assert len(taken) == len(set(taken)), "something was taken twice"
    assert set(taken) == expected, "something was lost or invented"
    for partition in {each[0] for each in taken}:
        mine = [each for each in taken if each[0] == partition]
        assert [offset for _, offset, _ in mine] == list(range(1, len(mine) + 1))
    for key in range(7):
        numbers = [number for _, _, number in taken if number % 7 == key]
        assert numbers == sorted(numbers), "a key's messages are out of order"


@pytest.mark.parametrize(
    "taken",
    [
        [(0, 1, 0)],
        [(0, 1, 0), (0, 2, 7), (0, 2, 7)],
        [(0, 1, 0), (0, 2, 8)],
        [(0, 2, 7), (0, 1, 0)],
    ],
)
def test_the_judge_finds_what_is_wrong(taken: list[tuple[int, int, int]]) -> None:
    check([(0, 1, 0), (0, 2, 7)], {(0, 1, 0), (0, 2, 7)})
    with pytest.raises(AssertionError):
        check(taken, {(0, 1, 0), (0, 2, 7)})


def test_leaders_move_while_messages_flow(
    cluster: RunningCluster, record_property: Callable[[str, object], None]
) -> None:
    topic: Any = cluster.connect("publisher").topic("t", partitions=2)
    traffic = Traffic(topic, cluster.connect("subscriber").topic("t"))
    moves = 0
    for _ in range(3):
        for partition in topic.info().partitions:
            traffic.wait_for_more(100)
            others = [node for node in partition.members if node != partition.leader]
            cluster.transfer(partition.shard, others[moves % 2])
            moves += 1
    traffic.wait_for_more(100)
    for name, count in {**traffic.judge(), "moves": moves}.items():
        record_property(name, count)


def test_every_node_stops_in_turn_while_messages_flow(
    cluster: RunningCluster, record_property: Callable[[str, object], None]
) -> None:
    topic: Any = cluster.connect("publisher").topic("t", partitions=2)
    traffic = Traffic(topic, cluster.connect("subscriber").topic("t"))
    for node in ("n1", "n2", "n3"):
        traffic.wait_for_more(100)
        cluster.stop(node)
        traffic.wait_for_more(100)
        cluster.start(node)
    traffic.wait_for_more(100)
    for name, count in traffic.judge().items():
        record_property(name, count)


def test_without_a_majority_the_truth_is_told(cluster: RunningCluster) -> None:
    cluster.connect("patient").topic("t").publish(b"before")
    bus = cluster.connect("publisher", timeout=3.0)
    topic: Any = bus.topic("t")
    leader = topic.info().partitions[0].leader
    for node in [node for node in cluster.nodes if node != leader]:
        cluster.stop(node)
    with pytest.raises(hawser.OutcomeUnknown, match="perhaps done") as caught:
        topic.publish(b"perhaps")
    assert (caught.value.outcome, caught.value.retryable) == ("unknown", False)
    cluster.stop(leader)
    with pytest.raises(hawser.Unavailable, match="not done within") as refused:
        topic.publish(b"certainly not")
    assert (refused.value.outcome, refused.value.retryable) == ("none", True)
    with pytest.raises(hawser.Unavailable):
        topic.subscribe()
    with pytest.raises(hawser.Unavailable):
        bus.topics()
    for node in ("n1", "n2", "n3"):
        cluster.start(node)
    publisher = cluster.connect("later").topic("t")
    last = publisher.publish(b"after")
    with topic.subscribe(start="earliest") as subscription:
        values = [bytes(sample) for sample in rest(subscription, last.first_offset)]
    assert values in ([b"before", b"after"], [b"before", b"perhaps", b"after"])
    assert topic.publish(b"again").first_offset == last.first_offset + 1


def rest(subscription: hawser.Subscription[Any], count: int) -> list[hawser.Sample]:
    found: list[hawser.Sample] = []
    while len(found) < count:
        more = subscription.take_many(count - len(found), timeout=SECONDS)
        assert more
        found += more
    return found


def test_a_short_timeout_is_kept(cluster: RunningCluster) -> None:
    topic: Any = cluster.connect("publisher").topic("t")
    for node in cluster.nodes:
        cluster.stop(node)
    for _ in range(2):
        with pytest.raises(hawser.HawserError) as caught:
            topic.publish(b"x", timeout=0.3)
        assert isinstance(caught.value, hawser.Unavailable | hawser.OutcomeUnknown)
    with pytest.raises(hawser.UsageError, match="timeout is seconds"):
        topic.publish(b"x", timeout=-1)
    futures = [topic.publish_nowait(b"x") for _ in range(3)]
    for node in ("n1", "n2", "n3"):
        cluster.start(node)
    assert len({future.result(SECONDS).first_offset for future in futures}) == 3
