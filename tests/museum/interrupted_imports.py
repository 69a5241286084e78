"""Import modules; at every so many lines a forked child is interrupted: for `test_interrupted_imports.py`.
`python -m tests.museum.interrupted_imports EVERY MODULE...` prints the number of children, and where those
were interrupted that died of another signal than SIGINT.
"""

import os
import signal
import sys
from types import CodeType, FrameType
from typing import Any


class Interrupting:
    """A trace function that forks at each `every`-th line that was not run before."""

    def __init__(self, every: int) -> None:
        self.children = 0
        self.crashed: list[str] = []
        self._every = every
        self._lines: set[tuple[CodeType, int]] = set()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        line = frame.f_code, frame.f_lineno
        if event == "line" and line not in self._lines:
            self._lines.add(line)
            if len(self._lines) % self._every == 0:
                self._fork(frame)
        return self.trace

    def _fork(self, frame: FrameType) -> None:
        child = os.fork()
        if not child:
            sys.settrace(None)
            # A traceback is of no use; a crash shows in the status.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            sys.excepthook = lambda *_: None
            self.children = -1
            raise KeyboardInterrupt
        self.children += 1
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGINT:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.crashed.append(f"interrupted at {place}: signal {os.WTERMSIG(status)}")


def main() -> None:
    interrupting = Interrupting(int(sys.argv[1]))
    sys.settrace(interrupting.trace)
    for module in sys.argv[2:]:
        __import__(module)
    sys.settrace(None)
    if interrupting.children >= 0:
        print(f"children={interrupting.children}", *interrupting.crashed, sep="\n")


if __name__ == "__main__":
    main()
