"""Processes that measure together: pinned to cores, started at once, timed on one clock.

A *side* is a function that runs in a process of its own. It sets up, calls `gate.start()`, does the measured
work, and calls `gate.finish(result)` while its sockets and topics are open, so that messages in flight
survive until all sides have finished.
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
    """The connection of a side to the process that started it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self) -> None:
        """Report that this side is set up, and return when all sides are."""
        self._connection.send(("ready", None))
        self._connection.recv()

    def finish(self, result: Any = None) -> None:
        """Send the result, and return when all sides have sent theirs."""
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
    """The process of one side, and the connection to it."""

    def __init__(self, side: Side, shared: Any, case: Any, core: int | None) -> None:
        self.name = f"{side.__module__}.{side.__name__}"
        self.connection, far = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(
            target=_serve, args=(side, shared, case, core, far), daemon=True
        )
        self.process.start()
        far.close()

    def expect(self, kind: str) -> Any:
        """Receive the next message of this side, which must be of `kind`, and return its value."""
        if not self.connection.poll(ANSWER_SECONDS):
            raise RuntimeError(f"{self.name} did not answer within {ANSWER_SECONDS:.0f} s")
        try:
            said, value = self.connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} died before it was {kind}") from None
        if said != kind:
            raise RuntimeError(f"{self.name} {said} instead of {kind}:\n{value}")
        return value

    def end(self) -> None:
        """End the process. A side that waits for a message ends when the connection is closed."""
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run_sides(sides: Sequence[tuple[Side, int | None]], shared: Any, case: Any) -> list[Any]:
    """Run each side on its core, or on any core with None, and return the results in the same order.

    The sides are set up one after the other, so a later side finds what an earlier one created.
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
    """The monotonic clock, which all processes of the host share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
