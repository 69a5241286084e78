"""Topics on a cluster in an event loop."""

import weakref
from typing import Any, Protocol, TypeVar

from hawser.api.aio.bus import AsyncPublisher, AsyncSubscription, AsyncTopic
from hawser.api.bus import codec_of
from hawser.api.cluster.aio.publishing import ClusterAsyncPublisher, ClusterAsyncPublishing, Once
from hawser.api.cluster.aio.subscription import ClusterAsyncSubscription
from hawser.api.cluster.publishing import check_exclusive
from hawser.api.cluster.subscription import check_options
from hawser.api.cluster.topic import group_named, info_of, read_result
from hawser.api.info import ReadResult, TopicInfo
from hawser.api.subscription import Reliable, Start, check_count
from hawser.cluster.client.admin.catalog import check_settings
from hawser.cluster.client.client import Client, TopicHandle
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.errors import HawserError
from hawser.memory.names import check_topic_name

__all__ = ["AsyncTopicHolder", "ClusterAsyncTopic"]

T = TypeVar("T")


class AsyncTopicHolder(Protocol):
    """What a topic needs of its bus."""

    async def _started(self) -> Client: ...
    def _forget(self, topic: "ClusterAsyncTopic[Any]") -> None: ...


class ClusterAsyncTopic(ClusterAsyncPublishing[T], AsyncTopic[T]):
    """Opened by its first use."""

    def __init__(
        self, bus: AsyncTopicHolder, name: str, schema: Any, create: bool, settings: dict[str, Any]
    ) -> None:
        super().__init__()
        self._name = check_topic_name(name)
        self._bus = bus
        self._codec = codec_of(schema)
        self._create = create
        self._given, self._unused = check_settings(settings, self._codec)
        self._topic: TopicHandle | None = None
        # Weak: a publisher without references has nothing in flight.
        self._made: weakref.WeakSet[ClusterAsyncPublisher[T]] = weakref.WeakSet()
        self._once = Once()

    @property
    def name(self) -> str:
        return self._name

    async def _open(self) -> None:
        await self._once.run(lambda: self._topic is not None, self._open_topic, f"topic {self.name!r}")

    async def _open_topic(self) -> None:
        client = await self._bus._started()
        decode = None if self._codec is None else self._codec.decode
        try:
            self._topic = await client.open(self.name, self._given, self._create, decode)
        except HawserError:
            # The bus returns a new object from now on, with the settings given then.
            self._bus._forget(self)
            raise

    def _serves(self, other: "ClusterAsyncTopic[Any]") -> bool:
        """Whether the bus may return this object instead of the other one."""
        same = self._topic is not None or self._create is other._create
        is_usable = not self._once.is_closed and not (self._topic is not None and self._topic.is_gone)
        return same and is_usable and other._given.items() <= self._given.items()

    async def _ready(self) -> tuple[TopicHandle, Partitioner]:
        await self._open()
        assert self._topic is not None
        return self._topic, self._topic.partitioner

    def _ready_now(self) -> tuple[TopicHandle, Partitioner] | None:
        if self._once.is_closed or self._topic is None:
            return None
        return self._topic, self._topic.partitioner

    def publisher(self, *, exclusive: bool = False) -> AsyncPublisher[T]:
        check_exclusive(exclusive)
        publisher: ClusterAsyncPublisher[T] = ClusterAsyncPublisher(self)
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
    ) -> AsyncSubscription[T]:
        check_options(history, start, group, resume)
        return ClusterAsyncSubscription(self, history, start, group)

    async def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        check_count(count, 0)
        check_count(after, 0, "after")
        topic, _ = await self._ready()
        return read_result(await topic.read_some(partition, count, after, newest=False))

    async def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        check_count(count, 0)
        check_count(after, 0, "after")
        topic, _ = await self._ready()
        return read_result(await topic.read_some(partition, count, after, newest=True))

    async def info(self) -> TopicInfo:
        topic, _ = await self._ready()
        return info_of(topic, await topic.query(), self._unused)

    async def forget(self, name: str) -> bool:
        topic, _ = await self._ready()
        return await topic.forget_group(group_named(name))

    async def delete(self, force: bool = False) -> None:
        topic, _ = await self._ready()
        await topic.delete()
        await self.close()

    async def close(self) -> None:
        if not self._once.is_closed:
            for each in (self, *self._made):
                await each.flush()
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._topic is not None:
            await self._topic.close()
        self._bus._forget(self)
