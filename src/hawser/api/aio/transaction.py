"""Transactions for event loops: the same names as the plain ones, with `async` and `await`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hawser.api.aio.handle import LazyHandle
from hawser.api.aio.queue import AsyncMessage, AsyncMessages, AsyncQueue
from hawser.api.transaction import TransactionState

if TYPE_CHECKING:
    from hawser.api.aio.bus import AsyncSubscription, AsyncTopic

__all__ = ["AsyncTransaction", "AsyncWork"]


class AsyncWork(ABC):
    """As `Work`, for one task at a time."""

    @property
    @abstractmethod
    def id(self) -> str:
        """As `Work.id`; empty before its first use."""

    @abstractmethod
    async def publish(
        self,
        target: "AsyncTopic[Any] | AsyncQueue[Any]",
        data: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """As `Work.publish`."""

    @abstractmethod
    async def publish_many(
        self,
        target: "AsyncTopic[Any] | AsyncQueue[Any]",
        items: Iterable[Any],
        *,
        keys: Iterable[bytes | None] | None = None,
    ) -> None:
        """As `Work.publish_many`."""

    @abstractmethod
    async def get(self, queue: AsyncQueue[Any], timeout: float | None = None) -> AsyncMessage | None:
        """As `Work.get`."""

    @abstractmethod
    async def get_many(
        self, queue: AsyncQueue[Any], count: int, timeout: float | None = None
    ) -> AsyncMessages:
        """As `Work.get_many`."""

    @abstractmethod
    async def accept(self, messages: AsyncMessage | Sequence[AsyncMessage]) -> None:
        """As `Work.accept`."""


class AsyncTransaction(AsyncWork, LazyHandle):
    """As `Transaction`: `async with bus.transaction() as tx`."""

    @property
    @abstractmethod
    def state(self) -> TransactionState:
        """As `Transaction.state`."""

    @abstractmethod
    async def commit_offsets(self, subscription: "AsyncSubscription[Any]") -> None:
        """As `Transaction.commit_offsets`."""

    @abstractmethod
    async def commit(self) -> None:
        """As `Transaction.commit`. A cancelled commit continues; the transaction may be committed or not."""

    @abstractmethod
    async def resolve(self) -> bool:
        """As `Transaction.resolve`; also the outcome of a cancelled commit."""

    @abstractmethod
    async def rollback(self) -> None:
        """As `Transaction.rollback`."""

    async def close(self) -> None:
        """As `rollback`."""
        await self.rollback()

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def __repr__(self) -> str:
        return f"<AsyncTransaction {self.id}, {self.state}>"
