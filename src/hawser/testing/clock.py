"""Time that passes only when it is told to.

Time is an integer, in microseconds by convention. What happens at the same time happens in the order in which
it was asked for, so a run depends on nothing but what was asked.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

__all__ = ["SimClock"]


class SimClock:
    """A queue of what is to happen, and the time at which the last of it did."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self._order = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        """How much is waiting to happen."""
        return len(self._queue)

    @property
    def next_time(self) -> float:
        """When the next thing happens; infinity if nothing is waiting."""
        return self._queue[0][0] if self._queue else inf

    def after(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` when `delay` has passed. It cannot be called off: an action that may have lost its
        sense by then asks for itself."""
        assert delay >= 0
        self._order += 1
        heappush(self._queue, (self.now + delay, self._order, action, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is waiting."""
        if not self._queue:
            return False
        self.now, _, action, arguments = heappop(self._queue)
        self.events += 1
        action(*arguments)
        return True
