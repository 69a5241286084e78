"""A simulated clock: time advances only with events.

Time is an integer, in microseconds by convention. Events at the same time happen in the order in which they
were scheduled, so a run is deterministic.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

__all__ = ["SimClock"]


class SimClock:
    """A queue of scheduled events, and the time of the last event."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self._order = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        """The number of scheduled events."""
        return len(self._queue)

    @property
    def next_time(self) -> float:
        """The time of the next event; infinity if none is scheduled."""
        return self._queue[0][0] if self._queue else inf

    def after(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule `action` after `delay`. An event cannot be cancelled, so an action that may be obsolete by
        then must check."""
        assert delay >= 0
        self._order += 1
        heappush(self._queue, (self.now + delay, self._order, action, arguments))

    def step(self) -> bool:
        """Run the next event; False if none is scheduled."""
        if not self._queue:
            return False
        self.now, _, action, arguments = heappop(self._queue)
        self.events += 1
        action(*arguments)
        return True
