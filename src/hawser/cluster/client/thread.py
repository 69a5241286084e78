"""An event loop in a thread of its own, for programs without one."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from hawser.cluster.transport import new_event_loop
from hawser.errors import Closed, HawserError, UsageError

__all__ = ["LoopThread"]

Result = TypeVar("Result")


class LoopThread:
    """`call` runs a coroutine there and waits for it; any number of threads may call."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._process = os.getpid()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether something can be called: it runs, and in this process."""
        return not self._is_stopped and os.getpid() == self._process

    def check(self) -> None:
        """Closed, or a UsageError in a forked child, unless it is usable."""
        if os.getpid() != self._process:
            raise UsageError("this bus was opened before a fork; connect again in the child")
        if self._is_stopped:
            raise Closed("this bus is closed; connect again")

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`. Interrupted, it cancels it."""
        try:
            self.check()
            if threading.current_thread() is self._thread:
                raise UsageError(
                    "this call waits, and was made in the thread that everything waits for (by the callback "
                    "of a future, perhaps); make it in another thread"
                )
        except HawserError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread; nothing can be called any more."""
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()
