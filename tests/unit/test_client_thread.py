"""Calls of threads into an event loop."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from hawser.cluster.client.thread import LoopThread
from hawser.errors import Closed, UsageError


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


async def _cancelled() -> None:
    raise asyncio.CancelledError


def test_whoever_calls_gets_the_result_or_the_error(thread: LoopThread) -> None:
    assert [thread.call(_value(each)) for each in range(100)] == list(range(100))
    with pytest.raises(ValueError, match="for whoever called"):
        thread.call(_failure())
    with pytest.raises(CancelledError):
        thread.call(_cancelled())


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

    with pytest.raises(UsageError, match="was made in the thread"):
        thread.call(call())
    thread.stop()
    with pytest.raises(Closed):
        thread.call(_value(1))
