"""What consumers hold ahead: whose it is, when it counts, and what becomes of it. Both scopes."""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from tests.contract.test_queues import PATIENCE_SECONDS, contents, counts
from tests.support.processes import until

_numbers = itertools.count()
AHEAD = 8
SESSION_SECONDS = 1.0

# Works until it meets the poison, which kills it.
_WORKER = f"""
import os, signal, sys
import hawser

url, name, how = sys.argv[1:]
options = dict(session_seconds={SESSION_SECONDS}) if url.startswith("hawser:") else dict()
with hawser.connect(url, **options) as bus:
    consumer = bus.queue(name, create=False).consume(prefetch={AHEAD})
    for each in consumer.values() if how == "values" else consumer:
        if bytes(each) == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "messages":
            each.accept()
"""


@pytest.fixture
def name() -> str:
    return f"ahead {next(_numbers)}"


@pytest.mark.parametrize("how", ["values", "messages"])
def test_a_message_that_kills_its_consumer_takes_no_other_along(
    bus: hawser.Bus, url: str, name: str, how: str
) -> None:
    queue = bus.queue(name, max_deliveries=3)
    good = [b"good %d" % number for number in range(AHEAD)]
    queue.put_many([b"fine", b"poison", *good])
    for _ in range(3):
        worker = subprocess.run([sys.executable, "-c", _WORKER, url, name, how], timeout=60, check=False)
        assert worker.returncode == -signal.SIGKILL
        until(lambda: (bus.recover(), counts(queue)[1] == 0)[1], "what the dead one had is back")
    left: list[tuple[bytes, int]] = []
    while len(left) < len(good):
        with queue.get_many(AHEAD, PATIENCE_SECONDS) as messages:
            left += [(bytes(each), each.delivery_count) for each in messages]
    assert left == [(each, 1) for each in good]
    until(lambda: counts(queue) == (0, 0, 1), "the poison is a dead letter")
    assert contents(queue.dead_letters()) == [b"poison"]


def test_two_threads_share_what_one_consumer_has_ahead(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    consumer = queue.consume(prefetch=AHEAD)
    got: list[Any] = []

    def take_one() -> None:
        with consumer.values() as values:
            for value in values:
                got.append(value)
                break

    threads = [threading.Thread(target=take_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.put_many([b"0", b"1", b"2"])
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), got
    assert sorted(got) == [b"0", b"1", b"2"]
    consumer.close()
    until(lambda: counts(queue) == (0, 0, 0), "all of them are accepted")


def test_two_tasks_share_what_one_consumer_has_ahead(url: str, name: str) -> None:
    async def run() -> None:
        async with await hawser.aio.connect(url) as bus:
            queue = bus.queue(name)
            for turn in range(5):
                consumer = queue.consume(prefetch=AHEAD)
                first, second = consumer.values(), consumer.values()
                waiting = asyncio.create_task(anext(second))
                await asyncio.sleep(0.01)
                await queue.put_many([b"%d" % turn, b"%d" % turn])
                assert await anext(first) == b"%d" % turn
                assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) == b"%d" % turn
                await first.accept()
                await second.accept()
                await consumer.close()

    asyncio.run(run())


def _close_consumer(bus: Any, queue: Any, consumer: Any) -> None:
    consumer.close()


def _close_queue(bus: Any, queue: Any, consumer: Any) -> None:
    queue.close()


def _close_bus(bus: Any, queue: Any, consumer: Any) -> None:
    bus.close()


@pytest.mark.parametrize("close", [_close_consumer, _close_queue, _close_bus])
@pytest.mark.parametrize("values", [False, True])
def test_whatever_is_closed_here_ends_a_loop_that_waits(
    url: str, name: str, close: Callable[..., None], values: bool
) -> None:
    with hawser.connect(url) as bus:
        queue = bus.queue(name)
        queue.put(b"0")
        consumer = queue.consume(prefetch=AHEAD)
        seen: list[Any] = []
        entered = threading.Event()

        def work() -> None:
            loop: Any = consumer.values() if values else consumer
            try:
                for each in loop:
                    seen.append(bytes(each))
                    (loop if values else each).accept()
                    entered.set()
                seen.append("the loop has ended")
            except BaseException as error:
                seen.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert entered.wait(PATIENCE_SECONDS)
        close(bus, queue, consumer)
        thread.join(PATIENCE_SECONDS)
        assert seen == [b"0", "the loop has ended"]


@pytest.mark.parametrize("what", ["consumer", "queue", "bus"])
@pytest.mark.parametrize("values", [False, True])
def test_whatever_is_closed_here_ends_a_loop_that_is_awaited(
    url: str, name: str, what: str, values: bool
) -> None:
    async def run() -> None:
        async with await hawser.aio.connect(url) as bus:
            queue = bus.queue(name)
            await queue.put(b"0")
            consumer = queue.consume(prefetch=AHEAD)
            seen: list[bytes] = []
            entered = asyncio.Event()

            async def work() -> None:
                loop: Any = consumer.values() if values else consumer
                async for each in loop:
                    seen.append(bytes(each))
                    await (loop if values else each).accept()
                    entered.set()

            working = asyncio.create_task(work())
            await asyncio.wait_for(entered.wait(), PATIENCE_SECONDS)
            closing: Any = {"consumer": consumer, "queue": queue, "bus": bus}[what]
            await closing.close()
            await asyncio.wait_for(working, PATIENCE_SECONDS)
            assert seen == [b"0"]

    asyncio.run(run())


@pytest.mark.parametrize("values", [False, True])
def test_whatever_is_closed_in_the_body_of_a_loop_ends_it(url: str, name: str, values: bool) -> None:
    with hawser.connect(url) as bus:
        queue = bus.queue(name)
        queue.put_many([b"0", b"1", b"2"])
        loop: Any = queue.consume(prefetch=AHEAD)
        loop = loop.values() if values else loop
        seen = []
        for each in loop:
            seen.append(bytes(each))
            (loop if values else each).accept()
            bus.close()
        assert seen == [b"0"]
    with hawser.connect(url) as bus:
        until(lambda: contents(bus.queue(name)) == [b"1", b"2"], "what was ahead is back")
