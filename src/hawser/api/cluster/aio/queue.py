"""Queues on a cluster in an event loop: opened by their first use."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from hawser.api.aio.queue import (
    AsyncConsumer,
    AsyncMessage,
    AsyncMessages,
    AsyncQueue,
    AsyncValueLoop,
    AsyncValues,
)
from hawser.api.bus import codec_of
from hawser.api.cluster.aio.publishing import Once
from hawser.api.cluster.message import LentSample, Session, ahead_of, take_back, values_of
from hawser.api.cluster.publishing import batch_of
from hawser.api.cluster.queue import query_queue, queue_info
from hawser.api.info import QueueInfo
from hawser.api.message import Disposition
from hawser.api.queue import check_prefetch
from hawser.api.sample import Sample
from hawser.api.subscription import check_count, check_timeout
from hawser.cluster.client.admin.catalog import check_queue_settings
from hawser.cluster.client.client import Client, record_of
from hawser.cluster.client.queue.acknowledger import HeldMessage, State
from hawser.cluster.client.queue.dead_letters import retry_dead_letters
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.queue.session import MOST_HELD, QueueSession
from hawser.errors import Closed, HawserError
from hawser.limits import DEAD_LETTER_SUFFIX
from hawser.memory.names import check_topic_name
from hawser.record.record import Receipt, Record

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = ["AsyncQueueHolder", "ClusterAsyncQueue"]

T = TypeVar("T")


class AsyncQueueHolder(Protocol):
    """What a queue needs of its bus."""

    async def _started(self) -> Client: ...
    def _forget_queue(self, queue: "ClusterAsyncQueue[Any]") -> None: ...


class ClusterAsyncMessage(LentSample):
    """A message that this process holds."""

    __slots__ = ()

    def accept(self) -> Coroutine[Any, Any, None]:
        return self._say("accept")

    def release(self) -> Coroutine[Any, Any, None]:  # type: ignore[override]  # a settlement is awaited
        return self._say("release")

    def reject(self) -> Coroutine[Any, Any, None]:
        return self._say("reject")

    async def _say(self, disposition: Disposition) -> None:
        held_message, queue_session = self._held_message, self._queue_session
        if held_message.state is State.HELD:
            await queue_session.settle((held_message,), queue_session.disposition(disposition))
            return
        self._check_free()
        await self._settle(disposition)
        self._check_said(disposition)

    async def _settle(self, disposition: Disposition) -> None:
        await self._queue_session.settle_one(self._held_message, self._queue_session.disposition(disposition))

    async def __aenter__(self) -> "ClusterAsyncMessage":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A settlement in the block stays, and the error of the block is raised.
        if kind is None:
            await self._settle("accept")
        else:
            with suppress(Exception):
                await self._settle("release")


AsyncMessage.register(ClusterAsyncMessage)


def _session_at(queue: QueueHandle, prefetch: int = 0, for_transactions: bool = False) -> Session:
    def make(
        held_message: HeldMessage, record: Record, publisher: str, count: int, redelivered: bool
    ) -> ClusterAsyncMessage:
        return ClusterAsyncMessage(
            queue_session, held_message, record, publisher, count, redelivered, queue.decode
        )

    session = Session(queue, make, prefetch, for_transactions)
    queue_session = session.queue_session
    return session


class _ClusterAsyncConsumer(AsyncConsumer[T]):
    """A consumer with its own session, which its loops share."""

    def __init__(self, parent: "ClusterAsyncQueue[T]", prefetch: int | None) -> None:
        super().__init__()
        self._parent = parent
        self._prefetch = prefetch
        self._session: Session | None = None
        self._once = Once()

    @property
    def name(self) -> str:
        return self._parent.name

    async def _open(self) -> None:
        await self._once.run(lambda: self._session is not None, self._begin, "this consumer")

    async def _begin(self) -> None:
        queue = await self._parent._ready()
        self._session = _session_at(queue, ahead_of(queue, self._prefetch))
        self._session.belongs_to(self)

    def _take_back(self, message: AsyncMessage) -> None:
        take_back(cast("ClusterAsyncMessage", message))

    def values(self) -> AsyncValueLoop[T]:
        return AsyncValueLoop(self._get)

    async def _get(self) -> AsyncMessage:
        try:
            await self._open()
            assert self._session is not None
            (found,) = await self._session.get(1, None)
        except Closed:
            if self._once.is_closed or (self._session is not None and self._session.queue_session.is_closed):
                raise StopAsyncIteration from None
            raise
        return cast("AsyncMessage", found)

    async def close(self) -> None:
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._session is not None:
            await self._session.close()


class ClusterAsyncQueue(AsyncQueue[T]):
    """A queue of a cluster, or the dead letters of the queue `parent`."""

    def __init__(
        self,
        bus: AsyncQueueHolder,
        name: str,
        schema: Any,
        create: bool,
        settings: dict[str, Any],
        parent: "ClusterAsyncQueue[T] | None" = None,
    ) -> None:
        self._name = check_topic_name(name)
        self._bus = bus
        self._schema = schema
        self._codec: Codec[T] | None = codec_of(schema)
        self._create = create
        self._given, self._unused = check_queue_settings(settings, self._codec)
        self._parent = parent
        self._queue: QueueHandle | None = None
        # The session of plain gets, and the one of transactions.
        self._sessions: dict[bool, Session] = {}
        self._dead_letters: ClusterAsyncQueue[T] | None = None
        self._once = Once()

    @property
    def name(self) -> str:
        if self._queue is not None:
            return self._queue.full_name
        return self._name if self._parent is None else self._name + DEAD_LETTER_SUFFIX

    async def _open(self) -> None:
        await self._once.run(lambda: self._queue is not None, self._open_queue, f"queue {self.name!r}")

    async def _open_queue(self) -> None:
        if self._parent is not None:
            self._queue = await (await self._parent._ready()).dead_letters(self._create)
            return
        client = await self._bus._started()
        decode = None if self._codec is None else self._codec.decode
        try:
            self._queue = await client.open_queue(self._name, self._given, self._create, decode)
        except HawserError:
            # The bus returns a new object from now on, with the settings given then.
            self._bus._forget_queue(self)
            raise

    @property
    def _is_open(self) -> bool:
        return self._queue is not None and not self._once.is_closed

    async def _ready(self) -> QueueHandle:
        await self._open()
        assert self._queue is not None
        return self._queue

    def _serves(self, other: "ClusterAsyncQueue[Any]") -> bool:
        """Whether the bus may return this object instead of the other one."""
        same = self._queue is not None or self._create is other._create
        return same and self._is_usable and other._given.items() <= self._given.items()

    @property
    def _is_usable(self) -> bool:
        """Whether it is neither closed here nor known to be deleted."""
        return not self._once.is_closed and not (self._queue is not None and self._queue.is_gone)

    # Putting.

    async def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        check_timeout(timeout)
        record = record_of(data if self._codec is None else self._codec.encode(data), key, headers)
        queue = self._queue if self._is_open else await self._ready()
        assert queue is not None
        return await queue.put([record], timeout)

    async def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        check_timeout(timeout)
        records = batch_of(items, keys, self._codec)
        return await (await self._ready()).put(records, timeout)

    # Getting.

    def get(self, timeout: float | None = None) -> Coroutine[Any, Any, AsyncMessage | None]:
        return self._get(timeout)

    async def _get(self, timeout: float | None, for_transactions: bool = False) -> AsyncMessage | None:
        check_timeout(timeout)
        session = self._sessions.get(for_transactions) if self._is_open else None
        found = await (session or await self._session(for_transactions)).get(1, timeout)
        return found[0] if found else None

    async def get_many(self, count: int, timeout: float | None = None) -> AsyncMessages:
        return await self._get_many(count, timeout)

    async def _get_many(
        self, count: int, timeout: float | None, for_transactions: bool = False
    ) -> AsyncMessages:
        check_timeout(timeout)
        check_count(count, 1)
        session = await self._session(for_transactions)
        return AsyncMessages(await session.get(count, timeout), _settling(session.queue_session))

    async def get_values(self, count: int, timeout: float | None = None) -> AsyncValues[T]:
        session = await self._session()
        found = await self.get_many(count, timeout)
        values, error = values_of(found)
        if error is None:
            return AsyncValues(values, partial(found._settle, found))
        await session.give_back(cast("list[ClusterAsyncMessage]", found[max(1, len(values)) :]))
        if not values:
            await found[0].release()
            raise error
        return AsyncValues(values, partial(found._settle, found[: len(values)]))

    def consume(self, prefetch: int | None = None) -> AsyncConsumer[T]:
        check_prefetch(prefetch, MOST_HELD)
        return _ClusterAsyncConsumer(self, prefetch)

    async def _session(self, for_transactions: bool = False) -> Session:
        """The session of plain gets, or the one that transactions share."""
        queue = await self._ready()
        session = self._sessions.get(for_transactions)
        if session is None:
            session = self._sessions[for_transactions] = _session_at(queue, 0, for_transactions)
        return session

    # Queries.

    async def peek(self, count: int) -> list[Sample]:
        check_count(count, 0)
        return cast("list[Sample]", await (await self._ready()).peek(count))

    async def info(self) -> QueueInfo:
        queue = await self._ready()
        return queue_info(queue, *await query_queue(queue), self._unused)

    # Dead letters.

    def dead_letters(self, *, create: bool = True) -> AsyncQueue[T]:
        if self._parent is not None:
            return self
        if self._dead_letters is None or not self._dead_letters._is_usable:
            self._dead_letters = ClusterAsyncQueue(self._bus, self._name, self._schema, create, {}, self)
        self._dead_letters._create = self._dead_letters._create or create
        return self._dead_letters

    async def retry_dead_letters(self, count: int | None = None) -> int:
        if count is not None:
            check_count(count, 0)
        return await retry_dead_letters(await self._ready(), count)

    # The queue itself.

    async def forget(self, name: str) -> bool:
        await self._ready()
        return False

    async def delete(self, force: bool = False) -> None:
        await (await self._ready()).delete()
        await self.close()

    async def close(self) -> None:
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.close()
        if self._queue is not None:
            await self._queue.close()
        self._bus._forget_queue(self)


def _settling(queue_session: QueueSession) -> Callable[[list[AsyncMessage], Disposition], Awaitable[None]]:
    async def settle(messages: list[AsyncMessage], disposition: Disposition) -> None:
        held_message = [cast("ClusterAsyncMessage", each)._held_message for each in messages]
        await queue_session.settle(held_message, queue_session.disposition(disposition))

    return settle
