"""Syncs the files of a node's shards in threads, while the event loop runs.

The syncs requested in one turn of the loop are handed over together at its end, after the turn's messages are
sent. So the first thread to wake does not delay the others.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count

from hawser.memory import Syncs

__all__ = ["SyncPool"]

_log = logging.getLogger("hawser.cluster.node")

# Called with 0 or an errno, and how many seconds it took.
Ended = Callable[[int, float], None]


class SyncPool:
    """A fixed number of sync threads. All methods run in one loop."""

    def __init__(self, threads: int) -> None:
        self._syncs = Syncs(threads)
        self._numbers = count()
        self._wanted: list[tuple[int, list[int]]] = []
        self._under_way: dict[int, Ended] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts to report ended syncs in the running loop."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._syncs.fileno(), self._look)
        self._loop = loop

    def begin(self, descriptors: list[int], ended: Ended) -> None:
        """Syncs these files, which must stay open until `ended` is called."""
        assert self._loop is not None
        number = next(self._numbers)
        self._under_way[number] = ended
        if not self._wanted:
            self._loop.call_soon(self._hand_over)
        self._wanted.append((number, descriptors))

    def _hand_over(self) -> None:
        wanted, self._wanted = self._wanted, []
        self._syncs.begin(wanted)

    def _look(self) -> None:
        for number, error, seconds in self._syncs.ended():
            ended = self._under_way.pop(number)
            try:
                ended(error, seconds)
            except Exception:
                _log.exception("a shard failed after a sync; other shards are not affected")

    def close(self) -> None:
        """No sync may be in flight."""
        if self._loop is not None:
            self._loop.remove_reader(self._syncs.fileno())
            self._loop = None
        self._syncs.close()
