"""The orchestrator of the demo: runs the path from shared memory to an audit, and kills processes of each
part.

    publishers -> shared memory -> agent -> three nodes -> transactions -> landing pipeline -> tables
        -> totals, back in a topic -> audit

Each program runs in a process of its own. The orchestrator is the supervisor: it restarts killed processes. A
kill is triggered by the progress of its part, not by time, so that it hits a working process.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from hawser.demo.parts.audit import AuditPart
from hawser.demo.parts.landing import LandingPart
from hawser.demo.parts.part import Environment, Part, Plan
from hawser.demo.parts.publishers import PublisherPart
from hawser.demo.parts.recording import RecordingPart
from hawser.demo.parts.totals import TotalsPart
from hawser.demo.parts.workers import CheckerPart, SorterPart
from hawser.demo.processes import Failure, Process
from hawser.demo.proof import Proof

__all__ = ["Kill", "Orchestrator", "Standstill"]

_STEP_SECONDS: Final = 0.02
# Includes the start of Spark on a busy machine.
_STANDSTILL_SECONDS: Final = 300.0

Show = Callable[[str], None]


class Standstill(Failure):
    """A part makes no progress, so other parts would wait for it without end."""


class Kill(msgspec.Struct):
    """A killed process, the time of the kill, and the time until recovery."""

    what: str
    name: str
    at_seconds: float
    sign: str
    is_over: Callable[[], bool]
    recovered_seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        names = ("what", "name", "at_seconds", "sign", "recovered_seconds")
        return {name: getattr(self, name) for name in names}


class Orchestrator:
    """One run of the demo."""

    def __init__(self, plan: Plan, directory: Path, memory: Path) -> None:
        self.plan = plan
        self.kills: list[Kill] = []
        self.proofs: list[Proof] = []
        self.started = time.monotonic()
        self.environment = environment = Environment(plan, directory, memory)
        self._publishers = PublisherPart(environment)
        self._landing = LandingPart(environment)
        # The parts that run at the same time, in the order of the path.
        self._live: list[Part] = [
            self._publishers,
            RecordingPart(environment),
            SorterPart(environment),
            CheckerPart(environment),
            self._landing,
        ]
        # The later parts, one after the other: each has a Spark session of its own.
        self._later: dict[str, Part] = {
            "adding up": TotalsPart(environment),
            "auditing": AuditPart(environment),
        }
        self._started_parts: list[Part] = []
        self._restarts: list[tuple[float, Process]] = []
        # The last progress of each part, and its time.
        self._reached: dict[str, tuple[int, float]] = {}

    @property
    def parts(self) -> list[Part]:
        return [*self._live, *self._later.values()]

    @property
    def processes(self) -> list[Process]:
        return [process for part in self.parts for process in part.processes]

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started

    def run(self, show: Show) -> None:
        """Run the whole demo, and call `show` with the current step often."""
        # Publishers start last, so that the recorder is ready for the first message.
        for part in (*self._live[1:], self._publishers):
            show("starting")
            self._begin(part)
        self._run_until(show, "publishing", self._has_published)
        self._publishers.end()
        self._wait(show, "landing the rest", self._live)
        self._landing.end()
        for what, part in self._later.items():
            self._begin(part)
            self._wait(show, what, [part])
        show("comparing")
        self.environment.watch.close()
        self.proofs = [*(part.proof() for part in self.parts), self._proof_of_kills()]
        for part in reversed(self.parts):
            show("ending")
            part.end()

    def close(self) -> None:
        """End every process; forget the topic."""
        self.environment.watch.close()
        for process in self.processes:
            if process.alive:
                process.kill()
        self.environment.close()

    def _begin(self, part: Part) -> None:
        part.start()
        self._started_parts.append(part)

    def _has_published(self) -> bool:
        """Whether enough messages are published, all kills but landing's are done, and the processes are
        back."""
        enough = self._publishers.gauge.value >= self.plan.messages
        return enough and not self._restarts and not any(part.due for part in self._live[:-1])

    def _wait(self, show: Show, what: str, parts: list[Part]) -> None:
        """Return when these parts are done and have recovered, or make no progress; the proofs then name what
        is missing."""

        def is_done() -> bool:
            recovered = all(kill.recovered_seconds is not None for kill in self.kills)
            return recovered and all(part.is_done for part in parts)

        def show_with_note(what: str) -> None:
            show(" / ".join([what, *(part.note.strip() for part in parts if part.note)]))

        try:
            self._run_until(show_with_note, what, is_done)
        except Standstill as standstill:
            show(str(standstill))

    def _run_until(self, show: Show, what: str, is_done: Callable[[], bool]) -> None:
        self._reached.clear()
        while not is_done():
            self._step()
            self._check_progress()
            show(what)
            time.sleep(_STEP_SECONDS)

    def _step(self) -> None:
        """Kill due processes, restart killed ones, and note recoveries."""
        for process in self.processes:
            process.check()
        self.environment.watch.check()
        for part in self._started_parts:
            if part.due and part.gauge.value > 0 and part.gauge.value >= part.due[0].share * part.expected:
                self._kill(part)
        now = time.monotonic()
        for moment, process in list(self._restarts):
            if moment <= now:
                self._restarts.remove((moment, process))
                process.start()
        for kill in self.kills:
            if kill.recovered_seconds is None and kill.is_over():
                kill.recovered_seconds = self.elapsed_seconds - kill.at_seconds

    def _kill(self, part: Part) -> None:
        moment = part.due[0]
        victim = part.victim(moment.what)
        if victim is None:
            return
        del part.due[0]
        at_seconds = self.elapsed_seconds
        if victim.kill():
            is_over = part.recovered(victim)
            self.kills.append(Kill(moment.what, victim.name, at_seconds, part.sign, is_over))
        self._restarts.append((time.monotonic() + moment.away_seconds, victim))

    def _proof_of_kills(self) -> Proof:
        over = [kill for kill in self.kills if kill.recovered_seconds is not None]
        planned = sum(len(part.kill_points) for part in self.parts)
        proof = Proof("kills that everything recovered from", planned, len(over))
        for kill in self.kills:
            proof.require(kill in over, f"{kill.name} did not recover")
        proof.require(len(self.kills) == proof.expected, f"{len(self.kills)} were killed")
        return proof

    def _check_progress(self) -> None:
        now = time.monotonic()
        figures = [(part.verb, part.gauge.value, part.is_done) for part in self._started_parts]
        recovered = sum(kill.recovered_seconds is not None for kill in self.kills)
        figures.append(("recovered", recovered, recovered == len(self.kills)))
        for verb, value, is_done in figures:
            reached, since = self._reached.setdefault(verb, (value, now))
            if value != reached or is_done:
                self._reached[verb] = value, now
            elif now - since > _STANDSTILL_SECONDS:
                raise Standstill(f"nothing more is {verb} than {value:,}, for {now - since:.0f} s")
