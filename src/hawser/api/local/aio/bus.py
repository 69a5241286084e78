"""The API for event loops on one host.

Opening does not wait here. Calls that wait are awaited and do not block the loop, and a cancelled call had no
effect.
"""

import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from hawser.api.aio.bus import AsyncBus, AsyncPublisher, AsyncSubscription, AsyncTopic
from hawser.api.info import DomainFile, Participant, ReadResult, Recovered, TopicInfo
from hawser.api.local.aio.publishing import LocalAsyncPublishing
from hawser.api.local.aio.queue import LocalAsyncQueue
from hawser.api.local.bus import LocalBus
from hawser.api.local.publishing import LocalPublisher
from hawser.api.local.subscription import LocalSubscription
from hawser.api.local.topic import LocalTopic
from hawser.api.local.waiter_thread import until
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start

__all__ = ["LocalAsyncBus"]

T = TypeVar("T")


class _LocalAsyncPublisher(LocalAsyncPublishing[T], AsyncPublisher[T]):
    """As `Publisher`."""

    def __init__(self, publisher: LocalPublisher[T]) -> None:
        super().__init__(publisher)
        self._publisher = publisher

    @property
    def incarnation(self) -> int:
        return self._publisher.incarnation

    async def close(self) -> None:
        await self.flush()
        self._publisher.close()


class _LocalAsyncSubscription(AsyncSubscription[T]):
    """As `Subscription`: `async for`, `await take()`."""

    def __init__(self, subscription: LocalSubscription[T]) -> None:
        self._subscription = subscription
        self._native = subscription._native

    @property
    def name(self) -> str:
        return self._subscription.name

    @property
    def missed(self) -> int:
        return self._native.missed

    @property
    def received(self) -> int:
        return self._native.received

    @property
    def position(self) -> int:
        return self._native.position

    @property
    def held(self) -> int:
        return self._native.held

    @property
    def incarnation(self) -> int:
        return self._native.incarnation

    async def take(self, timeout: float | None = None) -> Sample | None:
        return cast("Sample | None", await until(lambda: self._native.take(0), self._native, timeout))

    async def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        found = await until(lambda: self._native.take_many(count, 0) or None, self._native, timeout)
        return cast("list[Sample]", found or [])

    async def take_value(self, timeout: float | None = None) -> T | None:
        return await until(lambda: self._native.take_value(0), self._native, timeout)

    async def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        return await until(lambda: self._native.take_values(count, 0) or None, self._native, timeout) or []

    async def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        return self._subscription.take_batches(count, timeout)

    async def commit(self) -> None:
        self._native.commit()

    async def close(self) -> None:
        self._subscription.close()

    def __anext__(self) -> Awaitable[Sample]:
        return self._subscription.__anext__()


class _LocalAsyncTopic(LocalAsyncPublishing[T], AsyncTopic[T]):
    """As `Topic`."""

    def __init__(self, topic: LocalTopic[T], closed: Callable[[object], None]) -> None:
        super().__init__(topic)
        self._topic = topic
        self._forget = closed
        # Weak: a publisher without references has nothing in flight.
        self._made: weakref.WeakSet[_LocalAsyncPublisher[T]] = weakref.WeakSet()

    def publisher(self, *, exclusive: bool = False) -> _LocalAsyncPublisher[T]:
        publisher = _LocalAsyncPublisher(self._topic.publisher(exclusive=exclusive))
        self._made.add(publisher)
        return publisher

    def subscribe(
        self,
        *,
        history: int = 0,
        start: Start = None,
        group: str | None = None,
        reliable: Reliable = False,
        resume: bool = False,
        max_held: int | None = None,
        max_lag: int | None = None,
    ) -> _LocalAsyncSubscription[T]:
        return _LocalAsyncSubscription(
            self._topic.subscribe(
                history=history,
                start=start,
                group=group,
                reliable=reliable,
                resume=resume,
                max_held=max_held,
                max_lag=max_lag,
            )
        )

    async def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        return self._topic.read_oldest(count, after, partition=partition)

    async def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        return self._topic.read_newest(count, after, partition=partition)

    async def info(self) -> TopicInfo:
        return self._topic.info()

    async def forget(self, name: str) -> bool:
        return self._topic.forget(name)

    async def delete(self, force: bool = False) -> None:
        self._topic.delete(force)
        self._forget(self)

    @property
    def publishing(self) -> "list[LocalAsyncPublishing[T]]":
        """This topic and its publishers that have publishes in flight."""
        return [each for each in (self, *self._made) if each.is_busy]

    async def close(self) -> None:
        while busy := self.publishing:
            await busy[0].flush()
        self._topic.close()
        self._forget(self)


class LocalAsyncBus(AsyncBus):
    """As `Bus`. Several event loops may each have their own; one thread waits for all of them."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._topics: dict[tuple[str, Any], _LocalAsyncTopic[Any]] = {}
        self._queues: dict[tuple[str, Any], LocalAsyncQueue[Any]] = {}

    @property
    def name(self) -> str:
        return self._bus.name

    @property
    def url(self) -> str:
        return self._bus.url

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> _LocalAsyncTopic[Any]:
        topic = self._bus._topic(name, schema, create, settings)
        known = self._topics.get((name, schema))
        if known is None or known._topic is not topic:
            forget = partial(self._forget, self._topics, (name, schema))
            known = self._topics[name, schema] = _LocalAsyncTopic(topic, forget)
        return known

    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> LocalAsyncQueue[Any]:
        queue = self._bus._queue(name, schema, create, settings)
        known = self._queues.get((name, schema))
        if known is None or known._queue is not queue:
            forget = partial(self._forget, self._queues, (name, schema))
            known = self._queues[name, schema] = LocalAsyncQueue(queue, forget)
        return known

    @staticmethod
    def _forget(opened: dict[tuple[str, Any], Any], key: tuple[str, Any], closed: object) -> None:
        """Called by a topic or queue that was closed; another object may have replaced it by then."""
        if opened.get(key) is closed:
            del opened[key]

    async def topics(self) -> list[str]:
        return self._bus.topics()

    async def queues(self) -> list[str]:
        return self._bus.queues()

    async def files(self) -> list[DomainFile]:
        return self._bus.files()

    async def participants(self) -> list[Participant]:
        return self._bus.participants()

    async def recover(self) -> list[Recovered]:
        return self._bus.recover()

    async def close(self) -> None:
        while busy := [each for topic in self._topics.values() for each in topic.publishing]:
            await busy[0].flush()
        self._bus.close()
        self._topics.clear()
        self._queues.clear()
