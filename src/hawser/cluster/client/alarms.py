"""One timer for many who wait equally long: a timer for each would cost more than what most of them do."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Alarm"]

T = TypeVar("T")


class Alarm(Generic[T]):
    """`ring` is called for each who was set here, so many seconds later, unless it is forgotten before. In
    the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[T], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._ring = ring
        # In the order in which they are due.
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, who: T) -> None:
        """It must not be set here already."""
        assert who not in self._due
        due = self._due[who] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._go_off)

    def forget(self, who: T) -> None:
        self._due.pop(who, None)

    def _go_off(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due:
            who, due = next(iter(self._due.items()))
            if due > now:
                break
            del self._due[who]
            self._ring(who)
        if self._due and self._timer is None:
            self._timer = self._loop.call_at(next(iter(self._due.values())), self._go_off)
