"""Threads that wait for the disk, so that the event loop does not.

concurrent.futures does the same with a lock and two futures for each call, which a small write notices.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

__all__ = ["DiskThreads"]

Work = Callable[[], object]
Ended = Callable[[Exception | None], None]


class DiskThreads:
    """At most `most` threads, started as they are needed. Everything but the work happens in one loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._threads: list[Thread] = []
        self._under_way = 0
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, Work, Ended] | None] = SimpleQueue()

    def run(self, work: Work, ended: Ended) -> None:
        """Do the work in a thread, then call `ended` here, with the error if there was one."""
        self._under_way += 1
        if self._under_way > len(self._threads) < self._most:
            number = len(self._threads)
            self._threads.append(Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True))
            self._threads[-1].start()
        self._queue.put((asyncio.get_running_loop(), work, ended))

    async def wait_for(self, work: Work) -> None:
        """Do the work in a thread; return when it is done, or raise what it raised."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.run(work, ended)
        await future

    def close(self) -> None:
        """Return when all work is done and the threads are gone."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            loop, work, ended = item
            error: Exception | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            # A loop that is closed has nobody any more who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, ended, error)
            # Kept until the next work comes, they would keep a shard that is gone.
            del item, loop, work, ended, error

    def _end(self, ended: Any, error: Exception | None) -> None:
        self._under_way -= 1
        ended(error)
