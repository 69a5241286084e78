"""The API for event loops on one host.

Opening does not wait here. Everything that can wait is awaited without holding up the loop, and a cancelled
call has not happened.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from hawser.api.aio import AsyncBus, AsyncLoan, AsyncPublisher, AsyncPublishing, AsyncSubscription, AsyncTopic
from hawser.api.info import DomainFile, Participant, ReadResult, Recovered, TopicInfo
from hawser.api.loan import ArrayLoan, Loan
from hawser.api.local.bus import LocalBus
from hawser.api.local.publishing import KeyedProgress, LocalPublisher, LocalPublishing
from hawser.api.local.subscription import LocalSubscription
from hawser.api.local.topic import LocalTopic
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start
from hawser.api.waiting import until, until_space
from hawser.errors import Full, HawserError
from hawser.record.receipt import Receipt

__all__ = ["LocalAsyncBus"]

T = TypeVar("T")


class LocalAsyncLoan(AsyncLoan):
    """Awaits space at the end of its block."""

    def __init__(
        self, loan: Loan | ArrayLoan, publishing: LocalPublishing[Any], timeout: float | None
    ) -> None:
        self._loan = loan
        self._publishing = publishing
        self._timeout = timeout

    @property
    def receipt(self) -> Receipt | None:
        return self._loan.receipt

    async def __aenter__(self) -> Any:
        return self._loan.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._loan.__exit__(kind, error, traceback)
            return
        try:
            self._loan._seal()
            publisher = self._publishing._native()
            await until_space(lambda: self._loan.publish(0), publisher, self._timeout)
        finally:
            self._loan.drop()


class _Batch:
    """A batch that goes out in as many parts as there is space for."""

    def __init__(self, publishing: LocalPublishing[Any], items: Iterable[Any]) -> None:
        self._publishing = publishing
        self._payloads = list(publishing._payloads(items))
        self._first: Receipt | None = None
        self.done = 0

    def publish_rest(self) -> Receipt:
        """Publish what is left; Full when there is no space even for one message."""
        if self._first is None:
            # Alone, because only a part that went out as a whole tells its first offset.
            self._first = self._publishing._publish_payloads(self._payloads[:1], 0)
            self.done = self._first.count
        while self.done < len(self._payloads):
            try:
                self.done += self._publishing._publish_payloads(self._payloads[self.done :], 0).count
            except HawserError as error:
                self.done += error.published
                if not (isinstance(error, Full) and error.published):
                    raise
        return self._first._replace(count=self.done)


class _LocalAsyncPublishing(AsyncPublishing[T]):
    """The publishing half of the API."""

    def __init__(self, publishing: LocalPublishing[T]) -> None:
        self._publishing = publishing
        # The last publish_nowait still under way: whatever comes later waits for it, to keep the order.
        self._last: asyncio.Task[Receipt] | None = None

    @property
    def name(self) -> str:
        return self._publishing.name

    async def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        await self.flush()
        return await self._publish(data, key, headers, timeout)

    async def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        await self.flush()
        if keys is not None:
            return [await self._publish_with_keys(items, keys, timeout)]
        batch = _Batch(self._publishing, items)
        try:
            return [await until_space(batch.publish_rest, self._publishing._native(), timeout)]
        except HawserError as error:
            error.published = batch.done
            error.outcome = "applied" if batch.done else error.outcome
            raise

    async def _publish_with_keys(
        self, items: Iterable[T], keys: Iterable[bytes | None], timeout: float | None
    ) -> Receipt:
        progress = KeyedProgress()
        with progress:
            for item, key in zip(items, keys, strict=True):
                progress.add(await self._publish(item, key, None, timeout))
        return progress.receipt()

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        before = self._last

        async def in_turn() -> Receipt:
            if before is not None:
                await asyncio.wait([before])
            return await self._publish(data, key, headers, None)

        task = self._last = asyncio.get_running_loop().create_task(in_turn())
        return task

    async def flush(self) -> None:
        while self._last is not None:
            last = self._last
            await asyncio.wait([last])
            if self._last is last:
                self._last = None

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> LocalAsyncLoan:
        loan = self._publishing.loan(nbytes, key=key, headers=headers)
        return LocalAsyncLoan(loan, self._publishing, timeout)

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> LocalAsyncLoan:
        loan = self._publishing.loan_array(shape, dtype, key=key, headers=headers)
        return LocalAsyncLoan(loan, self._publishing, timeout)

    async def _publish(
        self, data: T, key: bytes | None, headers: Mapping[str, bytes] | None, timeout: float | None
    ) -> Receipt:
        publishing = self._publishing
        native = publishing._native()
        try:
            return publishing.publish(data, key=key, headers=headers, timeout=0)
        except Full:
            if timeout == 0:
                raise
        return await until_space(
            lambda: publishing.publish(data, key=key, headers=headers, timeout=0), native, timeout
        )


class _LocalAsyncPublisher(_LocalAsyncPublishing[T], AsyncPublisher[T]):
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


class _LocalAsyncTopic(_LocalAsyncPublishing[T], AsyncTopic[T]):
    """As `Topic`."""

    def __init__(self, topic: LocalTopic[T]) -> None:
        super().__init__(topic)
        self._topic = topic

    def publisher(self, *, exclusive: bool = False) -> _LocalAsyncPublisher[T]:
        return _LocalAsyncPublisher(self._topic.publisher(exclusive=exclusive))

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

    async def close(self) -> None:
        await self.flush()
        self._topic.close()


class LocalAsyncBus(AsyncBus):
    """As `Bus`. Several event loops may each have their own; one thread waits for all of them."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._topics: dict[int, _LocalAsyncTopic[Any]] = {}

    @property
    def name(self) -> str:
        return self._bus.name

    @property
    def url(self) -> str:
        return self._bus.url

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> _LocalAsyncTopic[Any]:
        topic = self._bus._topic(name, schema, create, settings)
        known = self._topics.get(id(topic))
        if known is None or known._topic is not topic:
            known = self._topics[id(topic)] = _LocalAsyncTopic(topic)
        return known

    async def topics(self) -> list[str]:
        return self._bus.topics()

    async def files(self) -> list[DomainFile]:
        return self._bus.files()

    async def participants(self) -> list[Participant]:
        return self._bus.participants()

    async def recover(self) -> list[Recovered]:
        return self._bus.recover()

    async def close(self) -> None:
        for topic in list(self._topics.values()):
            await topic.flush()
        self._bus.close()
