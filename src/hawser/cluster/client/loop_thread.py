"""An event loop in a background thread, for the synchronous API."""

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
# A cancelled task may begin a few others, which begin none.
_MOST_ROUNDS: Final = 100


class _Call(Generic[Result]):
    """A coroutine in the loop and the thread that waits for it. A concurrent.futures.Future does the same
    with three locks and thirty calls, which slows every get and commit."""

    __slots__ = ("_ended", "_loop", "_task", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        # Held until the work has ended.
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> None:
        """Start the work, in the loop."""
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, _: "asyncio.Task[Result]") -> None:
        self._ended.release()

    def result(self) -> Result:
        """Wait for the result; concurrent.futures.CancelledError if the work was cancelled."""
        self._ended.acquire()
        assert self._task is not None
        if self._task.cancelled():
            raise CancelledError
        return self._task.result()

    def abandon(self) -> None:
        """Cancel the work unless it has ended. Its caller was interrupted, perhaps before it posted
        `begin`."""
        if self._task is None or not self._task.done():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # Callbacks run in the order of their posts, so without a task `begin` was not posted.
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()


class LoopThread:
    """`call` runs a coroutine in the loop and waits for it; any number of threads may call.

    state    calls and posts                                   next
    running  run, in order                                     stopped
    stopped  Closed; calls in progress get OutcomeUnknown      none
    forked   UsageError: the child has no copy of the thread   none
    """

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        # An idle program must not wake up as often as a node.
        self.stalls = StallWatch(name, beat_seconds=0.1).start(self.loop)
        self._process = os.getpid()
        self._is_stopped = False
        # No other thread stops the loop between the check and the post. Reentrant: a signal handler or a
        # finalizer that interrupts a post may itself post, or stop the loop.
        self._posting = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, where locks may look held by threads of the parent."""
        return os.getpid() != self._process

    @property
    def is_usable(self) -> bool:
        """Whether the thread runs, and in this process."""
        return not self._is_stopped and not self.is_inherited

    def check(self) -> None:
        """Closed if it was stopped; UsageError in a forked child."""
        if self.is_inherited:
            raise UsageError("this bus was opened before a fork; connect again in the child")
        if self._is_stopped:
            raise Closed(_CLOSED)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a callback in the loop, soon and in order; Closed if it was stopped."""
        self.check()
        with self._posting:
            if self._is_stopped:
                raise Closed(_CLOSED)
            try:
                self.loop.call_soon_threadsafe(callback, *arguments)
            except RuntimeError:
                # The interruption stopped the loop.
                raise Closed(_CLOSED) from None

    def check_may_wait(self) -> None:
        """As `check`; also UsageError in the loop's thread, where a call that waits would never end."""
        self.check()
        self._check_thread()

    def check_may_close(self) -> None:
        """UsageError in the loop's thread, unless the loop was stopped and nothing is left to wait for."""
        if self.is_usable:
            self._check_thread()

    def _check_thread(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                "this call waits for the network, and a callback of a future may not wait: it runs in the "
                "thread that serves the network. Make the call in another thread, or use publish_nowait"
            )

    def call(self, work: Coroutine[Any, Any, Result], if_closed: str = _IF_CLOSED) -> Result:
        """Run `work` and return its result; OutcomeUnknown with the text `if_closed` if the thread stops
        meanwhile. An interruption cancels the work."""
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
        """Start `work` without waiting for it; Closed if the thread was stopped."""
        try:
            self.check()
            with self._posting:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except HawserError:
            work.close()
            raise

    def end_with(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work`, then stop; returns at once."""
        self.begin(work).add_done_callback(lambda _: self._halt())

    def _halt(self) -> None:
        with self._posting, suppress(RuntimeError):
            self._is_stopped = True
            # After everything that was posted.
            self.loop.call_soon_threadsafe(self.loop.stop)

    def stop(self) -> None:
        """End the thread; later calls get Closed."""
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
    """Cancel every other task; return when they have ended and their callbacks have run. Gives up after a
    number of rounds on tasks that replace themselves when they are cancelled."""
    for _ in range(_MOST_ROUNDS):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            break
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)
