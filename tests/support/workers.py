"""Processes that work until their standard input ends, each with what it says in a file of its own."""

import subprocess
import sys
from pathlib import Path

from tests.support.etcd import dying_with_parent
from tests.support.processes import LIMIT_SECONDS

__all__ = ["Worker"]

_LAST_WORDS = 3000


class Worker:
    """`python -m MODULE ARGUMENTS`, started. Whatever goes wrong with it is an AssertionError with the end of
    what it said."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self.log = log
        self._words = (module, *arguments)
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [*dying_with_parent(), sys.executable, "-m", *self._words],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )

    @property
    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-_LAST_WORDS:]

    @property
    def code(self) -> int | None:
        """With which it has ended; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """With SIGKILL, unless it has ended; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        self.dismiss()

    def dismiss(self) -> None:
        """Let it end what it began, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def check(self) -> None:
        """AssertionError if it has failed by now."""
        assert not self.code, self._failure(f"failed with code {self.code}")

    def wait(self) -> None:
        """Once it was dismissed: until it is gone; AssertionError if it fails, or does not end."""
        try:
            self._process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self._failure(f"did not end within {LIMIT_SECONDS:g} s")) from None
        self.check()

    def _failure(self, what: str) -> str:
        return f"{' '.join(self._words)} {what}; it said\n{self.last_words or 'nothing'}"
