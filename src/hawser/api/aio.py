"""The API for event loops: the same names as the plain one, with `async` and `await`.

What opens something (`connect`, `topic`, `publisher`, `subscribe`) gives an object that may be awaited,
used in `async with`, or used at once: on one host opening does not wait. Everything that can wait is
awaited without holding up the loop, and a cancelled call has not happened.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from hawser.api.info import DomainFile, Participant, ReadResult, Recovered, TopicInfo
from hawser.api.loan import ArrayLoan, Loan
from hawser.api.local.bus import LocalBus as Bus
from hawser.api.local.publishing import LocalPublisher as Publisher
from hawser.api.local.publishing import LocalPublishing as Publishing
from hawser.api.local.subscription import LocalSubscription as Subscription
from hawser.api.local.topic import LocalTopic as Topic
from hawser.api.subscription import Reliable, Start
from hawser.api.waiting import until, until_space
from hawser.errors import Full, HawserError
from hawser.memory import Sample
from hawser.memory.settings import TopicOptions
from hawser.record.receipt import Receipt

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AsyncBus", "AsyncLoan", "AsyncPublisher", "AsyncSubscription", "AsyncTopic", "connect"]

T = TypeVar("T")


class _Opened(ABC):
    """An object that is open already: awaiting it gives itself, leaving its block closes it."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self

    @abstractmethod
    async def close(self) -> None:
        """Leave, with everything that was made from this object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def connect(url: str = "shm://", *, name: str | None = None, **options: Any) -> "AsyncBus":
    """As `hawser.connect`; use it with `await` or `async with`."""
    return AsyncBus(Bus(url, name=name, **options))


class AsyncLoan:
    """As `Loan`, in an `async with` block that awaits space at its end."""

    def __init__(self, loan: Loan | ArrayLoan, publishing: Publishing[Any], timeout: float | None) -> None:
        self._loan = loan
        self._publishing = publishing
        self._timeout = timeout

    @property
    def receipt(self) -> Receipt | None:
        """The receipt once the block has ended well; None before, and if nothing was published."""
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

    def __init__(self, publishing: Publishing[Any], items: Iterable[Any]) -> None:
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


class _AsyncPublishing(_Opened, Generic[T]):
    """The publishing half of the API."""

    def __init__(self, publishing: Publishing[T]) -> None:
        self._publishing = publishing
        # The last publish_nowait still under way: whatever comes later waits for it, to keep the order.
        self._last: asyncio.Task[Receipt] | None = None

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._publishing.name

    async def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `Topic.publish`; awaits space while a reliable subscriber is too far behind."""
        await self.flush()
        return await self._publish(data, key, headers, timeout)

    async def publish_many(self, items: Iterable[T], *, timeout: float | None = None) -> list[Receipt]:
        """As `Topic.publish_many`; cancelled, it has published a prefix."""
        await self.flush()
        batch = _Batch(self._publishing, items)
        try:
            return [await until_space(batch.publish_rest, self._publishing._native(), timeout)]
        except HawserError as error:
            error.published = batch.done
            error.outcome = "applied" if batch.done else error.outcome
            raise

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        """Publish without awaiting it, in order; the future has the receipt once there was space."""
        before = self._last

        async def in_turn() -> Receipt:
            if before is not None:
                await asyncio.wait([before])
            return await self._publish(data, key, headers, None)

        task = self._last = asyncio.get_running_loop().create_task(in_turn())
        return task

    async def flush(self) -> None:
        """Return when every `publish_nowait` is done, well or not."""
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
    ) -> AsyncLoan:
        """As `Topic.loan`, for an `async with` block."""
        loan = self._publishing.loan(nbytes, key=key, headers=headers)
        return AsyncLoan(loan, self._publishing, timeout)

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> AsyncLoan:
        """As `Topic.loan_array`, for an `async with` block."""
        loan = self._publishing.loan_array(shape, dtype, key=key, headers=headers)
        return AsyncLoan(loan, self._publishing, timeout)

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


class AsyncPublisher(_AsyncPublishing[T]):
    """As `Publisher`."""

    def __init__(self, publisher: Publisher[T]) -> None:
        super().__init__(publisher)
        self._publisher = publisher

    @property
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""
        return self._publisher.incarnation

    async def close(self) -> None:
        """Leave the topic, after what `publish_nowait` has begun."""
        await self.flush()
        self._publisher.close()


class AsyncSubscription(_Opened, Generic[T]):
    """As `Subscription`: `async for`, `await take()`."""

    def __init__(self, subscription: Subscription[T]) -> None:
        self._subscription = subscription
        self._native = subscription._native

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._subscription.name

    @property
    def missed(self) -> int:
        """Exactly how many samples were overwritten before they were taken."""
        return self._native.missed

    @property
    def received(self) -> int:
        """How many samples were taken."""
        return self._native.received

    @property
    def position(self) -> int:
        """Offset of the last sample taken or missed."""
        return self._native.position

    @property
    def held(self) -> int:
        """How many samples are held now."""
        return self._native.held

    @property
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""
        return self._native.incarnation

    async def take(self, timeout: float | None = None) -> Sample | None:
        """The next sample; None if there is none within `timeout` seconds. Cancelled, it loses none."""
        return await until(lambda: self._native.take(0), self._native, timeout)

    async def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        """The next samples that are there, at most `count`; awaits only the first."""
        return await until(lambda: self._native.take_many(count, 0) or None, self._native, timeout) or []

    async def take_value(self, timeout: float | None = None) -> T | None:
        """As `Subscription.take_value`."""
        return await until(lambda: self._native.take_value(0), self._native, timeout)

    async def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        """As `Subscription.take_values`."""
        return await until(lambda: self._native.take_values(count, 0) or None, self._native, timeout) or []

    async def commit(self) -> None:
        """Keep the position reached so far for the `group`."""
        self._native.commit()

    async def close(self) -> None:
        """Leave. Samples still held stay valid."""
        self._subscription.close()

    async def values(self) -> AsyncIterator[T]:
        """Iterate over the decoded values of a typed topic."""
        async for sample in self:
            yield sample.value

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Sample]:
        return self._subscription.__anext__()


class AsyncTopic(_AsyncPublishing[T]):
    """As `Topic`."""

    def __init__(self, topic: Topic[T]) -> None:
        super().__init__(topic)
        self._topic = topic

    def publisher(self, *, exclusive: bool = False) -> AsyncPublisher[T]:
        """As `Topic.publisher`."""
        return AsyncPublisher(self._topic.publisher(exclusive=exclusive))

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
        """As `Topic.subscribe`."""
        return AsyncSubscription(
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

    async def read_oldest(self, count: int, after: int = 0) -> ReadResult:
        """As `Topic.read_oldest`."""
        return self._topic.read_oldest(count, after)

    async def read_newest(self, count: int, after: int = 0) -> ReadResult:
        """As `Topic.read_newest`."""
        return self._topic.read_newest(count, after)

    async def info(self) -> TopicInfo:
        """As `Topic.info`."""
        return self._topic.info()

    async def forget(self, name: str) -> bool:
        """As `Topic.forget`."""
        return self._topic.forget(name)

    async def delete(self, force: bool = False) -> None:
        """As `Topic.delete`."""
        self._topic.delete(force)

    async def close(self) -> None:
        """Leave the topic, after what `publish_nowait` has begun."""
        await self.flush()
        self._topic.close()


class AsyncBus(_Opened):
    """As `Bus`. Several event loops may each have their own; one thread waits for all of them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topics: dict[int, AsyncTopic[Any]] = {}

    @property
    def name(self) -> str:
        """The name of this connection."""
        return self._bus.name

    @property
    def url(self) -> str:
        """The URL another process connects to for the same domain."""
        return self._bus.url

    @overload
    def topic(
        self, name: str, *, create: bool = True, **settings: Unpack[TopicOptions]
    ) -> "AsyncTopic[Buffer]": ...
    @overload
    def topic(
        self, name: str, *, schema: type[T], create: bool = True, **settings: Unpack[TopicOptions]
    ) -> AsyncTopic[T]: ...
    @overload
    def topic(
        self, name: str, *, schema: Any, create: bool = True, **settings: Unpack[TopicOptions]
    ) -> AsyncTopic[Any]: ...
    def topic(
        self, name: str, *, schema: Any = None, create: bool = True, **settings: Any
    ) -> AsyncTopic[Any]:
        """As `Bus.topic`."""
        topic = self._bus.topic(name, schema=schema, create=create, **settings)
        known = self._topics.get(id(topic))
        if known is None or known._topic is not topic:
            known = self._topics[id(topic)] = AsyncTopic(topic)
        return known

    async def topics(self) -> list[str]:
        """As `Bus.topics`."""
        return self._bus.topics()

    async def files(self) -> list[DomainFile]:
        """As `Bus.files`."""
        return self._bus.files()

    async def participants(self) -> list[Participant]:
        """As `Bus.participants`."""
        return self._bus.participants()

    async def recover(self) -> list[Recovered]:
        """As `Bus.recover`."""
        return self._bus.recover()

    async def close(self) -> None:
        """Leave every topic opened here, after what `publish_nowait` has begun."""
        for topic in list(self._topics.values()):
            await topic.flush()
        self._bus.close()
