"""Calls of threads into an event loop."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from hawser.cluster.client.loop_thread import LoopThread
from hawser.errors import Closed, OutcomeUnknown, UsageError


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    if thread.is_usable:
        thread.stop()


async def _value(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _failure() -> None:
    raise ValueError("for whoever called")


def test_whoever_calls_gets_the_result_or_the_error(thread: LoopThread) -> None:
    assert [thread.call(_value(each)) for each in range(100)] == list(range(100))
    with pytest.raises(ValueError, match="for whoever called"):
        thread.call(_failure())


def test_what_is_under_way_when_the_thread_ends_is_unknown(thread: LoopThread) -> None:
    begun = threading.Semaphore(0)
    errors: list[BaseException] = []

    async def wait() -> None:
        begun.release()
        await asyncio.sleep(3600)

    def call(*said: str) -> None:
        try:
            thread.call(wait(), *said)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=said) for said in ((), ("ask for it",))]
    for each in threads:
        each.start()
        assert begun.acquire(timeout=60)
    thread.stop()
    for each in threads:
        each.join(60)
    assert [type(each) for each in errors] == [OutcomeUnknown] * 2
    assert sorted(map(str, errors)) == [
        "ask for it",
        "the bus was closed while this call was under way; what it was to do may have been done",
    ]


def test_any_number_of_threads_may_call(thread: LoopThread) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(thread.call(_value(n)))) for n in range(32)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == list(range(32))


def test_an_interrupted_call_is_cancelled(thread: LoopThread) -> None:
    ended = threading.Event()
    waiting = threading.get_ident()

    async def wait() -> None:
        # As the system does it: a thread that waits is interrupted, if it is the main one.
        threading.Timer(0.05, signal.pthread_kill, (waiting, signal.SIGINT)).start()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        thread.call(wait())
    assert ended.wait(10)


def test_a_call_from_the_loop_itself_or_after_the_end_is_refused(thread: LoopThread) -> None:
    async def call() -> None:
        thread.call(_value(1))

    with pytest.raises(UsageError, match="may not wait"):
        thread.call(call())
    thread.stop()
    with pytest.raises(Closed):
        thread.call(_value(1))


class _Interrupted:
    """A loop whose next post is interrupted, as a signal handler or a finalizer does it."""

    def __init__(self, thread: LoopThread, interrupt: Callable[[], object]) -> None:
        self._thread, self._loop, self._interrupt = thread, thread.loop, interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, *arguments: Any) -> object:
        self._thread.loop = self._loop
        self._interrupt()
        return self._loop.call_soon_threadsafe(*arguments)


@pytest.mark.parametrize("ends", [False, True])
def test_what_interrupts_a_post_may_post_or_stop(ends: bool) -> None:
    """The post held a lock that was not reentrant, so it and the interruption waited for each other."""
    # If they do, it cannot be stopped either.
    thread = LoopThread("test")
    found: list[object] = []

    def interrupt() -> None:
        found.append(thread.call(_value(1)))
        if ends:
            thread.stop()

    def post() -> None:
        thread.loop = cast("asyncio.AbstractEventLoop", _Interrupted(thread, interrupt))
        try:
            found.append(thread.call(_value(2)))
        except Closed as error:
            found.append(type(error))

    caller = threading.Thread(target=post, daemon=True)
    caller.start()
    caller.join(30)
    assert found == [1, Closed if ends else 2]
    if not ends:
        thread.stop()
