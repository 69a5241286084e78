"""The stage of the demo: starts the processes, kills them, starts them again, and brings them to an end."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.cli.demo.auditor import Auditor
from hawser.cli.demo.ledger import Assignment, Control, Note, read_note
from hawser.cli.demo.payload import LARGEST
from hawser.cli.demo.subscriber import KINDS

__all__ = ["Actor", "Failure", "Plan", "Stage"]

# The interpreter as this one was started.
_PYTHON: Final = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
_STEP_SECONDS: Final = 0.05
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 60.0
_RESTART_SECONDS: Final = (0.05, 0.4)
_SETTINGS: Final[dict[str, Any]] = {"slot_size": LARGEST, "history": 512, "depth": 512, "max_held": 16}


class Failure(Exception):
    """The demo could not go on; what happened."""


class Plan(msgspec.Struct, frozen=True):
    """What the demo is asked to do."""

    seconds: float
    publishers: int
    subscribers: int
    kills: int
    messages: int | None
    rate: float
    seed: int


class Actor:
    """A publisher or a subscriber through all its runs; the next run begins when the last was killed."""

    def __init__(self, role: str, index: int, kind: str, stage: "Stage") -> None:
        self.role = role
        self.kind = kind
        self.name = f"{role}-{index + 1}"
        self._index = index
        self._stage = stage
        self.runs: list[Assignment] = []
        self.killed: list[bool] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.restart_at = 0.0

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        stage = self._stage
        assignment = Assignment(
            url=stage.url,
            topic=stage.topic_name,
            directory=str(stage.directory),
            name=self.name,
            index=self._index,
            run=len(self.runs) + 1,
            kind=self.kind,
            rate=stage.plan.rate / stage.plan.publishers,
            stage_pid=os.getpid(),
        )
        text = msgspec.json.encode(assignment).decode()
        with assignment.file("errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [*_PYTHON, "-m", f"hawser.cli.demo.{self.role}", text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # An interrupt at the keyboard is for the stage alone.
                start_new_session=True,
            )
        self.runs.append(assignment)
        self.killed.append(False)

    def kill(self) -> None:
        """SIGKILL, at whatever instruction it is."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._process = None
        # One that had just ended by itself was not killed.
        self.killed[-1] = code == -signal.SIGKILL

    def ended(self) -> bool:
        """Whether it has ended well; Failure if it ended otherwise."""
        if self._process is None:
            return True
        code = self._process.poll()
        if code is None:
            return False
        self._process = None
        if code != 0:
            errors = self.runs[-1].file("errors").read_text(errors="replace").strip()
            raise Failure(f"{self.name} ended by itself with code {code}: {errors or 'no message'}")
        return True

    def note(self) -> Note | None:
        """The last note of its current run."""
        return read_note(self.runs[-1].file("note")) if self.runs else None


class Stage:
    """One performance of the demo in a topic of its own."""

    def __init__(self, plan: Plan, bus: hawser.Bus, directory: Path) -> None:
        self.plan = plan
        self.url = bus.url
        self.directory = directory
        self.topic_name = f"hawser-demo-{os.getpid()}"
        self.control = Control(directory)
        self.kills = 0
        self.slots_returned = 0
        self.references_returned = 0
        self.started = time.monotonic()
        self._random = random.Random(plan.seed)
        self.topic: hawser.Topic[Any] = bus.topic(
            self.topic_name,
            max_publishers=plan.publishers + 1,
            max_subscribers=plan.subscribers + 2,
            **_SETTINGS,
        )
        self._bus = bus
        self.auditor = Auditor(self.topic)
        kinds = list(KINDS)
        self.publishers = [Actor("publisher", i, "", self) for i in range(plan.publishers)]
        self.subscribers = [
            Actor("subscriber", i, kinds[i % len(kinds)], self) for i in range(plan.subscribers)
        ]
        self.actors = [*self.publishers, *self.subscribers]

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started

    def perform(self, show: Callable[[str], None]) -> hawser.TopicInfo:
        """The whole demo; `show(what is happening)` is called often. The topic as it is at the end."""
        for subscriber in self.subscribers:
            subscriber.start()
        self._wait(lambda: all(each.note() for each in self.subscribers), _START_SECONDS, "starting", show)
        for publisher in self.publishers:
            publisher.start()
        self._wait(lambda: self.auditor.seen > 0, _START_SECONDS, "starting", show)
        self.started = time.monotonic()
        for _ in self._killing():
            show("running")
        self._end(show)
        return self.topic.info()

    def close(self) -> None:
        """End every process and remove the topic."""
        for actor in self.actors:
            if actor.alive:
                actor.kill()
        self.topic.delete(force=True)

    def _killing(self) -> Iterator[None]:
        """Kill and restart until the time is over; yields after each step."""
        plan = self.plan
        moments = sorted(self._random.uniform(0.05, 0.9) * plan.seconds for _ in range(plan.kills))
        while self.elapsed_seconds < plan.seconds:
            if plan.messages is not None and not moments and self.auditor.seen >= plan.messages:
                break
            self._step()
            while moments and moments[0] <= self.elapsed_seconds:
                moments.pop(0)
                self._kill_one()
            yield
            time.sleep(_STEP_SECONDS)

    def _step(self) -> None:
        """Start again who is due; Failure if somebody ended who was not told to."""
        if self.auditor.error is not None:
            raise Failure(f"the auditor stopped: {self.auditor.error}")
        for actor in self.actors:
            if not actor.alive and time.monotonic() >= actor.restart_at:
                actor.start()
            elif actor.alive and actor.ended():
                raise Failure(f"{actor.name} ended before it was told to")

    def _kill_one(self) -> None:
        """Publishers and subscribers alike, living ones only."""
        role = self._random.choice([self.publishers, self.subscribers])
        living = [each for each in role if each.alive] or [each for each in self.actors if each.alive]
        if not living:
            return
        victim = self._random.choice(living)
        victim.kill()
        victim.restart_at = time.monotonic() + self._random.uniform(*_RESTART_SECONDS)
        self.kills += 1
        for recovered in self._bus.recover():
            self.slots_returned += recovered.slots
            self.references_returned += recovered.references

    def _end(self, show: Callable[[str], None]) -> None:
        """Everybody alive, nobody publishing, everything read, everything recovered."""
        for actor in self.actors:
            if not actor.alive:
                actor.start()
        self.control.stop_publishing()
        self._wait(lambda: _all_ended(self.publishers), _END_SECONDS, "stopping the publishers", show)
        self.auditor.stop()
        if self.auditor.error is not None:
            raise Failure(f"the auditor stopped: {self.auditor.error}")
        self.control.drain(self.topic.info().head)
        self._wait(lambda: _all_ended(self.subscribers), _END_SECONDS, "draining", show)
        self._bus.recover()

    def _wait(self, done: Callable[[], bool], seconds: float, what: str, show: Callable[[str], None]) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                names = ", ".join(each.name for each in self.actors if each.alive)
                raise Failure(f"{what} took longer than {seconds:g} s; alive: {names}")
            show(what)
            time.sleep(_STEP_SECONDS)


def _all_ended(actors: list[Actor]) -> bool:
    return all(actor.ended() for actor in actors)
