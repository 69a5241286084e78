"""Publishing to a cluster in an event loop."""

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hawser.api.aio.bus import AsyncLoan, AsyncPublisher, AsyncPublishing
from hawser.api.cluster.publishing import batch_of, loan_is_over
from hawser.api.subscription import check_count
from hawser.cluster.client.client import TopicHandle, record_of
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.errors import Closed
from hawser.record.record import Receipt, Record

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = ["ClusterAsyncPublisher", "ClusterAsyncPublishing", "Once", "Opener"]

T = TypeVar("T")


class Once:
    """Opens something once, however many callers ask at the same time; after a failure the next caller tries
    again. Closes it once, after an opening that is under way. A close continues if its caller is cancelled,
    and a repeated close waits for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.is_closed = False
        self._closing: asyncio.Task[None] | None = None

    async def close(self, close_it: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(close_it))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, close_it: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._lock:
            await close_it()

    async def run(self, is_open: Callable[[], bool], open_it: Callable[[], Any], what: str) -> None:
        self._check(what)
        if not is_open():
            async with self._lock:
                self._check(what)
                if not is_open():
                    await open_it()

    def _check(self, what: str) -> None:
        if self.is_closed:
            raise Closed(f"{what} is closed; open it again")


class Opener(Protocol):
    """What publishers and subscriptions need of their topic."""

    _codec: "Codec[Any] | None"
    _topic: TopicHandle | None

    @property
    def name(self) -> str: ...
    async def _ready(self) -> tuple[TopicHandle, Partitioner]: ...
    def _ready_now(self) -> tuple[TopicHandle, Partitioner] | None: ...


class ClusterAsyncLoan(AsyncLoan):
    """A buffer or an array, published at the end of its block."""

    def __init__(self, publishing: "ClusterAsyncPublishing[Any]", buffer: Any, options: Any) -> None:
        self._publishing = publishing
        self._buffer = buffer
        self._options = options
        self._is_taken = False
        self._receipt: Receipt | None = None

    @property
    def receipt(self) -> Receipt | None:
        return self._receipt

    async def __aenter__(self) -> Any:
        if self._is_taken:
            raise loan_is_over()
        self._is_taken = True
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


class ClusterAsyncPublishing(AsyncPublishing[T]):
    """The publishing half of the API, over the producers of a topic."""

    _codec: "Codec[T] | None"

    def __init__(self) -> None:
        self._begun: set[asyncio.Task[Receipt]] = set()
        # The last publish that had to open the topic first; later ones wait for it.
        self._first: asyncio.Task[Receipt] | None = None

    @abstractmethod
    async def _ready(self) -> tuple[TopicHandle, Partitioner]:
        """The topic and its partitioner, opened first if necessary."""

    @abstractmethod
    def _ready_now(self) -> tuple[TopicHandle, Partitioner] | None:
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
        await self._after(self._first)
        return await self._publish_next(record, timeout)

    async def _publish_next(self, record: Record, timeout: float | None) -> Receipt:
        topic, partitioner = await self._ready()
        return await topic.publish(partitioner, record, timeout)

    async def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        records = batch_of(items, keys, self._codec)
        await self._after(self._first)
        topic, partitioner = await self._ready()
        return await topic.publish_many(partitioner, records, timeout)

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        record = self._record(data, key, headers)
        ready = self._ready_now()
        loop = asyncio.get_running_loop()
        if ready is not None and self._first is None:
            topic, partitioner = ready
            future: asyncio.Future[Receipt] = loop.create_future()
            partitioner.submit([record], future, topic.client.seconds(None))
            future.add_done_callback(self._settled)
            return future
        task = loop.create_task(self._publish_in_turn(record, self._first))
        self._first = task
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return task

    def _settled(self, future: "asyncio.Future[Receipt]") -> None:
        """Drop the message of a cancelled publish. Until then the future refers to this, so that closing the
        bus waits for it."""
        ready = self._ready_now() if future.cancelled() else None
        if ready is not None:
            ready[1].drop_cancelled()

    async def _publish_in_turn(self, record: Record, before: "asyncio.Task[Receipt] | None") -> Receipt:
        await self._after(before)
        return await self._publish_next(record, None)

    async def _after(self, before: "asyncio.Task[Receipt] | None") -> None:
        if before is not None:
            await asyncio.wait([before])

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
        check_count(nbytes, 0, "nbytes")
        return ClusterAsyncLoan(self, memoryview(bytearray(nbytes)), (key, headers, timeout))

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> AsyncLoan:
        from hawser.record.payload import array_layout

        sizes, element, _ = array_layout(shape, dtype)
        import numpy

        return ClusterAsyncLoan(self, numpy.zeros(sizes, element), (key, headers, timeout))


class ClusterAsyncPublisher(ClusterAsyncPublishing[T], AsyncPublisher[T]):
    """A publisher with producers of its own."""

    def __init__(self, parent: Opener) -> None:
        super().__init__()
        self._parent = parent
        self._codec = parent._codec
        self._own: Partitioner | None = None
        self._abandon: weakref.finalize[..., ClusterAsyncPublisher[Any]] | None = None
        self._once = Once()

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
        self._own = topic.new_partitioner()
        topic.use(self._own)
        # A publisher without references flushes and closes itself.
        self._abandon = weakref.finalize(self, topic.abandon, self._own)
        self._abandon.atexit = False

    async def _ready(self) -> tuple[TopicHandle, Partitioner]:
        await self._open()
        topic, _ = await self._parent._ready()
        assert self._own is not None
        return topic, self._own

    def _ready_now(self) -> tuple[TopicHandle, Partitioner] | None:
        ready = self._parent._ready_now()
        if ready is None or self._own is None or self._once.is_closed:
            return None
        return ready[0], self._own

    async def close(self) -> None:
        if not self._once.is_closed:
            await self.flush()
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._abandon is not None:
            self._abandon.detach()
        if self._own is not None and self._parent._topic is not None:
            await self._parent._topic.release(self._own)
