"""An event loop in a thread of its own, for programs without one."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from hawser.cluster.stall_watch import StallWatch
from hawser.cluster.transport import new_event_loop
from hawser.errors import Closed, HawserError, OutcomeUnknown, UsageError

__all__ = ["LoopThread"]

Result = TypeVar("Result")
_CLOSED: Final = "this bus is closed; connect again"
_IF_CLOSED: Final = "the bus was closed while this call was under way; what it was to do may have been done"
# A cancelled task may begin a few others, which begin nothing.
_MOST_ROUNDS: Final = 100


class _Call(Generic[Result]):
    """Work in a loop that another thread waits for. A future of threads does the same with three locks and
    thirty calls, which a get or a commit notices."""

    __slots__ = ("_ended", "_loop", "_task", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        # Held until it has ended.
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> None:
        """Begin the work, in the loop."""
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, _: "asyncio.Task[Result]") -> None:
        self._ended.release()

    def result(self) -> Result:
        """Wait for the result; CancelledError of threads if the work was cancelled."""
        self._ended.acquire()
        assert self._task is not None
        if self._task.cancelled():
            raise CancelledError
        return self._task.result()

    def abandon(self) -> None:
        """Cancel the work unless it has ended. The caller was interrupted, maybe before it posted `begin`."""
        if self._task is None or not self._task.done():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # Callbacks run in the order in which they were posted, so without a task `begin` was not posted.
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()


class LoopThread:
    """`call` runs a coroutine there and waits for it; any number of threads may call.

    It runs until it is stopped. What was posted before that is run; what comes later is Closed. A call under
    way is then cancelled and ends as OutcomeUnknown.
    """

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        # An idle program need not wake up as often as a node.
        self.stalls = StallWatch(name, beat_seconds=0.1).start(self.loop)
        self._process = os.getpid()
        self._is_stopped = False
        # Between this check and the post no other thread stops the loop. Reentrant: a signal handler or a
        # finalizer that interrupts a post may post as well, or stop the loop.
        self._posting = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, in which other threads of the parent may seem to hold locks."""
        return os.getpid() != self._process

    @property
    def is_usable(self) -> bool:
        """Whether something can be called: it runs, and in this process."""
        return not self._is_stopped and not self.is_inherited

    def check(self) -> None:
        """Closed, or a UsageError in a forked child, unless it is usable."""
        if self.is_inherited:
            raise UsageError("this bus was opened before a fork; connect again in the child")
        if self._is_stopped:
            raise Closed(_CLOSED)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run this there, soon and in order; Closed if it has stopped."""
        self.check()
        with self._posting:
            if self._is_stopped:
                raise Closed(_CLOSED)
            try:
                self.loop.call_soon_threadsafe(callback, *arguments)
            except RuntimeError:
                # The loop was stopped by what interrupted this.
                raise Closed(_CLOSED) from None

    def check_may_wait(self) -> None:
        """As `check`; UsageError in the thread of the loop, too: a call that waits there would never end."""
        self.check()
        self._check_thread()

    def check_may_close(self) -> None:
        """UsageError in the thread of the loop. A stopped loop needs no wait, so there this does nothing."""
        if self.is_usable:
            self._check_thread()

    def _check_thread(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                "this call waits for the network, and a callback of a future may not wait: it runs in the "
                "thread that serves the network. Make the call in another thread, or use publish_nowait"
            )

    def call(self, work: Coroutine[Any, Any, Result], if_closed: str = _IF_CLOSED) -> Result:
        """The result of `work`; OutcomeUnknown, with `if_closed`, if it ends with the thread. Interrupted, it
        cancels it."""
        try:
            self.check_may_wait()
        except HawserError:
            work.close()
            raise
        begun = _Call(self.loop, work)
        try:
            try:
                self.post(begun.begin)
            except HawserError:
                work.close()
                raise
            return begun.result()
        except CancelledError:
            raise OutcomeUnknown(if_closed) from None
        except BaseException:
            begun.abandon()
            raise

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Begin `work`, without waiting for it; Closed if this has stopped."""
        try:
            self.check()
            with self._posting:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except HawserError:
            work.close()
            raise

    def end_with(self, work: Coroutine[Any, Any, object]) -> None:
        """As `stop`, once `work` has ended, and without waiting for either."""
        self.begin(work).add_done_callback(lambda _: self._halt())

    def _halt(self) -> None:
        with self._posting, suppress(RuntimeError):
            self._is_stopped = True
            # Behind everything that was posted.
            self.loop.call_soon_threadsafe(self.loop.stop)

    def stop(self) -> None:
        """End the thread; nothing can be called any more."""
        self._halt()
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_cancel_tasks())
            self.loop.close()


async def _cancel_tasks() -> None:
    """Cancel every other task; return when they have ended and their callbacks have run. Tasks that are
    replaced whenever they are cancelled are left after a number of rounds."""
    for _ in range(_MOST_ROUNDS):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            break
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)
