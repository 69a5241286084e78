"""Processes that measure together: pinned to cores, started at once, timed on one clock.

A *side* is a function run in a process of its own. It sets itself up, calls `gate.start()`, does the
measured work, and calls `gate.finish(result)` while its sockets and topics are still open, so that
nothing in flight is lost before the others are done too.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hawser.bench.machine import pin

CONTEXT = multiprocessing.get_context("spawn")
ANSWER_SECONDS = 60.0


class Gate:
    """A side's line to whoever started it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self) -> None:
        """Say that this side is set up; return when all of them are."""
        self._connection.send(("ready", None))
        self._connection.recv()

    def finish(self, result: Any = None) -> None:
        """Hand back the result; return when all sides have theirs."""
        self._connection.send(("done", result))
        self._connection.recv()


Side = Callable[[Any, Any, Gate], None]


def _serve(side: Side, shared: Any, case: Any, core: int | None, connection: Connection) -> None:
    if core is not None:
        pin(core)
    try:
        side(shared, case, Gate(connection))
    except Exception:
        with contextlib.suppress(OSError):  # the starter may have given up
            connection.send(("failed", traceback.format_exc()))


class _Running:
    """One side's process and the near end of its line."""

    def __init__(self, side: Side, shared: Any, case: Any, core: int | None) -> None:
        self.name = f"{side.__module__}.{side.__name__}"
        self.connection, far = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(
            target=_serve, args=(side, shared, case, core, far), daemon=True
        )
        self.process.start()
        far.close()

    def expect(self, kind: str) -> Any:
        """The next word of this side, which has to be `kind`; its value."""
        if not self.connection.poll(ANSWER_SECONDS):
            raise RuntimeError(f"{self.name} gave no answer in {ANSWER_SECONDS:.0f} s")
        try:
            said, value = self.connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} died before it was {kind}") from None
        if said != kind:
            raise RuntimeError(f"{self.name} {said} instead of {kind}:\n{value}")
        return value

    def end(self) -> None:
        """See the process gone; a side that waits for a word which will not come leaves at the hang-up."""
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run_sides(sides: Sequence[tuple[Side, int | None]], shared: Any, case: Any) -> list[Any]:
    """Run each (side, core) in a process of its own and return their results in the same order; with None for
    a core it may run on any.

    They are set up one after the other, so a later side finds what an earlier one made.
    """
    running: list[_Running] = []
    try:
        for side, core in sides:
            running.append(_Running(side, shared, case, core))
            running[-1].expect("ready")
        for one in running:
            one.connection.send("go")
        results = [one.expect("done") for one in running]
        for one in running:
            one.connection.send("leave")
        for one in running:
            one.process.join(timeout=5)
        return results
    finally:
        for one in running:
            one.end()


def now_ns() -> int:
    """The clock all processes of this host share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
