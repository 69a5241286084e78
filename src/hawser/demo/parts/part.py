"""The base of a part of the demo's path: its processes, its kill points, its progress and its proof.

    publishers -> recording -> sorter, checker -> landing -> totals
                 the trace  ->      audit      <-

Each part is a module with one class. Parts share only the Environment.
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
    """The options of the demo."""

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
    """The state that parts share: the plan, directories and buses. The domain is in `memory`, all else in
    `directory`."""

    def __init__(self, plan: Plan, directory: Path, memory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.memory = memory
        self.random = random.Random(plan.seed)
        self.watch = Watch()
        self.url = f"shm://{memory}/domain"
        self._bus = hawser.connect(self.url, name="demo")
        self.topic: hawser.Topic[Any] = self._bus.topic(
            TOPIC, max_publishers=plan.publishers + 4, trace="metadata", **_SETTINGS
        )
        # The number of messages in shared memory.
        self.published = Gauge()
        self.cluster_url = ""
        self._cluster: hawser.Bus | None = None
        self._rows: dict[str, list[Row]] | None = None

    @property
    def cluster(self) -> hawser.Bus:
        assert self._cluster is not None, "the cluster runs"
        return self._cluster

    def use_cluster(self, url: str) -> None:
        """Connect to the cluster, and create the topics and the queue of the parts."""
        self.cluster_url = url
        self._cluster = hawser.connect(url, name="demo")
        for name in (TOPIC, RESULTS, DONE, TOTALS, TRACE):
            self._cluster.topic(name, partitions=1)
        # Colocated with the results, so that a transaction over both has one shard less.
        self._cluster.queue(JOBS, colocate=RESULTS)

    @property
    def messages(self) -> int:
        """The expected number of messages, as far as it is known."""
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
        """The landed rows of a topic, in the order of the log."""
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
    """A planned kill of a process `what`, once the part has processed `share` of its messages and at least
    one. The process is restarted after `away_seconds`."""

    share: float
    what: str
    away_seconds: float = 0.1


class Part(ABC):
    """A part of the path. `title` and `verb` name what its gauge counts; `sign` describes its recovery after
    a kill."""

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
        """The final value of the gauge, as far as it is known."""

    @property
    def is_done(self) -> bool:
        """Whether all expected messages were processed and all planned kills are done."""
        return not self.due and self.gauge.value >= self.expected

    @property
    def note(self) -> str:
        """The current activity, if the gauge does not show it."""
        return ""

    @abstractmethod
    def start(self) -> None:
        """Start the processes and the gauge."""

    def victim(self, what: str) -> Process | None:
        """The process to kill; None if none can be killed now."""
        return next((process for process in self.processes if process.alive), None)

    def recovered(self, killed: Process) -> Callable[[], bool]:
        """A function that tells whether the part recovered. Called right after the kill."""
        return self.gauge.growth()

    def end(self) -> None:
        for process in self.processes:
            process.end()

    @abstractmethod
    def proof(self) -> Proof:
        """Compare the found messages with the expected ones. Called after all progress has ended, while the
        cluster still runs."""
