"""A process of the demo: the orchestrator starts it, kills it with SIGKILL, and starts it again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["Failure", "Process"]

# The interpreter with the options of this one.
_PYTHON: Final = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
_CHILD: Final = [*_PYTHON, "-m", "hawser.demo.programs.die_with_parent"]
_READY_SECONDS: Final = 60.0
_END_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.02


class Failure(Exception):
    """The demo cannot continue."""


class Process:
    """A Python module that runs as a program, over all its runs. `good_codes` are its expected exit codes."""

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
        """The exit code of its last run; None while it runs or before its first start."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> Path:
        """The file with the standard error of all runs."""
        return self.directory / f"{self.name}.log"

    @property
    def said(self) -> str:
        """The standard output of its last run."""
        return self._output.read_text() if self._output.exists() else ""

    def start(self) -> None:
        """Start another run."""
        self.runs += 1
        with self.log.open("ab") as errors, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*_CHILD, self._module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # An interrupt at the keyboard is for the orchestrator alone.
                start_new_session=True,
            )

    def wait_ready(self) -> str:
        """Wait for its line on standard output, and return the last word of it."""
        end = time.monotonic() + _READY_SECONDS
        while not (words := self.said.split()):
            self.check()
            if not self.alive or time.monotonic() > end:
                raise Failure(f"{self.name} did not get ready: {self.last_words()}")
            time.sleep(_STEP_SECONDS)
        return words[-1]

    def kill(self) -> bool:
        """Kill its process group with SIGKILL, and return whether it was still running."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def wait_end(self) -> None:
        """Wait until it ends by itself without an error."""
        assert self._process is not None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not stop: {self.last_words()}") from None
        self.check()

    def end(self) -> None:
        """Stop it with SIGTERM, and with SIGKILL after a timeout."""
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
        """Failure if it ended by itself with an error."""
        if self.code is not None and self.code not in {*self.good_codes, -signal.SIGKILL}:
            raise Failure(f"{self.name} ended by itself with code {self.code}: {self.last_words()}")

    def last_words(self, count: int = 3) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-count:]) or "no message"

    @property
    def _output(self) -> Path:
        return self.directory / f"{self.name}.out"
