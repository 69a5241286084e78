"""A watchdog of an event loop: counts and logs the times for which the loop did not run.

A timer fires at each beat, every 25 ms in a node. A late timer shows how long the loop stood still, give or
take one beat. So a node sees every stall of 75 ms and counts none shorter than 50 ms.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Self

__all__ = ["STALL_SECONDS", "StallWatch"]

_log = logging.getLogger("hawser.cluster.stalls")

STALL_SECONDS: Final = 0.05
# Close to the silence that operators and peers accept.
_WARNING_SECONDS: Final = 0.5
# The shortest pause between two log lines.
_LOG_SECONDS: Final = 10.0


class StallWatch:
    """Watches the loop of `owner`. `count` and `seconds` cover all stalls, `longest` is the longest.
    `longest_busy` is the most processor time of this process in one stall: the rest of a stall is waiting for
    a disk or the processor, or the process was stopped."""

    def __init__(
        self,
        owner: str,
        beat_seconds: float = 0.025,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.count = 0
        self.seconds = self.longest = self.longest_busy = 0.0
        self._owner = owner
        self._beat_seconds = beat_seconds
        self._clock = clock
        self._busy_clock = busy_clock
        self._last = self._last_busy = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # Counts since the last log line, and the time of that line.
        self._unsaid = 0
        self._longest_unsaid = 0.0
        self._said_at = -_LOG_SECONDS

    def start(self, loop: asyncio.AbstractEventLoop) -> Self:
        """Watch it from now on, or from its start; in its thread, or before it runs."""
        self._set_timer(loop)
        return self

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last, self._last_busy = self._clock(), self._busy_clock()
        self._timer = loop.call_later(self._beat_seconds, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late = self._clock() - self._last - self._beat_seconds
        if late >= STALL_SECONDS:
            self._stalled(late, min(late, self._busy_clock() - self._last_busy))
        self._set_timer(loop)

    def _stalled(self, seconds: float, busy_seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.longest_busy = max(self.longest_busy, busy_seconds)
        self._unsaid += 1
        self._longest_unsaid = max(self._longest_unsaid, seconds)
        now = self._clock()
        if now - self._said_at >= _LOG_SECONDS or seconds >= _WARNING_SECONDS:
            _log.log(
                logging.WARNING if seconds >= _WARNING_SECONDS else logging.INFO,
                "the event loop of %s stood still for %.0f ms, %.0f ms of them on a processor "
                "(%d times since this was last reported, at most %.0f ms)",
                self._owner,
                1000 * seconds,
                1000 * busy_seconds,
                self._unsaid,
                1000 * self._longest_unsaid,
            )
            self._said_at, self._unsaid, self._longest_unsaid = now, 0, 0.0
