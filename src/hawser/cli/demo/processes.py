"""The processes of the demo: each is started, killed -9 and started again as a supervisor would."""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from hawser.cli.demo.ledger import Assignment

__all__ = ["Daemon", "Failure", "Process", "Publisher"]

# The interpreter as this one was started.
_PYTHON: Final = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
_HAWSER: Final = [*_PYTHON, "-m", "hawser.cli.demo.bound"]
_READY_SECONDS: Final = 60.0
_END_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.02


class Failure(Exception):
    """The demo could not go on; what happened."""


class Process(ABC):
    """A program through all its runs."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.runs = 0
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def log(self) -> Path:
        """What all runs say on standard error."""
        return self.directory / f"{self.name}.log"

    @abstractmethod
    def start(self) -> None:
        """Begin another run."""

    def launch(self, command: list[str], output: "int | IO[Any]" = subprocess.DEVNULL) -> None:
        self.runs += 1
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # An interrupt at the keyboard is for the stage alone.
                start_new_session=True,
            )

    def kill(self) -> bool:
        """SIGKILL to it and what it has started, at whatever instruction they are; whether it had not ended
        before."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        killed = self._process.wait() == -signal.SIGKILL
        self.kills += killed
        return killed

    def end(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self._process is None:
            return
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait()

    def check(self) -> None:
        """Failure if it ended by itself and not well."""
        code = 0 if self._process is None else self._process.poll()
        if code not in (0, None, -signal.SIGKILL):
            raise Failure(f"{self.name} ended by itself with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "no message"


class Daemon(Process):
    """A `hawser` command that says on its standard output when it is ready."""

    def __init__(self, name: str, directory: Path, *arguments: str) -> None:
        super().__init__(name, directory)
        self.arguments = list(arguments)
        self.address = ""

    def start(self) -> None:
        with self._output.open("wb") as output:
            self.launch([*_HAWSER, *self.arguments], output)

    def wait_ready(self) -> None:
        """Until it says so; `address` is the last word of that."""
        end = time.monotonic() + _READY_SECONDS
        while not (words := self._output.read_text().split()):
            self.check()
            if not self.alive or time.monotonic() > end:
                raise Failure(f"{self.name} does not get ready: {self.last_words()}")
            time.sleep(_STEP_SECONDS)
        self.address = words[-1]

    @property
    def _output(self) -> Path:
        return self.directory / f"{self.name}.ready"


class Publisher(Process):
    """A publisher; each of its runs has a ledger of its own."""

    def __init__(self, index: int, url: str, topic: str, directory: Path, rate: float) -> None:
        super().__init__(f"publisher-{index + 1}", directory)
        self._index = index
        self._url = url
        self._topic = topic
        self._rate = rate
        self.assignments: list[Assignment] = []
        # Those runs may have published one message without writing down its receipt.
        self.killed_runs: set[int] = set()

    def start(self) -> None:
        assignment = Assignment(
            url=self._url,
            topic=self._topic,
            directory=str(self.directory),
            name=self.name,
            index=self._index,
            run=self.runs + 1,
            rate=self._rate,
            stage_pid=os.getpid(),
        )
        self.assignments.append(assignment)
        text = msgspec.json.encode(assignment).decode()
        self.launch([*_PYTHON, "-m", "hawser.cli.demo.publisher", text])

    def kill(self) -> bool:
        killed = super().kill()
        if killed:
            self.killed_runs.add(self.runs)
        return killed

    def wait_end(self) -> None:
        """Until it has ended well, after it was told to stop."""
        assert self._process is not None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not stop: {self.last_words()}") from None
        self.check()
