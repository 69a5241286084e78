"""Who may send a request next: as many at a time as the peer serves, first come, first served."""

import asyncio
from collections import deque
from collections.abc import Callable

from hawser.cluster.transport.failures import LinkClosed

__all__ = ["Turns"]


class Turns:
    """`take` a turn, send the request, and give it back when the request has ended."""

    __slots__ = ("_free", "_may_send", "_waiting")

    def __init__(self, may_send: Callable[[], bool]) -> None:
        """There are none until some are given. None is handed out while `may_send` is false."""
        self._free = 0
        self._may_send = may_send
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_at_once(self) -> bool:
        """Take a turn if one is free and nobody waits for it."""
        if self._free and not self._waiting and self._may_send():
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        """Take a turn when it comes; LinkClosed if none will."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Given and cancelled at once: the turn is for the next.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(1)
            raise

    def give(self, count: int) -> None:
        """So many turns are free (again)."""
        self._free += count
        self.hand_out()

    def hand_out(self) -> None:
        """Let those in who have waited longest."""
        while self._waiting and self._free and self._may_send():
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)

    def close(self, reason: str) -> None:
        """There will be no more."""
        self._free = 0
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(LinkClosed(reason))
