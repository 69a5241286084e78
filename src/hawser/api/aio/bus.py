"""The API for event loops: the same names as the plain one, with `async` and `await`.

`connect`, `topic`, `queue`, `publisher`, `subscribe` and `consume` return an object that may be awaited, used
in `async with`, or used at once: on one host it is already open, on a cluster its first use opens it. Calls
that wait are awaited and do not block the loop. On one host a cancelled call had no effect; on a cluster an
unsent publish is dropped, and one that was sent may take effect.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from hawser.api.aio.handle import LazyHandle
from hawser.api.aio.queue import AsyncQueue
from hawser.api.aio.transaction import AsyncTransaction
from hawser.api.bus import is_cluster
from hawser.api.info import DomainFile, Participant, ReadResult, Recovered, TopicInfo
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start
from hawser.api.transaction import no_transactions
from hawser.memory.settings import QueueOptions, TopicOptions
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.api.xa import AsyncXA

__all__ = [
    "AsyncBus",
    "AsyncLoan",
    "AsyncPublisher",
    "AsyncPublishing",
    "AsyncSubscription",
    "AsyncTopic",
    "connect",
]

T = TypeVar("T")


def connect(url: str = "shm://", *, name: str | None = None, **options: Any) -> "AsyncBus":
    """As `hawser.connect`; use it with `await` or `async with`."""
    if is_cluster(url):
        from hawser.api.cluster.aio.bus import ClusterAsyncBus

        return ClusterAsyncBus(url, name=name, **options)
    from hawser.api.local.aio.bus import LocalAsyncBus
    from hawser.api.local.bus import LocalBus

    return LocalAsyncBus(LocalBus(url, name=name, **options))


class AsyncLoan(ABC):
    """As `Loan`, in an `async with` block that awaits the publish at its end."""

    @property
    @abstractmethod
    def receipt(self) -> Receipt | None:
        """The receipt once the block has ended well; None before, and if nothing was published."""

    @abstractmethod
    async def __aenter__(self) -> Any: ...

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class AsyncPublishing(LazyHandle, Generic[T]):
    """The publishing half of the API."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the topic."""

    @abstractmethod
    async def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `Topic.publish`."""

    @abstractmethod
    async def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """As `Topic.publish_many`; cancelled, it has published a prefix on one host."""

    @abstractmethod
    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        """Publish without awaiting it, in order; the future has the receipt once it is done."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when every `publish_nowait` is done, well or not."""

    @abstractmethod
    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> AsyncLoan:
        """As `Topic.loan`, for an `async with` block."""

    @abstractmethod
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


class AsyncPublisher(AsyncPublishing[T]):
    """As `Publisher`."""

    @property
    @abstractmethod
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""


class AsyncSubscription(LazyHandle, Generic[T]):
    """As `Subscription`: `async for`, `await take()`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the topic."""

    @property
    @abstractmethod
    def missed(self) -> int:
        """As `Subscription.missed`."""

    @property
    @abstractmethod
    def received(self) -> int:
        """How many samples were taken."""

    @property
    @abstractmethod
    def position(self) -> int:
        """As `Subscription.position`."""

    @property
    @abstractmethod
    def held(self) -> int:
        """How many samples are held now."""

    @property
    @abstractmethod
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""

    @abstractmethod
    async def take(self, timeout: float | None = None) -> Sample | None:
        """The next sample; None if there is none within `timeout` seconds. Cancelled, it loses none."""

    @abstractmethod
    async def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        """Up to `count` available samples; awaits only the first."""

    @abstractmethod
    async def take_value(self, timeout: float | None = None) -> T | None:
        """As `Subscription.take_value`."""

    @abstractmethod
    async def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        """As `Subscription.take_values`."""

    @abstractmethod
    async def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        """As `Subscription.take_batches`."""

    @abstractmethod
    async def commit(self) -> None:
        """As `Subscription.commit`."""

    async def values(self) -> AsyncIterator[T]:
        """Iterate over the decoded values of a typed topic."""
        async for sample in self:
            yield sample.value

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    def __anext__(self) -> Awaitable[Sample]: ...


class AsyncTopic(AsyncPublishing[T]):
    """As `Topic`."""

    @abstractmethod
    def publisher(self, *, exclusive: bool = False) -> AsyncPublisher[T]:
        """As `Topic.publisher`."""

    @abstractmethod
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

    @abstractmethod
    async def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        """As `Topic.read_oldest`."""

    @abstractmethod
    async def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        """As `Topic.read_newest`."""

    @abstractmethod
    async def info(self) -> TopicInfo:
        """As `Topic.info`."""

    @abstractmethod
    async def forget(self, name: str) -> bool:
        """As `Topic.forget`."""

    @abstractmethod
    async def delete(self, force: bool = False) -> None:
        """As `Topic.delete`."""


class AsyncBus(LazyHandle):
    """As `Bus`. Several event loops may each have their own."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this connection."""

    @property
    @abstractmethod
    def url(self) -> str:
        """As `Bus.url`."""

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
        """As `Bus.topic`. On a cluster this asks no node. If another client has deleted and recreated the
        topic, the bus returns the old object until a call of that object has raised Closed, and then a new
        one."""
        return self._topic(name, schema, create, settings)

    @abstractmethod
    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> AsyncTopic[Any]: ...

    @abstractmethod
    async def topics(self) -> list[str]:
        """As `Bus.topics`."""

    @abstractmethod
    async def files(self) -> list[DomainFile]:
        """As `Bus.files`."""

    @abstractmethod
    async def participants(self) -> list[Participant]:
        """As `Bus.participants`."""

    @abstractmethod
    async def recover(self) -> list[Recovered]:
        """As `Bus.recover`."""

    @overload
    def queue(
        self, name: str, *, create: bool = True, **settings: Unpack[QueueOptions]
    ) -> "AsyncQueue[Buffer]": ...
    @overload
    def queue(
        self, name: str, *, schema: type[T], create: bool = True, **settings: Unpack[QueueOptions]
    ) -> AsyncQueue[T]: ...
    @overload
    def queue(
        self, name: str, *, schema: Any, create: bool = True, **settings: Unpack[QueueOptions]
    ) -> AsyncQueue[Any]: ...
    def queue(
        self, name: str, *, schema: Any = None, create: bool = True, **settings: Any
    ) -> AsyncQueue[Any]:
        """As `Bus.queue`. If another client has recreated the queue, see `topic`."""
        return self._queue(name, schema, create, settings)

    @abstractmethod
    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> AsyncQueue[Any]: ...

    @abstractmethod
    async def queues(self) -> list[str]:
        """As `Bus.queues`."""

    def transaction(self, timeout: float | None = None) -> AsyncTransaction:
        """As `Bus.transaction`."""
        raise no_transactions(self.url)

    async def run_transaction(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        retries: int = 5,
        *,
        timeout: float | None = None,
    ) -> T:
        """As `Bus.run_transaction`, of what `fn` awaits."""
        raise no_transactions(self.url)

    @property
    def xa(self) -> "AsyncXA":
        """As `Bus.xa`."""
        raise no_transactions(self.url)
