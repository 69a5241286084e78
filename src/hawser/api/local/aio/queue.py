"""Queues on one host, for event loops: claims happen in the loop, and only the waiting elsewhere."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from hawser.api.aio.queue import (
    AsyncConsumer,
    AsyncMessage,
    AsyncMessages,
    AsyncQueue,
    AsyncValueLoop,
    AsyncValues,
)
from hawser.api.info import QueueInfo
from hawser.api.local.aio.publishing import LocalAsyncPublishing
from hawser.api.local.consuming import LocalConsumer, settle_all
from hawser.api.local.queue import LocalQueue, some
from hawser.api.local.waiter_thread import until
from hawser.api.message import Disposition, Message
from hawser.api.sample import Sample
from hawser.api.subscription import check_count
from hawser.errors import Closed
from hawser.memory import Claims
from hawser.memory import Consumer as NativeConsumer
from hawser.memory import Message as NativeMessage
from hawser.record.record import Receipt

__all__ = ["LocalAsyncQueue"]

T = TypeVar("T")


class _LocalAsyncMessage(AsyncMessage):
    """As `Message`; settling does not wait here."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        return self._message.array(dtype, shape)

    def arrow(self) -> Any:
        return self._message.arrow()

    async def accept(self) -> None:
        self._message.accept()

    async def release(self) -> None:
        self._message.release()

    async def reject(self) -> None:
        self._message.reject()

    def __bytes__(self) -> bytes:
        return bytes(self._message)

    def __len__(self) -> int:
        return len(self._message)

    def __eq__(self, other: object) -> bool:
        return self is other or self._message == other

    __hash__ = object.__hash__

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._message.__exit__(kind, error, traceback)


class _LocalAsyncConsumer(AsyncConsumer[T]):
    """As `Consumer`: `async for`."""

    def __init__(self, consumer: LocalConsumer[T]) -> None:
        super().__init__()
        self._consumer = consumer

    @property
    def name(self) -> str:
        return self._consumer.name

    def values(self) -> AsyncValueLoop[T]:
        return AsyncValueLoop(self._get)

    async def _get(self) -> AsyncMessage:
        native, most = self._consumer._native, self._consumer._most
        try:
            message = await until(lambda: native.claim_apart(most, 0), native, None)
        except Closed:
            if native.closing:
                raise StopAsyncIteration from None
            raise
        return _LocalAsyncMessage(cast("Message", message))

    def _take_back(self, message: AsyncMessage) -> None:
        self._consumer._native.take_back(cast("NativeMessage", cast("_LocalAsyncMessage", message)._message))

    async def close(self) -> None:
        self._consumer.close()


class _Putting(LocalAsyncPublishing[T]):
    """The producing half of a queue."""

    async def close(self) -> None:
        await self.flush()


class LocalAsyncQueue(AsyncQueue[T]):
    """As `Queue`."""

    def __init__(self, queue: LocalQueue[T], forget: Callable[[object], None] | None = None) -> None:
        self._queue = queue
        self._forget = forget
        self._putting = _Putting(queue._producing)

    @property
    def name(self) -> str:
        return self._queue.name

    async def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        return await self._putting.publish(data, key=key, headers=headers, timeout=timeout)

    async def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        return some(await self._putting.publish_many(items, keys=keys, timeout=timeout))

    async def get(self, timeout: float | None = None) -> AsyncMessage | None:
        consumer = self._queue._consumer()
        message = await until(lambda: consumer.claim(0), consumer, timeout)
        return None if message is None else _LocalAsyncMessage(cast("Message", message))

    async def get_many(self, count: int, timeout: float | None = None) -> AsyncMessages:
        check_count(count, 1)
        consumer = self._queue._consumer()
        found = await until(lambda: consumer.claim_many(count, 0) or None, consumer, timeout)
        messages = cast("list[Message]", found or [])
        return AsyncMessages(map(_LocalAsyncMessage, messages), _settle_all(consumer))

    async def get_values(self, count: int, timeout: float | None = None) -> AsyncValues[T]:
        check_count(count, 1)
        consumer = self._queue._consumer()

        values: list[T] = []

        def claim() -> Claims | None:
            held = consumer.claim_values(count, values, 0)
            return held if values else None

        held = await until(claim, consumer, timeout)

        async def settle(disposition: Disposition) -> None:
            if held is not None:
                getattr(held, disposition)()

        return AsyncValues(values, settle)

    def consume(self, prefetch: int | None = None) -> _LocalAsyncConsumer[T]:
        return _LocalAsyncConsumer(self._queue.consume(prefetch))

    async def peek(self, count: int) -> list[Sample]:
        return self._queue.peek(count)

    async def info(self) -> QueueInfo:
        return self._queue.info()

    def dead_letters(self, *, create: bool = True) -> "LocalAsyncQueue[T]":
        dead_letters = self._queue.dead_letters(create=create)
        return self if dead_letters is self._queue else LocalAsyncQueue(dead_letters)

    async def retry_dead_letters(self, count: int | None = None) -> int:
        return self._queue.retry_dead_letters(count)

    async def forget(self, name: str) -> bool:
        return self._queue.forget(name)

    async def delete(self, force: bool = False) -> None:
        self._queue.delete(force)
        self._leave()

    async def close(self) -> None:
        self._queue.close()
        self._leave()

    def _leave(self) -> None:
        if self._forget is not None:
            self._forget(self)


def _settle_all(consumer: NativeConsumer) -> Any:
    settle = settle_all(consumer)

    async def settle_messages(messages: list[AsyncMessage], disposition: Disposition) -> None:
        settle([cast("_LocalAsyncMessage", each)._message for each in messages], disposition)

    return settle_messages
