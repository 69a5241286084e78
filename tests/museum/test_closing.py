"""A bus of a cluster is closed while other threads use it: every call ends, as Closed or with its outcome.

Found by reading: a call between the last look at the loop's tasks and its end was never answered, and a
little later it was a RuntimeError of asyncio.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

import hawser
from hawser.cluster.client.loop_thread import LoopThread
from tests.support.cluster import RunningCluster

ROUNDS = 12
SECONDS = 60.0


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def calls_of(bus: hawser.Bus, published: list[Future[hawser.Receipt]]) -> list[Callable[[], object]]:
    topic, queue = bus.topic("closing"), bus.queue("closed")

    def transact() -> None:
        transaction = bus.transaction()
        try:
            with transaction:
                transaction.publish(topic, b"x")
        except hawser.UsageError:
            # Closing the bus has ended it.
            assert transaction.state == "rolled back"
            raise hawser.Closed from None

    return [
        topic.info,
        lambda: topic.publish(b"x"),
        lambda: published.append(topic.publish_nowait(b"x")),
        lambda: queue.put(b"x"),
        lambda: [each.accept() for each in queue.get_many(4, timeout=0)],
        transact,
        lambda: bus.topic("closing"),
    ]


def test_a_call_that_comes_as_the_loop_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread("ending")
    looked, ended = threading.Event(), threading.Event()
    check = LoopThread.check

    def slow_check(self: LoopThread) -> None:
        check(self)
        looked.set()
        ended.wait(SECONDS)

    monkeypatch.setattr(LoopThread, "check", slow_check)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(thread.call, asyncio.sleep(0))
        assert looked.wait(SECONDS)
        thread.stop()
        ended.set()
        with pytest.raises(hawser.Closed):
            call.result(SECONDS)


@pytest.mark.usefixtures("many_switches")
def test_every_call_ends_when_the_bus_is_closed(cluster: RunningCluster) -> None:
    unexpected: list[BaseException] = []
    for number in range(ROUNDS):
        bus = hawser.connect(cluster.url, connect_timeout=SECONDS)
        published: list[Future[hawser.Receipt]] = []
        calls = calls_of(bus, published)

        def call_until_closed(call: Callable[[], object]) -> None:
            try:
                while True:
                    call()
            except (hawser.Closed, hawser.OutcomeUnknown, hawser.TransactionAborted, hawser.Fenced):
                pass
            except BaseException as error:
                unexpected.append(error)

        threads = [threading.Thread(target=call_until_closed, args=[call], daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        threads[0].join(0.02 * (number % 4))
        bus.close()
        for thread, call in zip(threads, calls, strict=True):
            thread.join(SECONDS)
            assert not thread.is_alive(), f"call {calls.index(call)} never ended"
        assert not wait(published, SECONDS).not_done
        assert not unexpected, unexpected


def test_what_interrupts_a_get_may_close_its_queue(cluster: RunningCluster) -> None:
    """A signal handler that closed a queue waited for a lock that the `get` it had interrupted held."""
    with hawser.connect(cluster.url) as bus:
        queue: Any = bus.queue("closed in a handler")

        def close() -> None:
            with queue._lock:
                queue.close()

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(SECONDS)
        assert not closing.is_alive()
