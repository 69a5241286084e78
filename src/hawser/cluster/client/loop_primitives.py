"""An event and a timer of one event loop; cheaper than asyncio.Event and one TimerHandle per waiter."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["SharedTimer", "LoopEvent"]

T = TypeVar("T")


class SharedTimer(Generic[T]):
    """Call `callback` for each item a fixed time after it was set, unless it is forgotten before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[T], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._callback = callback
        # Ordered by deadline.
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, who: T) -> None:
        """Start the time of an item, which must not be set already."""
        assert who not in self._due
        due = self._due[who] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._expire_due)

    def forget(self, who: T) -> None:
        self._due.pop(who, None)

    def _expire_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due:
            who, due = next(iter(self._due.items()))
            if due > now:
                break
            del self._due[who]
            self._callback(who)
        if self._due and self._timer is None:
            self._timer = self._loop.call_at(next(iter(self._due.values())), self._expire_due)


class LoopEvent:
    """An asyncio.Event bound to one loop; looking up the running loop would double the cost of a short
    wait."""

    __slots__ = ("_is_set", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, None
        for each in waiting or ():
            if not each.done():
                each.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        if self._is_set:
            return
        if self._waiting is None:
            self._waiting = []
        waiting, waiter = self._waiting, self._loop.create_future()
        waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            waiting.remove(waiter)
            raise
