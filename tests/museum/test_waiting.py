"""Waits that were longer than they had to be, or never ended. Found by review."""

import asyncio
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

import hawser
from hawser.api import waiting
from hawser.memory import Waiter
from hawser.testing import LocalBus
from tests.museum.sleeping import until_asleep

PATIENCE_SECONDS = 30
BATCHES = 20
SLICE_SECONDS = 0.1


class Point(msgspec.Struct):
    x: int


def test_values_that_cannot_be_decoded_do_not_hold_up_publishers() -> None:
    """The error came before the subscriber had told anybody how far it was."""
    with LocalBus() as local:
        points = local.connect().topic("points", schema=Point, history=0, depth=4)
        subscription = points.subscribe(reliable=True)
        anything = local.connect().topic("points")
        for _ in range(4):
            anything.publish(b"\xc1", timeout=0)
        for _ in range(4):
            with pytest.raises(hawser.Corrupt):
                subscription.take_value(0)
        points.publish(Point(5), timeout=0)
        assert subscription.take_value(0) == Point(5)


def test_a_batch_wakes_whom_it_waits_for(record_property: Callable[[str, object], None]) -> None:
    """A batch larger than the ring waited for a subscriber that slept beside its first messages."""
    with LocalBus() as local:
        topic = local.connect().topic("small", slot_size=64, history=0, depth=2)
        subscription, file = topic.subscribe(reliable=True), local.directory / "small.topic"

        def take_all() -> None:
            for _ in range(BATCHES * 5):
                subscription.take_value(PATIENCE_SECONDS)

        taker = threading.Thread(target=take_all, daemon=True)
        taker.start()
        seconds = 0.0
        for _ in range(BATCHES):
            until_asleep(file, "subscriber")
            began = time.monotonic()
            topic.publish_many([b"x"] * 5, timeout=PATIENCE_SECONDS)
            seconds += time.monotonic() - began
        taker.join()
    slices = seconds / SLICE_SECONDS
    record_property("slices slept", f"{slices:.2f} in {BATCHES} batches")
    assert slices < BATCHES / 4


class CountedWaiter:
    """A Waiter that counts how often it has waited, well or not."""

    def __init__(self) -> None:
        self._waiter = Waiter()
        self.count = 0

    def wait(self, endpoints: list[waiting.Endpoint], timeout: float) -> list[waiting.Endpoint]:
        try:
            return self._waiter.wait(endpoints, timeout)
        finally:
            self.count += 1

    def wake(self) -> None:
        self._waiter.wake()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_event_loops_survive_a_moment_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that sleeps for all loops could not look for the dead, and ended."""
    waiter = CountedWaiter()
    monkeypatch.setattr(waiting._waiting, "_waiter", waiter)

    async def use(url: str) -> None:
        async with hawser.aio.connect(url) as bus:
            full = bus.topic("full", slot_size=64, history=0, depth=1)
            in_the_way = full.subscribe(reliable=True)
            await full.publish(b"1")
            other = bus.topic("other", slot_size=64)
            subscription = other.subscribe()
            blocked = asyncio.create_task(full.publish(b"2"))
            await asyncio.sleep(0)
            with no_descriptors():
                enough = waiter.count + 3
                while waiter.count < enough and not blocked.done():
                    await asyncio.sleep(0.01)
            taking = asyncio.create_task(subscription.take_value())
            await asyncio.sleep(0)
            await other.publish(b"hello")
            assert await asyncio.wait_for(taking, PATIENCE_SECONDS) == b"hello"
            assert await in_the_way.take_value() == b"1"
            assert (await asyncio.wait_for(blocked, PATIENCE_SECONDS)).first_offset == 2

    with LocalBus() as local:
        asyncio.run(use(local.url))
