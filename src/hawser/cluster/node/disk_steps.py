"""Runs steps of shards that wait for the disk halfway, while the node's event loop continues.

A fence, a checkpoint or a new segment writes files, syncs them and continues. Such a step runs in a thread
that takes turns with the loop: at any time either the thread or the loop runs, so neither needs locks. The
loop runs while the thread waits for a sync. The shard holds its other events back until the step has ended.

    queued -> running <-> syncing -> ended

While a step is `running`, the loop stands still; while it is `queued` or `syncing`, the loop runs. The loop
calls `ended` in its turn.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from hawser.cluster.disk import Disk

__all__ = ["DiskSteps"]


class _Step:
    """One call that runs in turns with the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        call: Callable[[], Any],
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._call = call
        self._ended = ended
        # Released for the side whose turn begins.
        self._of_thread = threading.Semaphore(0)
        self._of_loop = threading.Semaphore(0)
        self._thread = 0
        self._result: Any = None
        self._failure: BaseException | None = None
        self._has_ended = False

    def run(self) -> None:
        """Runs in the thread."""
        self._thread = threading.get_ident()
        try:
            self._wait_for_turn()
            self._disk.aside = self._aside
            self._result = self._call()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._disk.aside = None
            self._has_ended = True
            self._of_loop.release()

    def _wait_for_turn(self) -> None:
        self._loop.call_soon_threadsafe(self._give_turn)
        self._of_thread.acquire()

    def _aside(self, wait: Callable[[], None]) -> None:
        """Runs in the thread: lets the loop run while `wait` waits."""
        assert threading.get_ident() == self._thread, "the loop must not sync the disk of a step"
        self._of_loop.release()
        try:
            wait()
        finally:
            self._wait_for_turn()

    def _give_turn(self) -> None:
        """Runs in the loop, which stands still until the thread waits or ends."""
        self._of_thread.release()
        self._of_loop.acquire()
        if self._has_ended:
            self._ended(self._result, self._failure)


class DiskSteps:
    """Runs as many steps at a time as there are `threads`. The threads start when they are needed, and are
    daemons: a process that ends without `close` does not wait for a disk."""

    def __init__(self, threads: int) -> None:
        assert threads > 0
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[_Step | None] = SimpleQueue()
        self._count = 0

    def begin(
        self, disk: Disk, call: Callable[[], Any], ended: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Runs `call`, which syncs files of `disk`. `ended` is called in the loop, later, with the result or
        the error; until then nothing else may sync files of that disk."""
        self._count += 1
        if self._count > len(self._threads) < self._most:
            name = f"disk-step-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        loop = asyncio.get_running_loop()
        self._queue.put(_Step(loop, disk, call, partial(self._one_ended, ended)))

    def _one_ended(
        self,
        ended: Callable[[Any, BaseException | None], None],
        result: Any,
        failure: BaseException | None,
    ) -> None:
        self._count -= 1
        ended(result, failure)

    def _work(self) -> None:
        while (step := self._queue.get()) is not None:
            step.run()

    def close(self) -> None:
        """No step may be in flight."""
        assert not self._count, f"{self._count} steps have not ended"
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
