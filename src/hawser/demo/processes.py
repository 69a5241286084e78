"""The processes of the demo: each is started, killed -9 and started again as a supervisor would."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["Failure", "Process"]

# The interpreter as this one was started.
_PYTHON: Final = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
_CHILD: Final = [*_PYTHON, "-m", "hawser.demo.programs.die_with_parent"]
_READY_SECONDS: Final = 60.0
_END_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.02


class Failure(Exception):
    """The demo could not go on; what happened."""


class Process:
    """A Python module as a program, through all its runs: `hawser` for its commands. `good_codes` are those
    with which it may end by itself."""

    good_codes = frozenset({0})

    def __init__(self, name: str, directory: Path, module: str, *arguments: str) -> None:
        self.name = name
        self.directory = directory
        self.arguments = list(arguments)
        self.runs = 0
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """With which its last run ended; None while it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> Path:
        """What all runs say on standard error."""
        return self.directory / f"{self.name}.log"

    @property
    def said(self) -> str:
        """What its last run says on standard output."""
        return self._output.read_text() if self._output.exists() else ""

    def start(self) -> None:
        """Begin another run."""
        self.runs += 1
        with self.log.open("ab") as errors, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*_CHILD, self._module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # An interrupt at the keyboard is for the stage alone.
                start_new_session=True,
            )

    def wait_ready(self) -> str:
        """Until it says that it is, on standard output; the last word of that."""
        end = time.monotonic() + _READY_SECONDS
        while not (words := self.said.split()):
            self.check()
            if not self.alive or time.monotonic() > end:
                raise Failure(f"{self.name} does not get ready: {self.last_words()}")
            time.sleep(_STEP_SECONDS)
        return words[-1]

    def kill(self) -> bool:
        """SIGKILL to it and what it has started, at whatever instruction they are; whether it had not ended
        before."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def wait_end(self) -> None:
        """Until it has ended by itself, and well."""
        assert self._process is not None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not stop: {self.last_words()}") from None
        self.check()

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
        self._process = None

    def check(self) -> None:
        """Failure if it ended by itself and not well."""
        if self.code is not None and self.code not in {*self.good_codes, -signal.SIGKILL}:
            raise Failure(f"{self.name} ended by itself with code {self.code}: {self.last_words()}")

    def last_words(self, count: int = 3) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-count:]) or "no message"

    @property
    def _output(self) -> Path:
        return self.directory / f"{self.name}.out"
