"""Something that is so or not, and may be waited for."""

import asyncio

__all__ = ["Flag"]


class Flag:
    """As asyncio.Event, in a loop that is known: to find it out takes as long as all else of a small wait."""

    __slots__ = ("_is_set", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Whoever waits goes on."""
        self._is_set = True
        waiting, self._waiting = self._waiting, None
        for each in waiting or ():
            if not each.done():
                each.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Return when it is so."""
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
