"""The API for event loops on a cluster: the client in the caller's own loop.

`topic`, `publisher` and `subscribe` give objects that are opened by their first use.
"""

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hawser.api.aio import AsyncBus, AsyncLoan, AsyncPublisher, AsyncPublishing, AsyncSubscription, AsyncTopic
from hawser.api.bus import anonymous_name, codec_of
from hawser.api.cluster.bus import settings_of
from hawser.api.cluster.publishing import batch_of, check_exclusive
from hawser.api.cluster.subscription import check_options, member_of
from hawser.api.cluster.topic import check_counts, group_named, info_of
from hawser.api.info import DomainFile, Participant, ReadResult, Recovered, TopicInfo
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start, is_count
from hawser.cluster.client.client import Client, OpenTopic, addresses_of, record_of
from hawser.cluster.client.consumer import Consumer
from hawser.cluster.client.producers import Producers
from hawser.cluster.client.topics import check_settings
from hawser.errors import Closed, HawserError, UsageError
from hawser.memory.names import check_bus_name, check_topic_name
from hawser.record.receipt import Receipt
from hawser.record.record import Record

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = ["ClusterAsyncBus"]

T = TypeVar("T")
Taken = TypeVar("Taken")


class _Once:
    """Opens something once, however many ask at the same time; after a failure the next one tries again."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.is_closed = False

    async def run(self, is_open: Callable[[], bool], open_it: Callable[[], Any], what: str) -> None:
        if self.is_closed:
            raise Closed(f"{what} is closed; open it again")
        if not is_open():
            async with self._lock:
                if not is_open():
                    await open_it()


class _ClusterAsyncLoan(AsyncLoan):
    def __init__(self, publishing: "_ClusterAsyncPublishing[Any]", buffer: Any, options: Any) -> None:
        self._publishing = publishing
        self._buffer = buffer
        self._options = options
        self._receipt: Receipt | None = None

    @property
    def receipt(self) -> Receipt | None:
        return self._receipt

    async def __aenter__(self) -> Any:
        return self._buffer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            key, headers, timeout = self._options
            record = record_of(self._buffer, key, headers)
            self._receipt = await self._publishing._publish(record, timeout)


class _ClusterAsyncPublishing(AsyncPublishing[T]):
    """The publishing half of the API, over the producers of a topic."""

    _codec: "Codec[T] | None"

    def __init__(self) -> None:
        self._begun: set[asyncio.Task[Receipt]] = set()
        # Of those that had to open the topic first, the last: whatever comes later waits for it.
        self._first: asyncio.Task[Receipt] | None = None

    @abstractmethod
    async def _ready(self) -> tuple[OpenTopic, Producers]:
        """The topic and what publishes to it, opened if need be."""

    @abstractmethod
    def _ready_now(self) -> tuple[OpenTopic, Producers] | None:
        """The same, if it is open already."""

    def _record(self, data: T, key: bytes | None, headers: Mapping[str, bytes] | None) -> Record:
        return record_of(data if self._codec is None else self._codec.encode(data), key, headers)

    async def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        return await self._publish(self._record(data, key, headers), timeout)

    async def _publish(self, record: Record, timeout: float | None) -> Receipt:
        topic, producers = await self._ready()
        return await topic.publish(producers, record, timeout)

    async def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        records = batch_of(items, keys, self._codec)
        topic, producers = await self._ready()
        return await topic.publish_many(producers, records, timeout)

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        record = self._record(data, key, headers)
        ready = self._ready_now()
        loop = asyncio.get_running_loop()
        if ready is not None and self._first is None:
            topic, producers = ready
            future: asyncio.Future[Receipt] = loop.create_future()
            producers.submit([record], future, topic.client.seconds(None))
            return future
        task = loop.create_task(self._publish_in_turn(record, self._first))
        self._first = task
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _publish_in_turn(self, record: Record, before: "asyncio.Task[Receipt] | None") -> Receipt:
        if before is not None:
            await asyncio.wait([before])
        return await self._publish(record, None)

    def _ended(self, task: "asyncio.Task[Receipt]") -> None:
        self._begun.discard(task)
        if self._first is task:
            self._first = None

    async def flush(self) -> None:
        while self._begun:
            await asyncio.wait(self._begun)
        ready = self._ready_now()
        if ready is not None:
            await ready[1].flush()

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> AsyncLoan:
        if not is_count(nbytes):
            raise UsageError(f"nbytes={nbytes!r} is not a whole number from 0 on")
        return _ClusterAsyncLoan(self, memoryview(bytearray(nbytes)), (key, headers, timeout))

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> AsyncLoan:
        from hawser.record.arrays import array_layout

        sizes, element, _ = array_layout(shape, dtype)
        import numpy

        return _ClusterAsyncLoan(self, numpy.zeros(sizes, element), (key, headers, timeout))


class _ClusterAsyncPublisher(_ClusterAsyncPublishing[T], AsyncPublisher[T]):
    def __init__(self, parent: "_ClusterAsyncTopic[T]") -> None:
        super().__init__()
        self._parent = parent
        self._codec = parent._codec
        self._own: Producers | None = None
        self._once = _Once()

    @property
    def name(self) -> str:
        return self._parent.name

    @property
    def incarnation(self) -> int:
        return 1 if self._own is None else self._own.incarnation

    async def _open(self) -> None:
        await self._once.run(lambda: self._own is not None, self._make, f"the publisher of {self.name!r}")

    async def _make(self) -> None:
        topic, _ = await self._parent._ready()
        self._own = topic.new_producers()
        topic.use(self._own)

    async def _ready(self) -> tuple[OpenTopic, Producers]:
        await self._open()
        topic, _ = await self._parent._ready()
        assert self._own is not None
        return topic, self._own

    def _ready_now(self) -> tuple[OpenTopic, Producers] | None:
        ready = self._parent._ready_now()
        is_open = ready is not None and self._own is not None and not self._once.is_closed
        return (ready[0], self._own) if is_open else None  # type: ignore[index,return-value]

    async def close(self) -> None:
        if not self._once.is_closed:
            await self.flush()
            self._once.is_closed = True
            if self._own is not None and self._parent._topic is not None:
                await self._parent._topic.release(self._own)


class _ClusterAsyncSubscription(AsyncSubscription[T]):
    def __init__(
        self, parent: "_ClusterAsyncTopic[T]", history: int, start: Start, group: str | None
    ) -> None:
        self._parent = parent
        self._place = (start, history, group)
        self._consumer: Consumer | None = None
        self._once = _Once()

    @property
    def name(self) -> str:
        return self._parent.name

    async def _open(self) -> None:
        what = f"this subscription of {self.name!r}"
        await self._once.run(lambda: self._consumer is not None, self._subscribe, what)

    async def _subscribe(self) -> None:
        topic, _ = await self._parent._ready()
        self._consumer = await topic.subscribe(*self._place)
        # One that nobody refers to any more leaves by itself.
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
        """For each partition that is read here, the offset behind the last sample taken."""
        return {} if self._consumer is None else dict(self._consumer.positions)

    @property
    def held(self) -> int:
        return 0

    @property
    def incarnation(self) -> int:
        return 1

    async def take(self, timeout: float | None = None) -> Sample | None:
        return cast("Sample | None", await self._take(lambda consumer: consumer.next_sample(), timeout))

    async def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        found = await self._take(lambda consumer: consumer.next_samples(count) or None, timeout)
        return cast("list[Sample]", found or [])

    async def take_value(self, timeout: float | None = None) -> T | None:
        sample = await self.take(timeout)
        return None if sample is None else cast("T", sample.value)

    async def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        return [sample.value for sample in await self.take_many(count, timeout)]

    async def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        found = await self._take(lambda consumer: consumer.next_batches(count) or None, timeout)
        return found or []

    async def _take(self, attempt: Callable[[Consumer], Taken | None], timeout: float | None) -> Taken | None:
        if timeout is not None and not timeout >= 0:
            raise UsageError("timeout is seconds, 0 or more, or None to wait for ever")
        await self._open()
        consumer = self._consumer
        assert consumer is not None
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            found = attempt(consumer)
            left = None if deadline is None else deadline - loop.time()
            if found is not None or (left is not None and left <= 0):
                return found
            await consumer.ready(left)

    async def commit(self) -> None:
        await self._open()
        assert self._consumer is not None
        await member_of(self._consumer).commit(dict(self._consumer.positions))

    async def close(self) -> None:
        if not self._once.is_closed:
            self._once.is_closed = True
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


class _ClusterAsyncTopic(_ClusterAsyncPublishing[T], AsyncTopic[T]):
    def __init__(
        self, bus: "ClusterAsyncBus", name: str, schema: Any, create: bool, settings: dict[str, Any]
    ) -> None:
        super().__init__()
        self._name = check_topic_name(name)
        self._bus = bus
        self._codec = codec_of(schema)
        self._create = create
        fingerprint = None if self._codec is None else self._codec.fingerprint
        self._given, self._unused = check_settings(settings, fingerprint)
        self._topic: OpenTopic | None = None
        self._once = _Once()

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
            # Whoever asks the bus for it again gets a new one, with his own settings.
            self._bus._forget(self)
            raise

    def _serves(self, other: "_ClusterAsyncTopic[Any]") -> bool:
        """Whether whoever asks for the other one may have this one."""
        same = self._topic is not None or self._create is other._create
        return same and not self._once.is_closed and other._given.items() <= self._given.items()

    async def _ready(self) -> tuple[OpenTopic, Producers]:
        await self._open()
        assert self._topic is not None
        return self._topic, self._topic.producers

    def _ready_now(self) -> tuple[OpenTopic, Producers] | None:
        if self._once.is_closed or self._topic is None:
            return None
        return self._topic, self._topic.producers

    def publisher(self, *, exclusive: bool = False) -> AsyncPublisher[T]:
        check_exclusive(exclusive)
        return _ClusterAsyncPublisher(self)

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
        return _ClusterAsyncSubscription(self, history, start, group)

    async def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        check_counts(count, after)
        topic, _ = await self._ready()
        return ReadResult(*await topic.read_some(partition, count, after, newest=False))

    async def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        check_counts(count, after)
        topic, _ = await self._ready()
        return ReadResult(*await topic.read_some(partition, count, after, newest=True))

    async def info(self) -> TopicInfo:
        topic, _ = await self._ready()
        return info_of(topic, await topic.look(), self._unused)

    async def forget(self, name: str) -> bool:
        topic, _ = await self._ready()
        return await topic.forget_group(group_named(name))

    async def delete(self, force: bool = False) -> None:
        topic, _ = await self._ready()
        await topic.delete()
        await self.close()

    async def close(self) -> None:
        if not self._once.is_closed:
            await self.flush()
            self._once.is_closed = True
            if self._topic is not None:
                await self._topic.close()
            self._bus._forget(self)


class ClusterAsyncBus(AsyncBus):
    """A connection to a cluster in the loop of whoever uses it first."""

    def __init__(self, url: str, *, name: str | None = None, **options: Any) -> None:
        self._name = check_bus_name(name) if name is not None else anonymous_name()
        self._addresses = addresses_of(url)
        self._settings = settings_of(options)
        self._client: Client | None = None
        self._topics: dict[tuple[str, Any], _ClusterAsyncTopic[Any]] = {}
        self._once = _Once()

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return "hawser://" + ",".join(self._addresses)

    async def _open(self) -> None:
        await self._once.run(lambda: self._client is not None, self._connect, "this bus")

    async def _connect(self) -> None:
        client = Client(self._addresses, self.name, self._settings)
        await client.start()
        self._client = client

    async def _started(self) -> Client:
        await self._open()
        assert self._client is not None
        return self._client

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> AsyncTopic[Any]:
        asked = _ClusterAsyncTopic[Any](self, name, schema, create, settings)
        known = self._topics.get((name, schema))
        if known is not None and known._serves(asked):
            known._unused.update(asked._unused)
            return known
        self._topics[name, schema] = asked
        return asked

    def _forget(self, topic: _ClusterAsyncTopic[Any]) -> None:
        self._topics = {key: each for key, each in self._topics.items() if each is not topic}

    async def topics(self) -> list[str]:
        return await (await self._started()).topics()

    async def files(self) -> list[DomainFile]:
        return []

    async def participants(self) -> list[Participant]:
        found: list[Participant] = []
        for name in await self.topics():
            found += (await self.topic(name, create=False).info()).participants
        return found

    async def recover(self) -> list[Recovered]:
        return []

    async def close(self) -> None:
        if not self._once.is_closed:
            for topic in list(self._topics.values()):
                await topic.close()
            self._once.is_closed = True
            if self._client is not None:
                await self._client.close()
