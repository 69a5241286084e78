"""The requests that a link has sent and that are not answered yet, and the credits that limit them.

One timer serves all requests: it is set to the earliest deadline and checks the requests when it fires. Most
requests are answered long before, so a request costs no timer of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from hawser.cluster.transport.errors import AskFailed, AskTimeout, LinkClosed, Malformed
from hawser.cluster.transport.handshake import readable
from hawser.cluster.transport.settings import Counters

__all__ = ["OutgoingRequests", "RequestCredits"]

Answer = bytes | bytearray

# A loop's timer may fire a little early, by the resolution of its clock.
_EARLY_SECONDS: Final = 0.001


class OutgoingRequests:
    """Numbers requests from 1. Each ends exactly once: answered, failed, timed out, dropped or lost with the
    link."""

    __slots__ = ("_loop", "_counters", "_on_timeout", "_pending", "_last", "_timer", "_timer_at")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, counters: Counters, on_timeout: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._counters = counters
        self._on_timeout = on_timeout
        self._pending: dict[int, tuple[asyncio.Future[Answer], float, float]] = {}
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, timeout_seconds: float | None) -> tuple[int, asyncio.Future[Answer]]:
        """The number of a new request, and the future of its answer."""
        self._last = number = self._last + 1
        future = self._loop.create_future()
        deadline = inf if timeout_seconds is None else self._loop.time() + timeout_seconds
        self._pending[number] = (future, deadline, timeout_seconds or 0.0)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        self._counters.asks += 1
        self._counters.asks_in_flight += 1
        return number, future

    def drop(self, number: int) -> bool:
        """The caller no longer waits; whether the request was still pending."""
        if self._pending.pop(number, None) is None:
            return False
        self._counters.asks_in_flight -= 1
        return True

    def answered(self, number: int, body: Answer) -> None:
        """An answer arrived. A late one is ignored; an answer to a request that was never sent is
        Malformed."""
        pending = self._pending.pop(number, None)
        if pending is None:
            self._check_late(number)
            return
        self._counters.asks_in_flight -= 1
        if not pending[0].done():
            pending[0].set_result(body)

    def failed(self, number: int, text: Answer) -> None:
        """The peer failed to serve the request."""
        pending = self._pending.pop(number, None)
        if pending is None:
            self._check_late(number)
            return
        self._counters.asks_in_flight -= 1
        if not pending[0].done():
            pending[0].set_exception(AskFailed(readable(text), was_sent=True))

    def close(self, reason: str) -> None:
        """The link is closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._counters.asks_in_flight -= len(self._pending)
        pending, self._pending = self._pending, {}
        for future, _, _ in pending.values():
            if not future.done():
                future.set_exception(LinkClosed(reason, was_sent=True))

    def _check_late(self, number: int) -> None:
        if not 0 < number <= self._last:
            raise Malformed(f"an answer to request {number}, which was never sent")

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._loop.time() + _EARLY_SECONDS
        earliest = inf
        expired = []
        for number, (_, deadline, _) in self._pending.items():
            if deadline <= now:
                expired.append(number)
            elif deadline < earliest:
                earliest = deadline
        for number in expired:
            future, _, seconds = self._pending.pop(number)
            self._counters.asks_in_flight -= 1
            self._counters.asks_timed_out += 1
            self._on_timeout(number)
            if not future.done():
                future.set_exception(AskTimeout(f"no answer within {seconds:g} s", was_sent=True))
        if earliest < inf:
            self._set_timer(earliest)


class RequestCredits:
    """The credits to send requests: as many as the peer serves at a time, given out first come, first served.
    `take` one, send the request, and `give` it back when the request has ended."""

    __slots__ = ("_free", "_may_send", "_waiting")

    def __init__(self, may_send: Callable[[], bool]) -> None:
        """Starts with no credits. None is given out while `may_send` is false."""
        self._free = 0
        self._may_send = may_send
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """Takes a credit if one is free and no caller waits for it."""
        if self._free and not self._waiting and self._may_send():
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        """Waits for a credit; LinkClosed if the link closes first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Given and cancelled in the same turn: the credit goes to the next caller.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(1)
            raise

    def give(self, count: int) -> None:
        """Adds this many free credits."""
        self._free += count
        self.hand_out()

    def hand_out(self) -> None:
        """Gives free credits to the callers that have waited longest."""
        while self._waiting and self._free and self._may_send():
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)

    def close(self, reason: str) -> None:
        """The link is closed: waiting callers get LinkClosed."""
        self._free = 0
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(LinkClosed(reason))
