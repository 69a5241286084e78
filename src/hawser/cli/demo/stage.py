"""The stage of the demo: the whole path from shared memory to tables, with someone killed at each part of it.

    publishers -> shared memory -> agent -> three nodes -> landing pipeline -> tables

Everybody is a process of its own, as in a plant; the stage is the supervisor that starts again who was
killed. Kills wait for what has been achieved and not for the clock, so that each hits its victim at work.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.cli.demo.gauges import Gauges
from hawser.cli.demo.ledger import Control, read_receipts
from hawser.cli.demo.payload import LARGEST
from hawser.cli.demo.processes import Daemon, Failure, Process, Publisher
from hawser.cli.demo.verdict import Row, Run
from hawser.record.origin import recorder_id

__all__ = ["Kill", "Plan", "Stage"]

AGENT: Final = "demo-agent"
TOPIC: Final = "demo"

_NODES: Final = ("n1", "n2", "n3")
_STEP_SECONDS: Final = 0.02
_STALL_SECONDS: Final = 120.0
# While publishers publish: also what waits for Spark to start, on a busy machine.
_STANDSTILL_SECONDS: Final = 300.0
_SETTINGS: Final[dict[str, Any]] = {"slot_size": LARGEST, "history": 64, "depth": 16384}
# At which part of the messages who is killed. The driver is killed as soon as it has landed something.
_MOMENTS: Final = (
    (0.10, "publisher"),
    (0.25, "agent"),
    (0.40, "publisher"),
    (0.50, "leader"),
    (0.65, "agent"),
    (0.75, "publisher"),
)
# The publisher stays away long enough to be recovered by the agent and not by its own return; the leader,
# until another one leads.
_AWAY_SECONDS: Final = {"publisher": 0.5, "agent": 0.1, "leader": 3.0, "driver": 0.1}


class Plan(msgspec.Struct, frozen=True):
    """What the demo is asked to do."""

    messages: int
    publishers: int
    seconds: float
    seed: int


class Kill(msgspec.Struct):
    """Who was killed, when, and after how long everything went on."""

    what: str
    name: str
    at_seconds: float
    sign: str
    is_over: Callable[[], bool]
    recovered_seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        names = ("what", "name", "at_seconds", "sign", "recovered_seconds")
        return {name: getattr(self, name) for name in names}


class Stage:
    """One performance of the demo, all of it in `directory` but for the shared memory in `memory`."""

    def __init__(self, plan: Plan, directory: Path, memory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.kills: list[Kill] = []
        self.started = time.monotonic()
        self._random = random.Random(plan.seed)
        self._control = Control(memory)
        self._url = f"shm://{memory}/domain"
        self._bus = hawser.connect(self._url, name="demo-stage")
        self.topic: hawser.Topic[Any] = self._bus.topic(
            TOPIC, max_publishers=plan.publishers + 4, **_SETTINGS
        )
        rate = plan.messages / plan.seconds / plan.publishers
        self.publishers = [
            Publisher(index, self._url, TOPIC, memory, rate) for index in range(plan.publishers)
        ]
        self.nodes = [
            Daemon(
                name,
                directory,
                "node",
                "--id",
                name,
                "--listen",
                "127.0.0.1:0",
                "--dir",
                str(directory / name),
            )
            for name in _NODES
        ]
        self.operator = Daemon("operator", directory, "operator")
        self.agent = Daemon(AGENT, directory, "agent")
        self.pipeline = Daemon("pipeline", directory, "pipeline")
        self.gauges = Gauges(self.topic, self.landing)
        self._moments = list(_MOMENTS)
        self._returns: list[tuple[float, Process]] = []
        # How far each part was last, and since when.
        self._reached: dict[str, tuple[int, float]] = {}

    @property
    def landing(self) -> Path:
        return self.directory / "landing"

    @property
    def processes(self) -> list[Process]:
        return [*self.publishers, self.agent, *self.nodes, self.operator, self.pipeline]

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started

    def perform(self, show: Callable[[str], None]) -> None:
        """The whole demo; `show(what is happening)` is called often."""
        show("starting the cluster")
        url = self._start_cluster()
        show("starting the agent")
        self._start_agent(url)
        self._start_pipeline(url)
        for publisher in self.publishers:
            publisher.start()
        while self.gauges.published < self.plan.messages or self._moments or not self._driver_was_killed:
            self._step(show, "publishing")
            self._check_movement()
        while self._returns:
            self._step(show, "publishing")
        self._control.stop_publishing()
        for publisher in self.publishers:
            publisher.wait_end()
        self._drain(show)
        self._end(show)

    def close(self) -> None:
        """End every process; forget the topic."""
        self.gauges.close()
        for process in self.processes:
            if process.alive:
                process.kill()
        self.topic.delete(force=True)
        self._bus.close()

    def runs(self) -> list[Run]:
        """What each run of each publisher was told."""
        return [
            Run(
                each.name,
                each.index,
                each.run,
                read_receipts(each.receipts),
                each.run in publisher.killed_runs,
            )
            for publisher in self.publishers
            for each in publisher.assignments
        ]

    @property
    def producer(self) -> str:
        """Whose rows are those of the publishers."""
        return recorder_id(AGENT, self.topic.info().uuid).decode()

    def rows(self) -> list[Row]:
        """The raw table, in the order of the log."""
        from hawser.spark.pipelines import tables

        found = tables.read(self.landing, "raw").sort_by(
            [("partition", "ascending"), ("offset", "ascending")]
        )
        columns = (found.column(name).to_pylist() for name in ("producer", "producer_sequence", "value"))
        return [Row(*each) for each in zip(*columns, strict=True)]

    # Starting.

    def _start_cluster(self) -> str:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()
            # The same place at every start.
            node.arguments[node.arguments.index("--listen") + 1] = node.address
        addresses = [f"{node.name}={node.address}" for node in self.nodes]
        self.operator.arguments += ["--metadata", f"sqlite:{self.directory / 'metadata.sqlite'}"]
        self.operator.arguments += [part for each in addresses for part in ("--node", each)]
        self.operator.start()
        self.operator.wait_ready()
        return "hawser://" + ",".join(node.address for node in self.nodes)

    def _start_agent(self, url: str) -> None:
        self.agent.arguments += ["--url", self._url, "--name", AGENT, "--record", TOPIC, "--to", url]
        self.agent.start()
        self.agent.wait_ready()
        self.gauges.watch_cluster(url, TOPIC)

    def _start_pipeline(self, url: str) -> None:
        self.pipeline.arguments += ["run", "landing", "--url", url, "--topic", TOPIC]
        self.pipeline.arguments += ["--dir", str(self.landing), "--every", "1"]
        self.pipeline.start()

    # Killing.

    @property
    def _driver_was_killed(self) -> bool:
        return self.pipeline.kills > 0

    def _step(self, show: Callable[[str], None], what: str) -> None:
        """Kill who is due, start again who was killed long enough ago, see who has recovered."""
        for process in self.processes:
            process.check()
        self.gauges.check()
        if self._moments and self.gauges.published >= self._moments[0][0] * self.plan.messages:
            self._kill(self._moments.pop(0)[1])
        if not self._driver_was_killed and self.gauges.recorded.value > self.gauges.landed.value > 0:
            self._kill("driver")
        now = time.monotonic()
        for moment, process in list(self._returns):
            if moment <= now:
                self._returns.remove((moment, process))
                process.start()
        for kill in self.kills:
            if kill.recovered_seconds is None and kill.is_over():
                kill.recovered_seconds = self.elapsed_seconds - kill.at_seconds
        show(what)
        time.sleep(_STEP_SECONDS)

    def _check_movement(self) -> None:
        """Failure if a part of the path stands still: the others would wait for it for ever, or go on without
        it."""
        gauges, now = self.gauges, time.monotonic()
        parts = (
            ("published", gauges.published),
            ("recorded", gauges.recorded.value),
            ("landed", gauges.landed.value),
        )
        for part, value in parts:
            reached, since = self._reached.setdefault(part, (value, now))
            if value != reached:
                self._reached[part] = value, now
            elif now - since > _STANDSTILL_SECONDS:
                raise Failure(f"nothing more is {part} than {value} messages, for {now - since:.0f} s")

    def _kill(self, what: str) -> None:
        victim = self._victim(what)
        if victim is None:
            self._moments.insert(0, (0.0, what))
            return
        pid = victim.pid
        at_seconds = self.elapsed_seconds
        killed = victim.kill()
        signs: dict[str, tuple[str, Callable[[], bool]]] = {
            "publisher": ("its loans are returned", lambda: not self._takes_part(pid)),
            "agent": ("recording goes on", self.gauges.recorded.growth()),
            "leader": ("recording goes on", self.gauges.recorded.growth()),
            "driver": ("landing goes on", self.gauges.landed.growth()),
        }
        sign, is_over = signs[what]
        if killed:
            self.kills.append(Kill(what, victim.name, at_seconds, sign, is_over))
        self._returns.append((time.monotonic() + _AWAY_SECONDS[what], victim))

    def _victim(self, what: str) -> Process | None:
        """A living one of that kind; None if there is none for the moment."""
        if what == "publisher":
            candidates: list[Process] = [each for each in self.publishers if each.alive]
        elif what == "leader":
            candidates = [each for each in self.nodes if each.name == self.gauges.leader and each.alive]
        else:
            process = self.agent if what == "agent" else self.pipeline
            candidates = [process] if process.alive else []
        return self._random.choice(candidates) if candidates else None

    def _takes_part(self, pid: int) -> bool:
        return any(each.pid == pid for each in self.topic.info().participants)

    # Ending.

    def _drain(self, show: Callable[[str], None]) -> None:
        """Return when all that was published has landed and everybody has recovered, or nothing moves."""
        head = self.topic.info().head
        last, since = -1, time.monotonic()
        while self.gauges.landed.value < head or any(kill.recovered_seconds is None for kill in self.kills):
            self._step(show, "landing the rest")
            reached = self.gauges.recorded.value + self.gauges.landed.value
            if reached != last:
                last, since = reached, time.monotonic()
            elif time.monotonic() - since > _STALL_SECONDS:
                show("nothing moves any more")
                return

    def _end(self, show: Callable[[str], None]) -> None:
        for process in (self.pipeline, self.agent, self.operator, *self.nodes):
            show(f"ending {process.name}")
            process.end()
