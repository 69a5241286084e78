"""The calls that wait for messages of a session, served first come, first served."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from hawser.cluster.client.errors import copy_of
from hawser.errors import HawserError

__all__ = ["Waiter", "Waiters"]


class Waiter:
    """A call that waits for up to `count` messages; one that `looks` (timeout 0) waits for the next answer
    only."""

    __slots__ = ("count", "deadline", "future", "looks")

    def __init__(self, count: int, looks: bool, deadline: float, future: "asyncio.Future[list[Any]]") -> None:
        self.count = count
        self.looks = looks
        self.deadline = deadline
        self.future = future


class Waiters:
    """Lives in the event loop. `late` makes the error for a call that looks and gets no answer in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[], HawserError]) -> None:
        self._loop = loop
        self._late = late
        self._line: deque[Waiter] = deque()
        self._timer: asyncio.Handle | None = None
        # Kept here because the handle of some event loops has no `when()`.
        self._timer_deadline = inf

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def wanted(self) -> int:
        """How many messages all calls want."""
        return sum(waiter.count for waiter in self._line if not waiter.future.done())

    @property
    def looking(self) -> list[Waiter]:
        return [waiter for waiter in self._line if waiter.looks and not waiter.future.done()]

    def add(self, count: int, looks: bool, seconds: float) -> Waiter:
        """Add a call that waits for `seconds`, which may be infinite."""
        deadline = inf if seconds == inf else self._loop.time() + seconds
        waiter = Waiter(count, looks, deadline, self._loop.create_future())
        self._line.append(waiter)
        if deadline < self._timer_deadline:
            self._set_timer(deadline)
        return waiter

    def serve(self, take: Callable[[int], list[Any]]) -> None:
        """Give each call what `take(count)` returns, until it returns nothing."""
        while self._line:
            waiter = self._line[0]
            if not waiter.future.done():
                found = take(waiter.count)
                if not found:
                    break
                waiter.future.set_result(found)
            self._line.popleft()

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting."""
        with suppress(ValueError):
            self._line.remove(waiter)

    def dismiss(self, looking: list[Waiter]) -> None:
        """Return no messages to these calls."""
        for waiter in looking:
            if not waiter.future.done():
                waiter.future.set_result([])
        self._forget_those_who_left()

    def fail(self, error: HawserError) -> None:
        """Fail every call with a copy of the error."""
        while self._line:
            waiter = self._line.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(copy_of(error))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_deadline = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """End the calls whose time is over: an empty result, or the `late` error for one that looks."""
        self._timer, self._timer_deadline = None, inf
        now = self._loop.time()
        for waiter in self._line:
            if waiter.deadline > now or waiter.future.done():
                continue
            if waiter.looks:
                waiter.future.set_exception(self._late())
            else:
                waiter.future.set_result([])
        self._forget_those_who_left()

    def _forget_those_who_left(self) -> None:
        self._line = deque(waiter for waiter in self._line if not waiter.future.done())
        deadline = min((waiter.deadline for waiter in self._line), default=inf)
        if deadline < inf:
            self._set_timer(deadline)
