"""Attacks with real processes: nodes, the operator and drivers are killed or stand still in mid-batch. Every
row is in the topic once."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hawser
from hawser.cluster.client.transaction.application_batch import ApplicationBatch
from hawser.spark.connection import connection
from tests.spark.auditing import Audit
from tests.spark.copy_program import PATIENCE_SECONDS, CopyProgram
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, cluster_processes
from tests.support.sink import copy, counted, prepared
from tests.support.source import wait_for
from tests.support.spark import SMALL, need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

APPLICATION = "attacked"
ENDS = ("stopped", "killed", "killed and forgotten")


@pytest.fixture(scope="module")
def processes(module_path: Path) -> Iterator[ClusterProcesses]:
    need_java()
    with cluster_processes(module_path) as cluster:
        yield cluster


@pytest.fixture
def bus(processes: ClusterProcesses) -> Iterator[hawser.Bus]:
    with processes.connect("tests") as bus:
        yield bus


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def home_leader(processes: ClusterProcesses) -> str:
    """The node that decides the batches of the application."""
    cluster = connection(processes.url)
    application = f"{APPLICATION}@{cluster.open('held/copy', 'topic').uuid}".encode()
    xid = ApplicationBatch(application, b"", 0).branch(b"").xid
    home = cluster.call(cluster.coordinators.of(xid, cluster.router.loop.time() + LIMIT_SECONDS))

    def leader() -> str | None:
        return next((each["leader"] for each in processes.status()["shards"] if each["id"] == home), None)

    return str(wait_for(leader, "a leader of home"))


def test_nodes_and_the_operator_are_killed_in_mid_batch(
    spark: SparkSession, processes: ClusterProcesses, bus: hawser.Bus, tmp_path: Path, record_property: Any
) -> None:
    """One task has prepared its rows, the other is in the middle of them."""
    source, target = bus.topic("held", partitions=2), bus.topic("held/copy", partitions=3)
    expected: Counter[bytes] = Counter()
    killed = []
    for turn in range(3):
        values = numbers(100 * turn, 100)
        source.publish_many(values, keys=values)
        expected.update(values)
        (tmp_path / "hold").touch()
        options: dict[str, Any] = {"topic": "held/copy", "txnAppId": APPLICATION}
        query = copy(spark, processes.url, "held", tmp_path, **options)
        wait_for(lambda: prepared(processes.url), "a task that has prepared")
        wait_for((tmp_path / "held").exists, "a task with a part of its rows")
        names = [processes.leader("held/copy"), home_leader(processes), "o1"]
        victim = {**processes.nodes, **processes.operators}[names[turn]]
        victim.kill()
        killed.append(names[turn])
        (tmp_path / "hold").unlink()
        query.awaitTermination()
        victim.start()
        processes.wait_until_alive(*processes.nodes)
        (tmp_path / "held").unlink()
        wait_for(lambda: counted(target).total() >= expected.total(), "all rows")
        assert counted(target) == expected
    wait_for(lambda: not prepared(processes.url), "the end of all branches")
    record_property("killed: leader, home, operator", ", ".join(killed))


class LongQuery:
    """One query of many drivers: while one runs, the next gets ready to take over."""

    def __init__(self, processes: ClusterProcesses, bus: hawser.Bus, name: str, directory: Path) -> None:
        self.names, self.directory = (name, f"{name}/copy"), directory
        self._source, self.target = (
            bus.topic(each, partitions=count) for each, count in zip(self.names, (2, 3), strict=True)
        )
        self._place = processes.url, self.names, directory
        self._notes = directory / "checkpoint" / "commits"
        self._ready: list[CopyProgram] = []
        self.expected: Counter[bytes] = Counter()
        self.drivers: list[CopyProgram] = []

    def publish(self) -> None:
        values = numbers(self.expected.total(), 200)
        self._source.publish_many(values, keys=values)
        self.expected.update(values)

    @property
    def noted(self) -> int:
        """The last batch that Spark takes for done."""
        return max((int(each.name) for each in self._notes.glob("[0-9]*")), default=-1)

    def forget(self) -> None:
        """Let Spark believe that its last batch was not done."""
        last = self._notes / str(self.noted)
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def prepare(self) -> None:
        self._ready.append(CopyProgram("local[2,4]", SMALL, *self._place))

    def go_on(self, batches: int) -> CopyProgram:
        """Another driver takes over, and has done so many batches."""
        goal = self.noted + batches
        if not self._ready:
            self.prepare()
        driver = self._ready.pop()
        self.drivers.append(driver)
        driver.begin()
        driver.wait_for(lambda: self.noted >= goal, "a micro-batch")
        return driver

    @property
    def is_written(self) -> bool:
        """Whether all rows are there; if all drivers have ended, one is started to write them."""
        if not any(driver.is_running for driver in self.drivers):
            self.go_on(1)
        return counted(self.target).total() >= self.expected.total()

    def kill(self) -> None:
        for driver in self.drivers + self._ready:
            driver.kill()


def test_drivers_are_killed_and_come_back(
    processes: ClusterProcesses, bus: hawser.Bus, tmp_path: Path, record_property: Any
) -> None:
    """Each end once, the first driver comes back behind two others. The audit has the last word."""
    note = attack(processes, LongQuery(processes, bus, "driven", tmp_path), ENDS, random.Random(1))
    for name, value in note.items():
        record_property(name, value)


@pytest.mark.soak
def test_drivers_are_killed_and_come_back_at_random(
    processes: ClusterProcesses, bus: hawser.Bus, tmp_path: Path, soak_seconds: float
) -> None:
    until, seed = time.monotonic() + soak_seconds, random.randrange(1 << 30)
    while time.monotonic() < until:
        print(f"seed {seed}")
        chance = random.Random(seed)
        ends = ["stopped", "killed", *chance.choices(ENDS, k=2)]
        chance.shuffle(ends)
        directory = tmp_path / str(seed)
        directory.mkdir()
        attack(processes, LongQuery(processes, bus, f"driven{seed}", directory), ends, chance)
        seed += 1


def attack(
    processes: ClusterProcesses, query: LongQuery, ends: Sequence[str], chance: random.Random
) -> dict[str, Any]:
    """In one long query. Drivers that stand still are taken for dead, and come back when another one has gone
    on; a batch that was noted and is forgotten is run again."""
    try:
        for end in ends:
            query.publish()
            driver = query.go_on(1 + chance.randrange(3))
            query.prepare()
            time.sleep(chance.random())
            if end == "stopped":
                driver.signal(signal.SIGSTOP)
            else:
                driver.kill()
            if end == "killed and forgotten":
                query.forget()
        query.publish()
        query.go_on(2)
        for driver in query.drivers:
            if driver.is_running:
                driver.signal(signal.SIGCONT)
        query.publish()
        wait_for(lambda: query.is_written, "all rows", PATIENCE_SECONDS)
        assert counted(query.target) == query.expected
        wait_for(lambda: sum(each.is_running for each in query.drivers) <= 1, "the end of all but one")
    finally:
        query.kill()
    assert counted(query.target) == query.expected
    topics = [word for name in query.names for word in ("--topic", name)]
    document = Audit(query.directory / "audit", processes.url, None, *topics).run()
    found = Counter[str]()
    for line in document.lines:
        found[line.topic] += line.found if line.tier == "replicated" and not line.words else 0
    assert found == dict.fromkeys(query.names, query.expected.total())
    return {
        "drivers": ", ".join(ends),
        "micro-batches": query.noted + 1,
        "rows, each once": query.expected.total(),
    }
