"""Subscriptions on a cluster in an event loop."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hawser.api.aio.bus import AsyncSubscription
from hawser.api.cluster.aio.publishing import Once, Opener
from hawser.api.cluster.subscription import member_of
from hawser.api.sample import Sample
from hawser.api.subscription import Start, check_count, check_timeout
from hawser.cluster.client.subscribe.subscription import Consumer
from hawser.errors import Closed

__all__ = ["ClusterAsyncSubscription"]

T = TypeVar("T")
Taken = TypeVar("Taken")


class ClusterAsyncSubscription(AsyncSubscription[T]):
    """Opened by its first use."""

    def __init__(self, parent: Opener, history: int, start: Start, group: str | None) -> None:
        self._parent = parent
        self._place = (start, history, group)
        self._consumer: Consumer | None = None
        self._once = Once()

    @property
    def name(self) -> str:
        return self._parent.name

    async def _open(self) -> None:
        what = f"this subscription of {self.name!r}"
        await self._once.run(lambda: self._consumer is not None, self._subscribe, what)

    async def _subscribe(self) -> None:
        topic, _ = await self._parent._ready()
        self._consumer = await topic.subscribe(*self._place)
        # A subscription without references closes itself.
        self._abandon = weakref.finalize(self, topic.abandon, self._consumer)
        self._abandon.atexit = False

    @property
    def missed(self) -> int:
        return 0 if self._consumer is None else self._consumer.missed

    @property
    def received(self) -> int:
        return 0 if self._consumer is None else self._consumer.received

    @property
    def position(self) -> int:
        return 0 if self._consumer is None else self._consumer.last_offset

    @property
    def positions(self) -> dict[int, int]:
        """The offset behind the last sample taken, for each partition that this subscription reads."""
        return {} if self._consumer is None else self._consumer.positions

    @property
    def held(self) -> int:
        return 0

    @property
    def incarnation(self) -> int:
        return 1

    async def take(self, timeout: float | None = None) -> Sample | None:
        return cast("Sample | None", await self._take(lambda consumer: consumer.next_sample(), timeout))

    async def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        check_count(count, 1)
        found = await self._take(lambda consumer: consumer.next_samples(count) or None, timeout)
        return cast("list[Sample]", found or [])

    async def take_value(self, timeout: float | None = None) -> T | None:
        sample = await self.take(timeout)
        return None if sample is None else cast("T", sample.value)

    async def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        check_count(count, 1)
        consumer = await self._opened_consumer()
        if not consumer.decodes:
            return [sample.value for sample in await self.take_many(count, timeout)]
        values: list[T] = []
        while len(values) < count:
            try:
                sample = await self.take(0 if values else timeout)
                if sample is None:
                    break
                values.append(cast("T", sample.value))
            except Exception as error:
                if not values:
                    raise
                consumer.keep_error(error)
                break
        return values

    async def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        check_count(count, 1)
        found = await self._take(lambda consumer: consumer.next_batches(count) or None, timeout)
        return found or []

    async def _take(self, attempt: Callable[[Consumer], Taken | None], timeout: float | None) -> Taken | None:
        check_timeout(timeout)
        consumer = await self._opened_consumer()
        consumer.raise_kept_error()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            arrived = consumer.arrived
            consumer.taking(task)
            found = attempt(consumer)
            left = None if deadline is None else deadline - loop.time()
            if found is not None or (left is not None and left <= 0):
                return found
            await consumer.ready(left, arrived)

    async def _opened_consumer(self) -> Consumer:
        await self._open()
        assert self._consumer is not None
        return self._consumer

    async def commit(self) -> None:
        member = member_of(await self._opened_consumer())
        member.raise_kept_error()
        await member.commit(member.taken(asyncio.current_task()))

    async def close(self) -> None:
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._consumer is not None and self._parent._topic is not None:
            self._abandon.detach()
            await self._parent._topic.release(self._consumer)

    async def __anext__(self) -> Sample:
        try:
            sample = await self.take()
        except Closed:
            if self._once.is_closed:
                raise StopAsyncIteration from None
            raise
        assert sample is not None
        return sample
