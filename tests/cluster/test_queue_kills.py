"""Queues on real nodes: leaders, consumers and producers killed -9 and stopped, under load."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hawser
from tests.cluster.queue_verdict import Violation, judge, read_notes
from tests.cluster.queue_worker import MAX_DELIVERIES, QUEUE, SESSION_SECONDS
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, cluster_processes, until

Record = Callable[[str, object], None]
MORGUE = "morgue"
# Some hundred messages: producers wait for consumers.
CAPACITY_BYTES = 100_000


class Clients:
    """Processes with the roles of `tests.cluster.queue_worker`."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    @property
    def files(self) -> list[Path]:
        return sorted(self._cluster.directory.glob("*.notes"))

    def add(self, role: str) -> str:
        self._started += 1
        name = f"{role}{self._started}"
        file = str(self._cluster.directory / f"{name}.notes")
        command = [sys.executable, "-m", "tests.cluster.queue_worker", role, self._cluster.url, name, file]
        self._processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE)
        return name

    def of(self, role: str) -> list[str]:
        return [name for name in self._processes if name.startswith(role)]

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        assert process.stdin is not None
        process.kill()
        process.wait()
        process.stdin.close()

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        codes = {name: process.wait(LIMIT_SECONDS) for name, process in self._processes.items()}
        self._processes.clear()
        assert not any(codes.values()), codes

    def end(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def wait_for_more(self, count: int = 30) -> None:
        """Until so many more messages were put and accepted."""
        for deed in (b'"put","state":"ok"', b'"accept","state":"ok"'):
            self._wait_for(deed, self._count(deed) + count)

    def _wait_for(self, deed: bytes, wanted: int) -> None:
        until(lambda: self._count(deed) >= wanted, f"{wanted} times {deed!r}")

    def _count(self, deed: bytes) -> int:
        return sum(file.read_bytes().count(deed) for file in self.files)


@contextmanager
def under_load(cluster: ClusterProcesses, roles: list[str], **settings: Any) -> Iterator[Clients]:
    with hawser.connect(cluster.url) as bus:
        bus.queue(QUEUE, max_deliveries=MAX_DELIVERIES, capacity_bytes=CAPACITY_BYTES, **settings)
    clients = Clients(cluster)
    try:
        for role in roles:
            clients.add(role)
        clients.wait_for_more()
        yield clients
        clients.wait_for_more()
        clients.stop()
    finally:
        clients.end()


def judged(cluster: ClusterProcesses, clients: Clients) -> dict[str, object]:
    """Take what is left, release poison until it is dead, and judge everything."""
    left: list[str] = []
    letters: list[str] = []
    with hawser.connect(cluster.url, name="auditor", timeout=LIMIT_SECONDS) as bus:
        queue: Any = bus.queue(QUEUE)
        while (info := queue.info()).ready or info.claimed:
            messages = queue.get_many(500, timeout=0.2)
            for message in messages:
                if bytes(message).endswith(b"poison"):
                    message.reject()
                else:
                    left.append(bytes(message).decode())
            messages.accept()
        dead: Any = queue.dead_letters()
        if dead.name == MORGUE:
            until(lambda: _letters_at_home(queue) == 0, "all letters in the other queue")
        while messages := dead.get_many(100, timeout=0):
            letters += [bytes(each).decode() for each in messages]
            messages.accept()
    return judge(read_notes(clients.files), left, letters)


def _letters_at_home(queue: Any) -> int:
    looked = queue._thread.call(queue._queue.look_inside())
    return int(looked.letters)


def leader_of(cluster: ClusterProcesses, queue: str = QUEUE) -> str:
    assert cluster.shard(queue)["queue"] == queue
    until(lambda: cluster.shard(queue)["leader"] is not None, "a leader")
    return str(cluster.shard(queue)["leader"])


def note(record_property: Record, figures: dict[str, object]) -> None:
    for name, value in figures.items():
        record_property(name, value)


@pytest.mark.slow
def test_leaders_consumers_and_producers_killed_and_stopped(tmp_path: Path, record_property: Record) -> None:
    roles = ["put", "put", "consume", "consume", "aio", "lie"]
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, roles) as clients:
            for round_number in range(3):
                leader = leader_of(cluster)
                late = clients.of("consume")[-1]
                clients.signal(late, signal.SIGSTOP)
                clients.kill(clients.of("consume")[0])
                if round_number == 1:
                    clients.kill(clients.of("put")[0])
                    clients.add("put")
                cluster.nodes[leader].kill()
                clients.add("consume")
                clients.wait_for_more()
                cluster.nodes[leader].start()
                # By now nobody waits for its session any more.
                time.sleep(SESSION_SECONDS)
                clients.signal(late, signal.SIGCONT)
                clients.wait_for_more()
        note(record_property, {"leaders killed": 3, **judged(cluster, clients)})


@pytest.mark.slow
def test_letters_to_another_queue_arrive_once(tmp_path: Path, record_property: Record) -> None:
    """Killed is whoever leads the queue, or the one for its letters, while letters are on their way."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, ["put", "put", "consume", "consume"], dead_letter=MORGUE) as clients:
            with hawser.connect(cluster.url) as bus:
                until(lambda: MORGUE in bus.queues(), "a queue for the letters")
            for queue in (QUEUE, MORGUE, QUEUE):
                leader = leader_of(cluster, queue)
                cluster.nodes[leader].kill()
                clients.wait_for_more()
                cluster.nodes[leader].start()
                clients.wait_for_more()
        note(record_property, {"leaders killed": 3, **judged(cluster, clients)})


@pytest.mark.slow
def test_a_leader_that_was_stopped_lends_nothing_twice(tmp_path: Path, record_property: Record) -> None:
    """It believes for a moment that it leads, and has messages that others have accepted since."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, ["put", "consume", "consume", "aio"]) as clients:
            for _ in range(3):
                leader = leader_of(cluster)
                cluster.nodes[leader].pause()
                clients.wait_for_more()
                cluster.nodes[leader].resume()
                clients.wait_for_more()
        note(record_property, {"leaders stopped": 3, **judged(cluster, clients)})


@pytest.mark.soak
def test_random_storm_of_queues(tmp_path: Path, soak_seconds: float, record_property: Record) -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    deeds = 0
    end = time.monotonic() + soak_seconds
    record_property("seed", seed)
    with cluster_processes(tmp_path, operators=2) as cluster:
        roles = ["put", "put", "consume", "consume", "aio", "lie"]
        with under_load(cluster, roles, dead_letter=MORGUE) as clients:
            while time.monotonic() < end:
                role = random.choice(["put", "consume", "aio"])
                clients.kill(random.choice(clients.of(role)))
                clients.add(role)
                daemon = random.choice(cluster.daemons)
                if random.random() < 0.5:
                    daemon.kill()
                    time.sleep(random.uniform(0, 2))
                    daemon.start()
                else:
                    daemon.pause()
                    time.sleep(random.uniform(0, 3))
                    daemon.resume()
                deeds += 2
                clients.wait_for_more(5)
        note(record_property, {"kills and stops": deeds, **judged(cluster, clients)})


def _notes(*deeds: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [{"deed": deed, "state": state, "value": value} for deed, state, value in deeds]


PUT = (("put", "begin", "a"), ("put", "ok", "a"))
ACCEPT = (("get", "ok", "a"), ("accept", "begin", "a"), ("accept", "ok", "a"))


@pytest.mark.parametrize(
    ("deeds", "left", "letters", "what"),
    [
        (PUT, [], [], "is lost"),
        ((*PUT, *ACCEPT), ["a"], [], "twice"),
        ((*PUT, *ACCEPT, *ACCEPT), [], [], "twice"),
        (PUT, ["a"], ["a"], "twice"),
        ((), ["a"], [], "never put"),
        ((("put", "begin", "a"), ("put", "refused", "a")), ["a"], [], "refused, and is there"),
        ((*PUT, *ACCEPT[:2], ("accept", "fenced", "a")), [], [], "is lost"),
        ((("put", "begin", "x.poison"), ("put", "ok", "x.poison")), ["x.poison"], [], "no dead letter"),
        ((*PUT, *ACCEPT, ("lie", "believed", "t")), [], [], "a lie"),
    ],
)
def test_the_verdict_can_be_guilty(
    deeds: tuple[tuple[str, str, str], ...], left: list[str], letters: list[str], what: str
) -> None:
    with pytest.raises(Violation, match=what):
        judge(_notes(*deeds), left, letters)
    judge(_notes(*PUT, *ACCEPT), [], [])
    judge(_notes(*PUT, *ACCEPT[:2]), [], [])
