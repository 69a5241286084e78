"""A part of the path that the demo shows: what it runs, who of it is killed, how far it is, what it proves.

    publishing -> recording -> sorting, checking -> landing -> totalling
                 the trace  ->      auditing      <-

Each part is a file with one class, and knows of the others only what is on the scene.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

import hawser
from hawser.demo.messages import DONE, JOBS, LARGEST, RESULTS, TOPIC, TOTALS, TRACE
from hawser.demo.parts.gauges import Gauge, Watch
from hawser.demo.processes import Process
from hawser.demo.proof import Proof

__all__ = ["Environment", "KillPoint", "Part", "Plan", "Row"]

_SETTINGS: Final[dict[str, Any]] = {"slot_size": LARGEST, "history": 64, "depth": 16384}


class Plan(msgspec.Struct, frozen=True):
    """What the demo is asked to do."""

    messages: int
    publishers: int
    seconds: float
    seed: int


class Row(NamedTuple):
    """A row of the raw table."""

    offset: int
    producer: str
    sequence: int
    value: bytes


class Environment:
    """What the parts share: the plan, the places, the buses. All is in `directory` but for the shared memory
    in `memory`."""

    def __init__(self, plan: Plan, directory: Path, memory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.memory = memory
        self.random = random.Random(plan.seed)
        self.watch = Watch()
        self.url = f"shm://{memory}/domain"
        self._bus = hawser.connect(self.url, name="demo-stage")
        self.topic: hawser.Topic[Any] = self._bus.topic(
            TOPIC, max_publishers=plan.publishers + 4, trace="metadata", **_SETTINGS
        )
        # How many there are in shared memory.
        self.published = Gauge()
        self.cluster_url = ""
        self._cluster: hawser.Bus | None = None
        self._rows: dict[str, list[Row]] | None = None

    @property
    def cluster(self) -> hawser.Bus:
        assert self._cluster is not None, "the cluster is there"
        return self._cluster

    def use_cluster(self, url: str) -> None:
        """From here on there is a cluster, with all that the parts read and write on it."""
        self.cluster_url = url
        self._cluster = hawser.connect(url, name="demo-stage")
        for name in (TOPIC, RESULTS, DONE, TOTALS, TRACE):
            self._cluster.topic(name, partitions=1)
        # With the results, so that a transaction over both has one shard less.
        self._cluster.queue(JOBS, colocate=RESULTS)

    @property
    def messages(self) -> int:
        """How many there will be, as far as is known."""
        return max(self.plan.messages, self.published.value)

    @property
    def landing(self) -> Path:
        """The directory of the landing pipeline."""
        return self.directory / "landing"

    @property
    def audit(self) -> Path:
        """The directory of the audit."""
        return self.directory / "audit"

    def rows(self, topic: str) -> list[Row]:
        """What has landed of a topic, in the order of the log."""
        if self._rows is None:
            self._rows = _landed(self.landing)
        return self._rows.get(topic, [])

    def close(self) -> None:
        self.topic.delete(force=True)
        self._bus.close()
        if self._cluster is not None:
            self._cluster.close()


def _landed(directory: Path) -> dict[str, list[Row]]:
    from hawser.spark.pipelines import tables

    names = ["topic", "offset", "producer", "producer_sequence", "value"]
    found = tables.read(directory, "raw", columns=names).sort_by("offset")
    rows: dict[str, list[Row]] = {}
    for topic, *row in zip(*(found.column(name).to_pylist() for name in names), strict=True):
        rows.setdefault(topic, []).append(Row(*row))
    return rows


class KillPoint(NamedTuple):
    """Who is killed, and when: as soon as the part has that share of its messages behind it, and something at
    all. It is started again after `away_seconds`."""

    share: float
    what: str
    away_seconds: float = 0.1


class Part(ABC):
    """`title` says what its gauge counts, `verb` what has become of these messages, and `sign` what is seen
    when everything goes on after a kill."""

    title: ClassVar[str]
    verb: ClassVar[str]
    sign: ClassVar[str]
    kill_points: ClassVar[Sequence[KillPoint]] = ()

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.gauge = Gauge()
        self.due = list(self.kill_points)
        self.processes: list[Process] = []

    @property
    @abstractmethod
    def expected(self) -> int:
        """How far the gauge has to get, as far as is known."""

    @property
    def is_done(self) -> bool:
        """Whether all that is known to come has come, and everybody was killed who had to be."""
        return not self.due and self.gauge.value >= self.expected

    @property
    def note(self) -> str:
        """What it is at, if the gauge does not tell."""
        return ""

    @abstractmethod
    def start(self) -> None:
        """Begin to work; the gauge follows."""

    def victim(self, what: str) -> Process | None:
        """The one to kill; None if there is none for the moment."""
        return next((process for process in self.processes if process.alive), None)

    def recovered(self, killed: Process) -> Callable[[], bool]:
        """Whether everything goes on. Asked for when it has just been killed."""
        return self.gauge.growth()

    def end(self) -> None:
        for process in self.processes:
            process.end()

    @abstractmethod
    def proof(self) -> Proof:
        """What has come of it, compared with what had to. Asked when nothing moves any more and the cluster
        still answers."""
