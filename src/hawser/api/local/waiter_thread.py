"""The thread that sleeps in native waits for all event loops of a process.

The thread takes and publishes nothing: it wakes a loop that may have something to do, and the loop tries by
itself. So a cancelled waiter has taken nothing, and one that was woken in vain waits again. The thread ends
after some time without waiters.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from hawser.api.subscription import check_timeout
from hawser.errors import Full
from hawser.memory import Consumer, Publisher, Subscriber, Waiter

__all__ = ["end", "ready", "until", "until_space"]

R = TypeVar("R")
Endpoint = Subscriber | Publisher | Consumer
_Ticket = tuple[asyncio.AbstractEventLoop, "asyncio.Future[bool]"]

# The longest sleep of the thread; events and new waiters end it at once.
_SLEEP_SECONDS: Final = 1.0
# After so many results without a pause the other tasks of the loop get their turn.
_TURN: Final = 64
# After so many Full in a row without a slow subscriber the cause is another one, which waiting does not cure.
_FULL_IN_A_ROW: Final = 10

_results = 0


async def until(attempt: Callable[[], R | None], endpoint: Endpoint, timeout: float | None) -> R | None:
    """The first result of `attempt` that is not None; it is tried whenever `endpoint` has an event. None
    after `timeout` seconds. A cancellation loses no result."""
    global _results
    _results += 1
    if _results % _TURN == 0:
        await asyncio.sleep(0)
    check_timeout(timeout)
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        result = attempt()
        if result is not None or timeout == 0:
            return result
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            return None
        await ready(endpoint, left)


async def until_space(attempt: Callable[[], R], publisher: Publisher, timeout: float | None) -> R:
    """The result of `attempt`, a publish that does not wait: tried again while a reliable subscriber is
    in the way, or the queue is full, for `timeout` seconds; then Full."""
    refused: Full
    in_a_row = 0

    def published() -> R | None:
        nonlocal refused, in_a_row
        try:
            return attempt()
        except Full as error:
            refused = error
            # Other producers may fill a queue again and again; a topic stays full only with too many loans.
            in_a_row = in_a_row + 1 if publisher.kind == "publisher" and Waiter().wait([publisher], 0) else 0
            if in_a_row > _FULL_IN_A_ROW:
                raise
            return None

    result = await until(published, publisher, timeout)
    if result is None:
        raise refused
    return result


async def ready(endpoint: Endpoint, timeout: float | None = None) -> bool:
    """Return when `endpoint` may have something to do; False when the time was over first."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    timer = None if timeout is None else loop.call_later(timeout, _resolve, future, False)
    waiting = _waiting
    waiting.add(endpoint, (loop, future))
    try:
        return await future
    finally:
        if timer is not None:
            timer.cancel()
        waiting.discard(endpoint, future)


def end(endpoint: Endpoint) -> None:
    """Wake the waiters of `endpoint`, because it is about to be closed."""
    _waiting.end(endpoint)


class _WaitingThread:
    """The waiters by endpoint, and the thread that sleeps for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiter = Waiter()
        self._tickets: dict[int, tuple[Endpoint, list[_Ticket]]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, endpoint: Endpoint, ticket: _Ticket) -> None:
        with self._lock:
            self._tickets.setdefault(id(endpoint), (endpoint, []))[1].append(ticket)
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="hawser-waiting", daemon=True)
                thread.start()
                self._thread = thread
        self._waiter.wake()

    def discard(self, endpoint: Endpoint, future: "asyncio.Future[bool]") -> None:
        with self._lock:
            _, tickets = self._tickets.get(id(endpoint), (endpoint, []))
            tickets[:] = [ticket for ticket in tickets if ticket[1] is not future]
            if not tickets and self._tickets.pop(id(endpoint), None) is not None:
                self._waiter.wake()

    def end(self, endpoint: Endpoint) -> None:
        self._signal([endpoint])
        self._waiter.wake()

    def stop(self) -> None:
        """End the thread: one that sleeps while the interpreter shuts down could not wake up."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None:
            self._waiter.wake()
            thread.join()

    def _run(self) -> None:
        try:
            self._sleep_for_all()
        except BaseException:
            with self._lock:
                self._thread = None  # the next waiter starts another one
                waited_for = [endpoint for endpoint, _ in self._tickets.values()]
            self._signal(waited_for)
            raise

    def _sleep_for_all(self) -> None:
        idle = False
        while True:
            with self._lock:
                if self._stopped or (idle and not self._tickets):
                    self._thread = None
                    return
                endpoints = [endpoint for endpoint, _ in self._tickets.values()]
            found = self._waiter.wait(endpoints, _SLEEP_SECONDS)
            idle = not endpoints and not found
            self._signal(found)

    def _signal(self, found: list[Endpoint]) -> None:
        with self._lock:
            tickets = [ticket for each in found for ticket in self._tickets.pop(id(each), (each, []))[1]]
        for loop, future in tickets:
            try:
                loop.call_soon_threadsafe(_resolve, future, True)
            except RuntimeError:
                # That loop is closed, and its waiters are gone with it.
                continue


def _resolve(future: "asyncio.Future[bool]", result: bool) -> None:
    if not future.done():
        future.set_result(result)


_waiting = _WaitingThread()


def _start_anew() -> None:
    """In a forked child: the thread and those it slept for are the parent's."""
    global _waiting
    _waiting = _WaitingThread()


os.register_at_fork(after_in_child=_start_anew)


@atexit.register
def _stop() -> None:
    _waiting.stop()
