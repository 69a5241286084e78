"""Transactions when nodes, clients and threads do what they should not."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hawser
from hawser.cluster.client import rpc
from hawser.cluster.client.transaction import shard_pipeline
from hawser.cluster.transport import TransportError
from tests.support.cluster import RunningCluster

SECONDS = 60.0

_CLIENT = """
import sys, hawser
bus = hawser.connect(sys.argv[1])
jobs, results = bus.queue("jobs"), bus.queue("results")
tx = bus.transaction()
tx.accept(tx.get(jobs))
tx.publish(results, b"no")
while not (tx._work.inner.shards and tx._work.inner.is_staged):
    pass
print("staged", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as running:
        yield running


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def leader_of(opened: Any) -> str:
    """The node that leads the first shard of a topic or queue."""
    (shard, *_) = opened.info().partitions
    assert shard.leader is not None
    return str(shard.leader)


def contents(queue: Any) -> list[bytes]:
    return [bytes(each) for each in queue.peek(1000)]


def is_staged(tx: Any) -> bool:
    inner = tx._work.inner
    return bool(inner.shards) and inner.is_staged


def test_what_is_staged_survives_its_leader(own: RunningCluster) -> None:
    bus: Any = own.connect("worker")
    jobs, results = bus.queue("jobs"), bus.queue("results")
    jobs.put_many([b"0", b"1", b"2"])
    with bus.transaction() as tx:
        tx.accept(tx.get(jobs, SECONDS))
        tx.publish(results, b"0")
    with bus.transaction() as tx:
        tx.accept(tx.get(jobs, SECONDS))
        tx.publish(results, b"before")
        wait_until(lambda: is_staged(tx))
        stopped = leader_of(jobs)
        own.stop(stopped)
        tx.publish(results, b"after")
    assert tx.state == "committed"
    assert contents(results) == [b"0", b"before", b"after"] and contents(jobs) == [b"2"]
    # What was lent by the one that is gone, and not locked, is lost with it: then it is run again.
    own.start(stopped)
    seen: list[int] = []

    def move(tx: Any) -> None:
        job = tx.get(jobs, SECONDS)
        seen.append(job.delivery_count)
        if len(seen) == 1:
            own.stop(leader_of(jobs))
        tx.accept(job)
        tx.publish(results, bytes(job))

    bus.run_transaction(move)
    assert contents(results) == [b"0", b"before", b"after", b"2"] and contents(jobs) == []


def test_what_a_killed_client_had_comes_back(own: RunningCluster) -> None:
    bus: Any = own.connect("watcher")
    jobs, results = bus.queue("jobs"), bus.queue("results")
    jobs.put(b"1")
    command = [sys.executable, "-c", _CLIENT, own.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline() == "staged\n"
        assert jobs.get(0) is None
        client.send_signal(signal.SIGKILL)
    again = jobs.get(SECONDS)
    assert again.delivery_count == 2 and contents(results) == []


@pytest.mark.parametrize("queues", [1, 2])
def test_an_unknown_outcome_is_asked_for(own: RunningCluster, queues: int, record_property: Any) -> None:
    bus: Any = own.connect("worker", timeout=3.0)
    names = [f"target {number}" for number in range(queues)]
    for name in names:
        own.connect("patient").queue(name).info()
    targets = [bus.queue(name) for name in names]

    with bus.transaction() as tx:
        for target in targets:
            tx.publish(target, b"first")
    others = [each for each in own.nodes if each != leader_of(targets[0])]

    # A leader without a majority takes the commit and cannot say what becomes of it.
    tx = bus.transaction()
    for target in targets:
        tx.publish(target, b"second")
    wait_until(lambda: is_staged(tx))
    for node in others:
        own.stop(node)
    with pytest.raises((hawser.OutcomeUnknown, hawser.TransactionAborted)) as raised:
        tx.commit()
    assert raised.value.outcome == ("unknown" if tx.state == "unknown" else "none")
    record_property("outcome", tx.state)

    def again(tx: Any) -> str:
        for target in targets:
            tx.publish(target, b"third")
        return "done"

    def start() -> None:
        for node in others:
            own.start(node)

    timer = threading.Timer(2.0, start)
    timer.start()
    assert bus.run_transaction(again, retries=20) == "done"
    timer.join()
    found = [contents(target) for target in targets]
    assert all(each == found[0] for each in found)
    assert found[0] in ([b"first", b"third"], [b"first", b"second", b"third"])
    assert tx.state == "unknown" or found[0] == [b"first", b"third"]


def test_threads_that_share_one_do_no_harm(own: RunningCluster, record_property: Any) -> None:
    bus: Any = own.connect("worker")
    topic = bus.topic("topic")
    tx = bus.transaction()
    taken: list[bytes] = []
    refused: list[BaseException] = []

    def publish(name: int) -> None:
        for number in range(10_000):
            value = b"%d %d" % (name, number)
            try:
                tx.publish(topic, value)
            except hawser.UsageError as error:
                refused.append(error)
                return
            taken.append(value)

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(taken) > 300)
    tx.commit()
    for thread in threads:
        thread.join()
    record_property("published", len(taken))
    found = [bytes(each) for each in topic.read_oldest(50_000).samples]
    assert sorted(found) == sorted(taken)
    assert all("has ended" in str(each) for each in refused)


class Lossy:
    """Loses requests before they are sent, and answers to those that were."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.requests = self.answers = self.sent = 0

    async def ask(self, link: Any, body: bytes, timeout_seconds: float) -> Any:
        drawn = self._random.random()
        if drawn < 0.15:
            self.requests += 1
            raise TransportError("the request was lost", was_sent=False)
        self.sent += 1
        answer = await rpc.ask(link, body, timeout_seconds)
        if drawn < 0.3:
            self.answers += 1
            raise TransportError("the answer was lost", was_sent=True)
        return answer


def test_tokens_move_once_though_requests_and_answers_are_lost(
    own: RunningCluster, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    lossy = Lossy(Random(7))
    monkeypatch.setattr(shard_pipeline, "ask", lossy.ask)
    bus: Any = own.connect("worker")
    queues = [bus.queue(f"queue {number}") for number in range(3)]
    lines = bus.topic("lines", partitions=2)
    queues[0].put_many([b"%d" % number for number in range(12)])
    moves: list[bytes] = []

    def move(tx: Any) -> bytes:
        """The line that it wrote, if it did."""
        place = Random(len(moves)).randrange(3)
        token = tx.get(queues[place], 0.05)
        if token is None:
            return b""
        tx.accept(token)
        tx.publish(queues[(place + 1) % 3], bytes(token))
        if token.offset % 3 == 0:
            return b""
        line = b"%s from %d" % (bytes(token), place)
        tx.publish(lines, line, key=bytes(token))
        return line

    def work() -> None:
        for _ in range(30):
            moves.append(bus.run_transaction(move, retries=20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(moves) == 90 and lossy.requests and lossy.answers
    written = [bytes(each) for number in range(2) for each in lines.read_oldest(99, partition=number).samples]
    assert sorted(written) == sorted(filter(None, moves))
    record_property("lines", len(written))
    record_property("requests", lossy.sent)
    record_property("lost", lossy.requests)
    record_property("answers lost", lossy.answers)
    wait_until(lambda: not any(queue.info().claimed for queue in queues))
    assert sorted(int(each) for queue in queues for each in contents(queue)) == list(range(12))
