"""Queues on real nodes: leaders, consumers and producers killed -9 and stopped, under load."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import filterfalse
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hawser
from tests.cluster.queue_verdict import Violation, judge
from tests.cluster.queue_worker import MAX_DELIVERIES, QUEUE, SESSION_SECONDS, Notes, accept_all, is_poison
from tests.cluster.stalls import stalls
from tests.support.lines import read_notes
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, cluster_processes, until
from tests.support.workers import Worker

Record = Callable[[str, object], None]
MORGUE = "morgue"
# Some hundred messages: producers wait for consumers.
CAPACITY_BYTES = 100_000

pytestmark = pytest.mark.timeout(900)


class Clients:
    """Processes with the roles of `tests.cluster.queue_worker`."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._workers: dict[str, Worker] = {}
        self._started = 0

    @property
    def files(self) -> list[Path]:
        return sorted(self._cluster.directory.glob("*.notes"))

    def add(self, role: str) -> str:
        self._started += 1
        name = f"{role}{self._started}"
        words = (role, self._cluster.url, name, str(self._cluster.directory / f"{name}.notes"))
        log = self._cluster.directory / f"{name}.said"
        self._workers[name] = Worker(log, "tests.cluster.queue_worker", *words)
        return name

    def of(self, role: str) -> list[str]:
        return [name for name in self._workers if name.startswith(role)]

    def signal(self, name: str, number: int) -> None:
        self._workers[name].signal(number)

    def kill(self, name: str) -> None:
        self._workers.pop(name).kill()

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        for worker in self._workers.values():
            worker.dismiss()
        for worker in self._workers.values():
            worker.wait()
        self._workers.clear()

    def end(self) -> None:
        for name in list(self._workers):
            self.kill(name)

    def wait_for_more(self, count: int = 30) -> None:
        """Until so many more messages were put and accepted."""
        for deed in (b'"put","state":"ok"', b'"accept","state":"ok"'):
            self._wait_for(deed, self._count(deed) + count)

    def _wait_for(self, deed: bytes, wanted: int) -> None:
        def is_done() -> bool:
            for worker in self._workers.values():
                worker.check()
            return self._count(deed) >= wanted

        until(is_done, f"{wanted} times {deed!r}", self._last_notes)

    def _last_notes(self) -> str:
        last = {file.name: file.read_bytes().rstrip().rpartition(b"\n")[2].decode() for file in self.files}
        return "\n".join(("The last notes are", *(f"{name}: {note}" for name, note in last.items())))

    def _count(self, deed: bytes) -> int:
        return sum(file.read_bytes().count(deed) for file in self.files)


@contextmanager
def under_load(cluster: ClusterProcesses, roles: list[str], **settings: Any) -> Iterator[Clients]:
    with cluster.connect() as bus:
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


def judged(cluster: ClusterProcesses, clients: Clients) -> dict[str, int]:
    """Accept what is left, have poison rejected until it is dead, bury the dead, and judge everything."""
    of_loops = stalls(cluster)
    notes = Notes(cluster.directory / "auditor.notes")
    with cluster.connect("auditor") as bus:
        queue: Any = bus.queue(QUEUE)
        for messages in _rest(queue):
            accept_all(notes, hawser.Messages(filterfalse(is_poison, messages), messages._settle))
            with suppress(hawser.Fenced):
                hawser.Messages(filter(is_poison, messages), messages._settle).reject()
        dead: Any = queue.dead_letters()
        if dead.name == MORGUE:
            until(lambda: _dead_letters_at_home(queue) == 0, "all letters in the other queue")
        for dead_letters in _rest(dead):
            accept_all(notes, dead_letters, "bury")
    return {**of_loops, **judge(read_notes(clients.files))}


def _rest(queue: Any) -> Iterator[hawser.Messages]:
    """What is in it, and what others still hold, until there is nothing."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (info := queue.info()).ready or info.claimed:
        assert time.monotonic() < deadline, f"it does not become empty: {info}"
        yield queue.get_many(500, timeout=0.2)


def _dead_letters_at_home(queue: Any) -> int:
    looked = queue._thread.call(queue._queue.query_contents())
    return int(looked.dead_letters)


@contextmanager
def held_too_long(cluster: ClusterProcesses) -> Iterator[None]:
    """Somebody gets a message before the leader changes and wants to accept it afterwards, in vain."""
    with cluster.connect("holder") as bus:
        queue: Any = bus.queue(QUEUE, create=False)
        message = queue.get(LIMIT_SECONDS)
        yield
        with pytest.raises(hawser.Fenced):
            message.accept()


def note(record_property: Record, figures: dict[str, int]) -> None:
    """Without these nothing was attacked."""
    for name in ("accepted", "redelivered", "given back", "dead letters"):
        assert figures[name] > 0, figures
    for name, value in figures.items():
        record_property(name, value)


@pytest.mark.slow
def test_leaders_consumers_and_producers_killed_and_stopped(tmp_path: Path, record_property: Record) -> None:
    roles = ["put", "put", "consume", "consume", "aio", "bury", "lie"]
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, roles) as clients:
            for round_number in range(3):
                late = clients.of("consume")[-1]
                clients.signal(late, signal.SIGSTOP)
                clients.kill(clients.of("consume")[0])
                if round_number == 1:
                    clients.kill(clients.of("put")[0])
                    clients.add("put")
                with held_too_long(cluster):
                    leader = cluster.leader(QUEUE)
                    cluster.nodes[leader].kill()
                    clients.add("consume")
                    clients.wait_for_more()
                cluster.nodes[leader].start()
                # By now nobody waits for its session any more.
                time.sleep(SESSION_SECONDS)
                clients.signal(late, signal.SIGCONT)
                clients.wait_for_more()
        figures = judged(cluster, clients)
        assert figures["lies refused"] > 0
        note(record_property, {"leaders killed": 3, **figures})


@pytest.mark.slow
def test_letters_to_another_queue_arrive_once(tmp_path: Path, record_property: Record) -> None:
    """Killed is whoever leads the queue, or the one for its letters, while letters are on their way."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, ["put", "put", "consume", "consume"], dead_letter=MORGUE) as clients:
            with cluster.connect() as bus:
                until(lambda: MORGUE in bus.queues(), "a queue for the letters")
            for queue in (QUEUE, MORGUE, QUEUE):
                leader = cluster.leader(queue)
                cluster.nodes[leader].kill()
                clients.wait_for_more()
                cluster.nodes[leader].start()
                clients.wait_for_more()
        note(record_property, {"leaders killed": 3, **judged(cluster, clients)})


@pytest.mark.slow
def test_a_leader_that_was_stopped_lends_nothing_twice(tmp_path: Path, record_property: Record) -> None:
    """It believes for a moment that it leads, and has messages that others have accepted since."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, ["put", "consume", "consume", "aio", "bury"]) as clients:
            for _ in range(3):
                with held_too_long(cluster):
                    leader = cluster.leader(QUEUE)
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
        roles = ["put", "put", "consume", "consume", "aio", "bury", "lie"]
        with under_load(cluster, roles, dead_letter=random.choice((None, MORGUE))) as clients:
            while time.monotonic() < end:
                role = random.choice(["put", "consume", "aio", "bury"])
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


def test_a_client_that_fails_is_quoted(tmp_path: Path) -> None:
    words = ("nobody", "hawser://127.0.0.1:1", "name", str(tmp_path / "notes"))
    worker = Worker(tmp_path / "said", "tests.cluster.queue_worker", *words)
    worker.dismiss()
    with pytest.raises(AssertionError, match=r"failed with code 1; it said\n(.|\n)*KeyError: 'nobody'"):
        worker.wait()


Deed = tuple[Any, ...]


def _notes(*deeds: Deed) -> list[dict[str, Any]]:
    names = ("deed", "state", "value", "count", "again")
    return [dict(zip(names, deed, strict=False)) for deed in deeds]


def _get(count: int, again: bool) -> Deed:
    return ("get", "ok", "a", count, again)


PUT = (("put", "begin", "a"), ("put", "ok", "a"))
ACCEPT = (("accept", "begin", "a"), ("accept", "ok", "a"))
BURY = (("bury", "begin", "a"), ("bury", "ok", "a"))
PUT_POISON = (("put", "begin", "x.poison"), ("put", "ok", "x.poison"))


@pytest.mark.parametrize(
    ("deeds", "what"),
    [
        (PUT, "is lost"),
        ((*PUT, *ACCEPT, *ACCEPT), "twice"),
        ((*PUT, *ACCEPT, *BURY), "twice"),
        ((*PUT, *BURY, *BURY), "twice"),
        (ACCEPT, "never put"),
        (BURY, "never put"),
        ((("put", "begin", "a"), ("put", "refused", "a"), *ACCEPT), "refused, and is there"),
        ((*PUT, ACCEPT[0], ("accept", "fenced", "a")), "is lost"),
        ((*PUT, BURY[0], ("bury", "fenced", "a")), "is lost"),
        ((*PUT_POISON, ("accept", "begin", "x.poison")), "no dead letter"),
        ((*PUT_POISON, ("accept", "ok", "x.poison")), "poison, and was accepted"),
        ((*PUT, *ACCEPT, ("lie", "believed", "t")), "a lie"),
        ((*PUT, *ACCEPT, _get(4, True)), "too often"),
        ((*PUT, *ACCEPT, _get(2, False)), "said to be new"),
        ((*PUT, *ACCEPT, _get(1, False), _get(1, False)), "new twice"),
        ((*PUT, *ACCEPT, *[("release", "ok", "a", 2)] * 2), "not counted"),
        ((_get(1, False),), "never put"),
    ],
)
def test_the_verdict_can_be_guilty(deeds: tuple[Deed, ...], what: str) -> None:
    with pytest.raises(Violation, match=what):
        judge(_notes(*deeds))


@pytest.mark.parametrize(
    "end",
    [
        ACCEPT,
        ACCEPT[:1],
        BURY,
        BURY[:1],
        (*BURY[:1], ("bury", "fenced", "a"), *BURY),
        # The leader changed while somebody had it.
        (_get(1, False), _get(1, True), ("release", "ok", "a", 1), _get(2, True), *ACCEPT),
    ],
)
def test_the_verdict_can_be_innocent(end: tuple[Deed, ...]) -> None:
    judge(_notes(*PUT, *end))
