"""Transactions on real nodes: leaders, operators and workers killed -9 and stopped, and tokens counted."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

import hawser
from hawser.cluster import wire
from hawser.transaction.participant import staged
from hawser.transaction.participant.staged import StagedAccept
from tests.cluster.stalls import stalls
from tests.cluster.test_partitions import network
from tests.cluster.transaction_coordinator import Decisions, complete
from tests.cluster.transaction_copier import copy_some
from tests.cluster.transaction_scene import COPY, ECHO, GROUP, QUEUES, REST, TRAIL, Notes, ring_queue
from tests.cluster.transaction_verdict import START, Found, Violation, judge
from tests.cluster.transaction_wire import RawTransactions
from tests.cluster.transaction_worker import replay
from tests.support.cluster import RunningCluster
from tests.support.lines import read_notes
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, cluster_processes, ends_of, until
from tests.support.workers import Worker

RecordProperty = Callable[[str, object], None]
TOKENS = [f"t{number}" for number in range(60)]
ROLES = ["plain", "plain", "replay", "aio", "xa", "xa", "copy", "recopy", "aiocopy", "read"]
ECHOES = 4
# Of the queues: one is on the shard of the trail, one is full now and then, one lends for a short time.
SETTINGS: list[dict[str, Any]] = [{"colocate": TRAIL}, {"capacity_bytes": 8_000}, {}, {"lease": 0.3}]
MOVERS = ("plain", "replay", "aio", "xa")
COPIERS = ("copy", "recopy", "aiocopy")
LEAST_COMMITTED = 100


pytestmark = pytest.mark.timeout(900)


class Workers:
    """Processes with the roles of `tests.cluster.transaction_worker`. A coordinator that is gone comes back
    under its name, with its log; any other has a successor."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._workers: dict[str, Worker] = {}
        self._numbers = count(1)
        self.deaths = 0

    @property
    def files(self) -> list[Path]:
        return sorted(self._cluster.directory.glob("*.notes"))

    @property
    def logs(self) -> list[Path]:
        return sorted(self._cluster.directory.glob("*.notes.log"))

    def add(self, role: str, name: str = "") -> None:
        name = name or f"{role}{next(self._numbers)}"
        words = (role, self._cluster.url, name, str(self._cluster.directory / f"{name}.notes"))
        log = self._cluster.directory / f"{name}.said"
        self._workers[name] = Worker(log, "tests.cluster.transaction_worker", *words)

    def of(self, *roles: str) -> list[str]:
        return [name for name in self._workers if _role(name) in roles]

    def signal(self, name: str, number: int) -> None:
        self._workers[name].signal(number)

    def replace(self, name: str) -> None:
        """Kill it, if it has not done that itself."""
        self._workers.pop(name).kill()
        self.add(_role(name), name if _role(name) == "xa" else "")

    def tend(self) -> None:
        """Replace those who died by their own hand; AssertionError if one failed."""
        for name, worker in list(self._workers.items()):
            if worker.code == -signal.SIGKILL:
                self.deaths += 1
                self.replace(name)
            else:
                worker.check()

    def rest(self) -> None:
        """Let everybody begin nothing more. None of them holds a message then, though all of them live."""
        (self._cluster.directory / REST).touch()
        with self._cluster.connect() as bus:
            queues = [bus.queue(ring_queue(number)) for number in range(QUEUES)]
            until(lambda: not any(each.info().claimed for each in queues), "no message that somebody holds")

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        for worker in self._workers.values():
            worker.dismiss()
        until(lambda: None not in self._codes.values(), "an end of all workers", lambda: self._codes)
        for name, code in self._codes.items():
            if code != -signal.SIGKILL:
                self._workers[name].check()
        self._workers.clear()

    @property
    def _codes(self) -> dict[str, int | None]:
        return {name: worker.code for name, worker in self._workers.items()}

    def end(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def wait_for_more(self, number: int = 8) -> None:
        """Until every role that moves tokens has committed so many more transactions, and every copier was
        at work."""
        deeds = dict.fromkeys(MOVERS, b'"state":"committed"') | dict.fromkeys(COPIERS, b'"copied"')
        wanted = {role: self._times(role, deed) for role, deed in deeds.items() if self.of(role)}
        for role, times in wanted.items():
            more = 1 if role in COPIERS else number
            until(self._grown(role, deeds[role], times + more), f"{times + more} of {role}", self._last_notes)

    def _grown(self, role: str, deed: bytes, wanted: int) -> Callable[[], bool]:
        def has() -> bool:
            self.tend()
            return self._times(role, deed) >= wanted

        return has

    def _times(self, role: str, deed: bytes) -> int:
        files = [file for file in self.files if _role(file.stem) == role]
        return sum(file.read_bytes().count(deed) for file in files)

    def _last_notes(self) -> str:
        last = {file.name: file.read_bytes().rstrip().rpartition(b"\n")[2].decode() for file in self.files}
        return "\n".join(("The last notes are", *(f"{name}: {note[:200]}" for name, note in last.items())))


def _role(name: str) -> str:
    return name.rstrip("0123456789")


def make_ring(bus: Any) -> None:
    """Tokens in every queue."""
    bus.topic(TRAIL)
    bus.topic(ECHO, partitions=ECHOES)
    bus.topic(COPY)
    for number in range(QUEUES):
        queue = bus.queue(ring_queue(number), **SETTINGS[number])
        queue.put_many([f"{token}:0:{START}".encode() for token in TOKENS[number::QUEUES]])


@contextmanager
def under_load(cluster: ClusterProcesses, roles: list[str] = ROLES) -> Iterator[Workers]:
    """Workers that move tokens in a ring; they stop when the block ends."""
    with cluster.connect() as bus:
        make_ring(bus)
    workers = Workers(cluster)
    try:
        for role in roles:
            workers.add(role)
        workers.wait_for_more()
        yield workers
        workers.wait_for_more()
        workers.rest()
        workers.stop()
    finally:
        workers.end()


def judged(cluster: ClusterProcesses, workers: Workers) -> dict[str, int]:
    """Do what coordinators do that were killed, wait until nothing is unfinished, and judge what is there."""
    of_loops = stalls(cluster)
    with cluster.connect("auditor") as bus:
        in_doubt = sum(_complete(bus, log) for log in workers.logs)
        until(lambda: not any(_complete(bus, log) for log in workers.logs), "nothing in doubt")
        found = found_at_the_end(bus)
        assert not bus.xa.recover()
    for daemon in cluster.daemons:
        assert '"level": "error"' not in daemon.log.read_text(), daemon.last_words
    notes = read_notes(workers.files)
    of_ring = judge(notes, TOKENS, found)
    return {**of_loops, "in doubt at the end": in_doubt, "deaths": workers.deaths, **of_ring}


def _complete(bus: hawser.Bus, log: Path) -> int:
    decisions = Decisions(log)
    try:
        return complete(bus, decisions, Notes(log.with_suffix("")))
    finally:
        decisions.close()


def found_at_the_end(bus: hawser.Bus) -> Found:
    """What is there once nothing is unfinished; the queues are empty then."""
    raw = RawTransactions(bus)
    until(lambda: not raw.unfinished(), "an end of all transactions", raw.unfinished)
    trail, echo, copied = bus.topic(TRAIL), bus.topic(ECHO), bus.topic(COPY)
    with echo.subscribe(group=GROUP, start="earliest") as subscription:
        until(lambda: not copy_some(bus, subscription, copied), "an end of what there is to copy")
    marks = {kept.name: kept.mark for kept in echo.info().records}
    positions = [marks[f"group:{GROUP}/{partition}"] for partition in range(ECHOES)]
    left: list[str] = []
    for number in range(QUEUES):
        queue: Any = bus.queue(ring_queue(number))
        while (info := queue.info()).ready or info.claimed:
            messages = queue.get_many(500, timeout=0.2)
            left += [bytes(message).decode() for message in messages]
            messages.accept()
    return Found(left, _lines(trail)[0], _lines(echo), _lines(copied)[0], positions)


def _lines(topic: Any) -> list[list[str]]:
    """Of each partition."""
    ends = ends_of(topic)
    lines: list[list[str]] = [[] for _ in ends]
    with topic.subscribe(start="earliest") as subscription:
        while sum(map(len, lines)) < sum(ends) - len(ends):
            samples = subscription.take_many(5000, timeout=LIMIT_SECONDS)
            assert samples, f"{list(map(len, lines))} records of {topic.name} came, up to {ends}"
            for sample in samples:
                lines[sample.partition].append(bytes(sample).decode())
    return lines


def leader_of(cluster: ClusterProcesses, name: str) -> str:
    """Of a queue or topic, or of a home."""
    with cluster.connect() as bus:
        raw = RawTransactions(bus)
        return raw.leader(raw.shard(name))


def note(record_property: RecordProperty, figures: dict[str, int]) -> None:
    """With fewer transactions nothing was attacked."""
    assert figures["committed"] >= LEAST_COMMITTED, figures
    for name in ("rolled back", "done by xa in 2", "lines", "copied"):
        assert figures[name] > 0, figures
    for name, value in figures.items():
        record_property(name, value)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes save their state often, so that those that are killed begin with one."""
    monkeypatch.setenv("HAWSER_NODE__CHECKPOINT_ENTRIES", "300")


@pytest.mark.slow
def test_leaders_and_workers_killed(tmp_path: Path, record_property: RecordProperty) -> None:
    """With each leader two workers are killed, and another one stands still meanwhile."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as workers:
            for place, mover, copier in zip(
                (TRAIL, wire.HOMES, ring_queue(2)), MOVERS[1:], COPIERS, strict=True
            ):
                late = workers.of("plain")[-1]
                workers.signal(late, signal.SIGSTOP)
                leader = leader_of(cluster, place)
                cluster.nodes[leader].kill()
                workers.replace(workers.of(mover)[0])
                workers.replace(workers.of(copier)[0])
                workers.wait_for_more()
                cluster.nodes[leader].start()
                workers.signal(late, signal.SIGCONT)
                workers.wait_for_more()
        note(record_property, {"leaders killed": 3, **judged(cluster, workers)})


@pytest.mark.soak
@pytest.mark.slow
def test_everything_killed_and_stopped(tmp_path: Path, record_property: RecordProperty) -> None:
    """Leaders stand still and come back; an operator dies with a leader; all nodes die at once."""
    with cluster_processes(tmp_path, operators=2) as cluster:
        with under_load(cluster) as workers:
            for place in (wire.HOMES, TRAIL):
                leader = leader_of(cluster, place)
                cluster.nodes[leader].pause()
                workers.wait_for_more()
                cluster.nodes[leader].resume()
                workers.wait_for_more()
            leader = leader_of(cluster, ring_queue(1))
            cluster.operators["o1"].kill()
            cluster.nodes[leader].kill()
            workers.wait_for_more()
            cluster.operators["o1"].start()
            cluster.nodes[leader].start()
            workers.wait_for_more()
            cluster.restart_nodes()
            workers.wait_for_more()
        note(record_property, judged(cluster, workers))


@pytest.mark.slow
def test_leaders_that_are_cut_off(tmp_path: Path, record_property: RecordProperty) -> None:
    """The leader of a home hears nobody, and that of the trail is heard by nobody; clients reach both."""
    with network(tmp_path) as (hosts, cluster):
        with under_load(cluster) as workers:
            for place, is_deaf in ((wire.HOMES, True), (TRAIL, False)):
                leader = leader_of(cluster, place)
                for other in {*cluster.nodes, *cluster.operators} - {leader}:
                    hosts.cut(*((other, leader) if is_deaf else (leader, other)))
                workers.wait_for_more(5)
                hosts.heal()
                workers.wait_for_more(5)
        note(record_property, judged(cluster, workers))


def disturb(cluster: ClusterProcesses, workers: Workers, random: Random) -> None:
    """Kill a worker and a daemon, or let them stand still; then everybody gets on."""
    name = random.choice(workers.of(*MOVERS, *COPIERS))
    if random.random() < 0.5:
        workers.replace(name)
    else:
        workers.signal(name, signal.SIGSTOP)
    daemon = random.choice(cluster.daemons)
    if random.random() < 0.6:
        random.choice((daemon.kill, daemon.kill, daemon.stop))()
        time.sleep(random.uniform(0, 2))
        daemon.start()
    else:
        daemon.pause()
        time.sleep(random.uniform(0, 3))
        daemon.resume()
    if name in workers.of(*MOVERS, *COPIERS):
        workers.signal(name, signal.SIGCONT)
    workers.wait_for_more(5)


@pytest.mark.soak
def test_random_storm_of_transactions(
    tmp_path: Path, soak_seconds: float, record_property: RecordProperty
) -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    deeds = 0
    end = time.monotonic() + soak_seconds
    record_property("seed", seed)
    with cluster_processes(tmp_path, operators=2) as cluster:
        with under_load(cluster) as workers:
            while time.monotonic() < end:
                disturb(cluster, workers, random)
                deeds += 2
        note(record_property, {"kills and stops": deeds, **judged(cluster, workers)})


def _begin(identity: str, *moves: tuple[str, str, int], echo: bool = False) -> dict[str, Any]:
    return {
        "deed": "begin",
        "id": identity,
        "moves": [list(each) for each in moves],
        "echo": echo,
        "kind": "k",
    }


def _end(identity: str, state: str) -> dict[str, Any]:
    return {"deed": "end", "id": identity, "state": state}


# Two tokens go together to queue 1, then each to another one; "w.3" was rolled back, of "w.4" nobody heard.
SOUND = [
    _begin("w.1", ("a:0:start", "a:1:w.1", 1), ("b:0:start", "b:1:w.1", 1)),
    _end("w.1", "committed"),
    {"deed": "got", "values": ["a:1:w.1"]},
    _begin("w.2", ("a:1:w.1", "a:2:w.2", 0), echo=True),
    _end("w.2", "committed"),
    _begin("w.3", ("b:1:w.1", "b:2:w.3", 2)),
    _end("w.3", "aborted"),
    _begin("w.4", ("b:1:w.1", "b:2:w.4", 2)),
    {"deed": "read", "records": [[1, "a:1:w.1"], [2, "b:1:w.1"]]},
]
LINES = ["a:1:w.1", "b:1:w.1", "a:2:w.2", "b:2:w.4"]
THERE = Found(["a:2:w.2", "b:2:w.4"], LINES, [["a:2:w.2"], []], ["a:2:w.2"], [1, 0])


@pytest.mark.parametrize(
    ("notes", "found", "what"),
    [
        ([], {"left": ["a:2:w.2"]}, "is lost"),
        ([], {"left": [*THERE.left, "b:2:w.4"]}, "twice"),
        ([], {"left": [*THERE.left, "c:0:start"]}, "was never put"),
        ([], {"left": ["a:2:w.2", "b:1:w.1"]}, "the hops of its lines"),
        ([], {"left": ["a:2:w.2", "b:2:w.3"]}, "its last line"),
        ([], {"trail": [*LINES, "b:2:w.4"]}, "the hops of its lines"),
        ([], {"trail": [*LINES[:3], "b:2:w.3"], "left": ["a:2:w.2", "b:2:w.3"]}, "w.3 is aborted"),
        ([], {"trail": [*LINES[:3], "b:2:w.9"], "left": ["a:2:w.2", "b:2:w.9"]}, "no transaction"),
        ([], {"trail": ["a:1:w.1", "a:2:w.2"], "left": ["a:2:w.2", "b:0:start"]}, "w.1 is committed"),
        ([_end("w.4", "aborted")], {}, "w.4 is aborted"),
        ([_end("w.2", "aborted")], {}, "committed, and to be rolled back"),
        ([], {"echo": [[], []]}, "in the echo"),
        ([], {"echo": [["a:2:w.2"], ["a:1:w.1"]]}, "in the echo"),
        ([_begin("w.4", ("b:1:w.9", "b:2:w.4", 2))], {}, "was made of"),
        ([_begin("w.1", *[("a:0:start", "a:1:w.1", 0), ("b:0:start", "b:1:w.1", 0)])],
         {"trail": ["a:2:w.2", "a:1:w.1", "b:1:w.1", "b:2:w.4"]}, "stands behind a later hop"),
        ([{"deed": "got", "values": ["b:2:w.3"]}], {}, "never committed"),
        ([{"deed": "read", "records": [[3, "b:2:w.4"]]}], {}, "is not there"),
        ([{"deed": "read", "records": [[1, "a:1:w.1"], [3, "a:2:w.2"]]}], {}, "was read behind"),
        ([], {"positions": [0, 0]}, "were copied"),
        ([], {"copied": ["a:2:w.2", "a:2:w.2"]}, "were copied"),
    ],
)  # fmt: skip
def test_the_verdict_can_be_guilty(notes: list[dict[str, Any]], found: dict[str, Any], what: str) -> None:
    with pytest.raises(Violation, match=what):
        judge([*SOUND, *notes], "ab", THERE._replace(**found))


def test_the_verdict_can_be_innocent() -> None:
    figures = judge(SOUND, "ab", THERE)
    assert (figures["committed"], figures["rolled back"], figures["unheard and done"]) == (2, 1, 1)
    # Of the transaction that nobody heard of nothing need be there; and between shards there is no order.
    judge(SOUND, "ab", THERE._replace(left=["a:2:w.2", "b:1:w.1"], trail=LINES[:3]))
    late = ["a:2:w.2", "a:1:w.1", "b:1:w.1", "b:2:w.4"]
    assert judge(SOUND[:-1], "ab", THERE._replace(trail=late))["lines overtaken"] == 1


class Countdown:
    """True so many times."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __bool__(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def rest(self) -> None:
        """Never."""


def _commit_without_accepts(operations: Any, context: Any, reserved: bool) -> None:
    staged.undo([each for each in operations if isinstance(each, StagedAccept)], context, False)
    _commit([each for each in operations if not isinstance(each, StagedAccept)], context, reserved)


def _undo_and_publish(operations: Any, context: Any, reserved: bool) -> None:
    _undo([each for each in operations if isinstance(each, StagedAccept)], context, reserved)
    _commit([each for each in operations if not isinstance(each, StagedAccept)], context, False)


_commit, _undo = staged.commit, staged.undo


@pytest.mark.parametrize(
    ("step", "planted"), [("commit", _commit_without_accepts), ("undo", _undo_and_publish)]
)
def test_planted_bugs_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, planted: Callable[..., None]
) -> None:
    """A commit that gives messages back, and a rollback that publishes."""
    monkeypatch.setattr(staged, step, planted)
    with pytest.raises(Violation):
        # What each does is up to its name, and to how long things take. To look takes what is there, so each
        # has a ring of its own.
        for number in range(1, 6):
            with RunningCluster(tmp_path / f"try {number}") as cluster:
                bus = cluster.connect()
                make_ring(bus)
                notes, goes_on = tmp_path / f"replay{number}.notes", cast("Any", Countdown(30))
                replay(cluster.url, f"replay{number}", Notes(notes), goes_on)
                judge(read_notes([notes]), TOKENS, found_at_the_end(bus))
