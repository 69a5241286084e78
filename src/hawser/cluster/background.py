"""Background tasks of a service: kept until they end, with their errors logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]

_log = logging.getLogger("hawser.cluster")


class Background:
    """The tasks of one service; cancelled with it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def wait(self) -> None:
        """Returns when all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a background task failed", exc_info=task.exception())
