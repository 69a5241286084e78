"""A program whose event loop sleeps for messages while nothing can be opened, and goes on: for
`test_waiting.py`."""

import asyncio
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import hawser
from hawser.api.local import waiter_thread
from hawser.memory import Waiter

PATIENCE_SECONDS = 30


class CountedWaiter:
    """A Waiter that counts how often it has waited, well or not."""

    def __init__(self) -> None:
        self._waiter = Waiter()
        self.count = 0

    def wait(self, endpoints: list[waiter_thread.Endpoint], timeout: float) -> list[waiter_thread.Endpoint]:
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


async def use(url: str, waiter: CountedWaiter) -> None:
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


if __name__ == "__main__":
    counted = CountedWaiter()
    waiter_thread._waiting._waiter = counted  # type: ignore[assignment]  # it counts, and is one otherwise
    asyncio.run(use(sys.argv[1], counted))
