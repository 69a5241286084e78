"""A process in a pid namespace of its own.

It is a program, not a fork of the tests': what they have imported may start threads at a fork, which is
impossible between unshare and fork.
"""

import subprocess
import sys
from types import TracebackType
from typing import Self

import pytest

PROGRAM = """
import ctypes, os, signal, sys, time, hawser
signal.alarm(120)
if ctypes.CDLL(None).unshare(0x20000000) != 0:
    print("refused", flush=True)
    sys.exit()
child = os.fork()
if child == 0:
    exec(sys.argv[1])
    time.sleep(120)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("killed", flush=True)
"""


class InNamespace:
    """Runs `code`, which has `hawser`, `os`, and its arguments in `sys.argv[2:]`, prints a line and ends. The
    process stays until it is killed. Skips the test where no namespace can be made."""

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-c", PROGRAM, code, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = self._hear()
        """The line that it printed."""
        if self.said == "refused":
            self._process.wait()
            pytest.skip("this host allows no pid namespaces")

    def kill(self) -> None:
        """By SIGKILL; it is gone afterwards."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill it\n")
        self._process.stdin.flush()
        assert self._hear() == "killed"

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
