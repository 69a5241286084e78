"""Those who wait for messages of a session, served in the order in which they came."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from hawser.cluster.client.errors import copy_of
from hawser.errors import HawserError

__all__ = ["Getter", "Getters"]


class Getter:
    """Somebody who waits for up to `count` messages; if he `looks`, for the next answer only."""

    __slots__ = ("count", "deadline", "future", "looks")

    def __init__(self, count: int, looks: bool, deadline: float, future: "asyncio.Future[list[Any]]") -> None:
        self.count = count
        self.looks = looks
        self.deadline = deadline
        self.future = future


class Getters:
    """Everything happens in the event loop. `late` makes the error for one who looks and gets no answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[], HawserError]) -> None:
        self._loop = loop
        self._late = late
        self._line: deque[Getter] = deque()
        self._timer: asyncio.Handle | None = None
        # When it rings: not every loop's handle says so, once that is now.
        self._rings_at = inf

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def wanted(self) -> int:
        """How many messages all of them want."""
        return sum(getter.count for getter in self._line if not getter.future.done())

    @property
    def looking(self) -> list[Getter]:
        return [getter for getter in self._line if getter.looks and not getter.future.done()]

    def add(self, count: int, looks: bool, seconds: float) -> Getter:
        """Somebody who waits for so long, perhaps for ever."""
        deadline = inf if seconds == inf else self._loop.time() + seconds
        getter = Getter(count, looks, deadline, self._loop.create_future())
        self._line.append(getter)
        if deadline < self._rings_at:
            self._set_timer(deadline)
        return getter

    def serve(self, take: Callable[[int], list[Any]]) -> None:
        """Give each what `take` has for so many, until it has nothing."""
        while self._line:
            getter = self._line[0]
            if not getter.future.done():
                found = take(getter.count)
                if not found:
                    break
                getter.future.set_result(found)
            self._line.popleft()

    def leave(self, getter: Getter) -> None:
        """Stop waiting."""
        with suppress(ValueError):
            self._line.remove(getter)

    def dismiss(self, looking: list[Getter]) -> None:
        """There is nothing for these."""
        for getter in looking:
            if not getter.future.done():
                getter.future.set_result([])
        self._forget_those_who_left()

    def fail(self, error: HawserError) -> None:
        """All of them get this, each an error of his own."""
        while self._line:
            getter = self._line.popleft()
            if not getter.future.done():
                getter.future.set_exception(copy_of(error))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = deadline
        self._timer = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        """Whoever has waited for long enough gets nothing."""
        self._timer, self._rings_at = None, inf
        now = self._loop.time()
        for getter in self._line:
            if getter.deadline > now or getter.future.done():
                continue
            if getter.looks:
                getter.future.set_exception(self._late())
            else:
                getter.future.set_result([])
        self._forget_those_who_left()

    def _forget_those_who_left(self) -> None:
        self._line = deque(getter for getter in self._line if not getter.future.done())
        deadline = min((getter.deadline for getter in self._line), default=inf)
        if deadline < inf:
            self._set_timer(deadline)
