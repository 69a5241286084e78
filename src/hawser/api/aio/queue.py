"""Queues for event loops: the same names as the plain ones, with `async` and `await`.

Putting, getting and settling are awaited. On one host a cancelled call had no effect; on a cluster an unsent
put is dropped, and one that was sent, or a settlement, may take effect.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from hawser.api.aio.handle import LazyHandle
from hawser.api.info import QueueInfo
from hawser.api.message import OVER, Disposition
from hawser.api.sample import Sample
from hawser.errors import HawserError
from hawser.record.record import Receipt

__all__ = [
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncQueue",
    "AsyncValueLoop",
    "AsyncValues",
]

T = TypeVar("T")


class AsyncMessage(ABC):
    """As `Message`: `async with message`, `await message.accept()`. Dropped unsettled it is released."""

    data: memoryview
    offset: int
    timestamp_ns: int
    publisher: str
    key: bytes | None
    headers: dict[str, bytes]
    partition: int
    value: Any
    delivery_count: int
    redelivered: bool

    @abstractmethod
    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """As `Sample.array`."""

    @abstractmethod
    def arrow(self) -> Any:
        """As `Sample.arrow`."""

    @abstractmethod
    async def accept(self) -> None:
        """As `Message.accept`."""

    @abstractmethod
    async def release(self) -> None:
        """As `Message.release`."""

    @abstractmethod
    async def reject(self) -> None:
        """As `Message.reject`."""

    @abstractmethod
    def __bytes__(self) -> bytes: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def __bool__(self) -> Literal[True]:
        """An empty message is true, too."""
        return True

    async def __aenter__(self) -> Self:
        return self

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class _AsyncBlock(ABC):
    """As `_Block` of `Messages`."""

    __slots__ = ()

    @abstractmethod
    async def accept(self) -> None: ...

    @abstractmethod
    async def release(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.accept()
        else:
            with suppress(Exception):
                await self.release()


class AsyncMessages(list[AsyncMessage], _AsyncBlock):
    """As `Messages`: `async with messages`, `await messages.accept()`."""

    __slots__ = ("_settle",)

    def __init__(
        self,
        messages: Iterable[AsyncMessage],
        settle: Callable[[list[AsyncMessage], Disposition], Awaitable[None]],
    ) -> None:
        super().__init__(messages)
        self._settle = settle

    async def accept(self) -> None:
        """As `Messages.accept`."""
        await self._settle(self, "accept")

    async def release(self) -> None:
        """As `Messages.release`."""
        await self._settle(self, "release")

    async def reject(self) -> None:
        """As `Messages.reject`."""
        await self._settle(self, "reject")


class AsyncValues(list[T], _AsyncBlock):
    """As `Values`: `async with values`, `await values.accept()`."""

    __slots__ = ("_settle",)

    def __init__(self, values: Iterable[T], settle: Callable[[Disposition], Awaitable[None]]) -> None:
        super().__init__(values)
        self._settle = settle

    async def accept(self) -> None:
        """As `Values.accept`."""
        await self._settle("accept")

    async def release(self) -> None:
        """As `Values.release`."""
        await self._settle("release")

    async def reject(self) -> None:
        """As `Values.reject`."""
        await self._settle("reject")


class AsyncValueLoop(_AsyncBlock, Generic[T]):
    """As `ValueLoop`: `async with consumer.values() as values`, `async for`, `await values.accept()`. For one
    task at a time. A cancelled step returns no value, and may have accepted the previous message."""

    def __init__(self, get: Callable[[], Awaitable[AsyncMessage]]) -> None:
        self._get = get
        self._in_hand: AsyncMessage | None = None
        # The unfinished settlement of the current message.
        self._said: Disposition | None = None
        self._is_left = False

    def __aiter__(self) -> Self:
        self._is_left = self._in_hand is not None
        return self

    async def __anext__(self) -> T:
        """Await the next value. StopAsyncIteration once the consumer is closed."""
        if self._is_left:
            with suppress(*OVER):
                await self._settle(self._said or "release")
        await self._settle("accept")
        message = await self._get()
        try:
            value: T = message.value
        except Exception:
            with suppress(HawserError):
                await message.release()
            raise
        self._in_hand = message
        return value

    async def accept(self) -> None:
        """As `ValueLoop.accept`."""
        await self._settle("accept")

    async def release(self) -> None:
        """As `ValueLoop.release`."""
        await self._settle("release")

    async def reject(self) -> None:
        """As `ValueLoop.reject`."""
        await self._settle("reject")

    async def _settle(self, disposition: Disposition) -> None:
        if self._in_hand is not None:
            self._said = disposition
            try:
                await getattr(self._in_hand, disposition)()
            except OVER:
                self._in_hand = self._said = None
                raise
            self._in_hand = self._said = None
        self._is_left = False


class _AsyncLoop(AsyncIterator[AsyncMessage]):
    """A loop over a consumer."""

    __slots__ = ("_consumer", "_last")

    def __init__(self, consumer: "AsyncConsumer[Any]") -> None:
        self._consumer = consumer
        self._last: weakref.ref[AsyncMessage] | None = None

    def __anext__(self) -> Awaitable[AsyncMessage]:
        return self._consumer._step(self)


class AsyncConsumer(LazyHandle, Generic[T]):
    """As `Consumer`: `async for`."""

    def __init__(self) -> None:
        self._last: weakref.ref[AsyncMessage] | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the queue."""

    def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        """As `Consumer.__iter__`."""
        return _AsyncLoop(self)

    async def __anext__(self) -> AsyncMessage:
        """Await the next message. All callers of this method share one loop. StopAsyncIteration once the
        consumer is closed."""
        return await self._step(self)

    @abstractmethod
    def values(self) -> AsyncValueLoop[T]:
        """As `Consumer.values`."""

    async def _step(self, loop: "_AsyncLoop | AsyncConsumer[Any]") -> AsyncMessage:
        """Release the loop's current message, and get the next one."""
        last, loop._last = loop._last, None
        message = None if last is None else last()
        if message is not None:
            self._take_back(message)
        message = await self._get()
        loop._last = weakref.ref(message)
        return message

    @abstractmethod
    async def _get(self) -> AsyncMessage:
        """The next message. StopAsyncIteration once the consumer is closed."""

    @abstractmethod
    def _take_back(self, message: AsyncMessage) -> None:
        """Release it if it is still held; settling it later raises Fenced."""


class AsyncQueue(LazyHandle, Generic[T]):
    """As `Queue`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the queue."""

    @abstractmethod
    async def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `Queue.put`."""

    @abstractmethod
    async def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `Queue.put_many`; cancelled, it has put a prefix on one host."""

    @abstractmethod
    async def get(self, timeout: float | None = None) -> AsyncMessage | None:
        """As `Queue.get`. Cancelled, it holds nothing."""

    @abstractmethod
    async def get_many(self, count: int, timeout: float | None = None) -> AsyncMessages:
        """As `Queue.get_many`."""

    @abstractmethod
    async def get_values(self, count: int, timeout: float | None = None) -> AsyncValues[T]:
        """As `Queue.get_values`."""

    @abstractmethod
    def consume(self, prefetch: int | None = None) -> AsyncConsumer[T]:
        """As `Queue.consume`."""

    @abstractmethod
    async def peek(self, count: int) -> list[Sample]:
        """As `Queue.peek`."""

    @abstractmethod
    async def info(self) -> QueueInfo:
        """As `Queue.info`."""

    @abstractmethod
    def dead_letters(self, *, create: bool = True) -> "AsyncQueue[T]":
        """As `Queue.dead_letters`."""

    @abstractmethod
    async def retry_dead_letters(self, count: int | None = None) -> int:
        """As `Queue.retry_dead_letters`."""

    @abstractmethod
    async def forget(self, name: str) -> bool:
        """As `Queue.forget`."""

    @abstractmethod
    async def delete(self, force: bool = False) -> None:
        """As `Queue.delete`."""
