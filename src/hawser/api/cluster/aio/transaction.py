"""Transactions on a cluster in an event loop."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from hawser.api.aio.bus import AsyncSubscription, AsyncTopic
from hawser.api.aio.queue import AsyncMessage, AsyncMessages, AsyncQueue
from hawser.api.aio.transaction import AsyncTransaction, AsyncWork
from hawser.api.cluster.aio.queue import ClusterAsyncQueue
from hawser.api.cluster.aio.subscription import ClusterAsyncSubscription
from hawser.api.cluster.aio.topic import ClusterAsyncTopic
from hawser.api.cluster.message import LentSample
from hawser.api.cluster.publishing import batch_of
from hawser.api.cluster.subscription import member_of
from hawser.api.cluster.transaction import Replay, foreign, held_of, lent
from hawser.api.transaction import TransactionState
from hawser.cluster.client.client import Client, record_of
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.transaction.transaction import OpenTransaction
from hawser.cluster.client.transaction.workspace import Workspace, check_held
from hawser.errors import HawserError, UsageError
from hawser.record.rows import Records

__all__ = ["AsyncStarter", "ClusterAsyncTransaction", "ClusterAsyncWork", "run_transaction"]

Result = TypeVar("Result")


class AsyncStarter(Protocol):
    """What transactions need of their bus."""

    async def _started(self) -> Client: ...


class ClusterAsyncWork(AsyncWork):
    """Work in a transaction of this process."""

    def __init__(self, bus: AsyncStarter) -> None:
        self._bus = bus
        self._got: list[LentSample] = []

    @abstractmethod
    async def _working(self) -> Workspace:
        """The workspace; an error if the transaction has ended, or can only be rolled back."""

    async def publish(
        self,
        target: AsyncTopic[Any] | AsyncQueue[Any],
        data: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        opened, codec = await self._target(target)
        record = record_of(data if codec is None else codec.encode(data), key, headers)
        await self._publish(opened, [record])

    async def publish_many(
        self,
        target: AsyncTopic[Any] | AsyncQueue[Any],
        items: Iterable[Any],
        *,
        keys: Iterable[bytes | None] | None = None,
    ) -> None:
        opened, codec = await self._target(target)
        records = batch_of(items, keys, codec)
        if not records:
            raise UsageError("a batch has at least one message; there is nothing to publish")
        await self._publish(opened, records)

    async def _target(self, target: Any) -> tuple[Handle, Any]:
        """The handle to publish to, and the codec of its values."""
        if isinstance(target, ClusterAsyncTopic):
            self._check_own(target.name, target._bus)
            topic, _ = target._ready_now() or await target._ready()
            return topic, target._codec
        if isinstance(target, ClusterAsyncQueue):
            self._check_own(target.name, target._bus)
            queue = await target._ready()
            # Dead letters take no new messages.
            _ = queue.publisher
            return queue, target._codec
        raise foreign(target)

    def _check_own(self, name: str, bus: object) -> None:
        if bus is not self._bus:
            raise foreign(name)

    async def _publish(self, target: Handle, records: Records) -> None:
        work = await self._working()
        work.begin(records)
        work.do(work.publish, target, records)
        if work.has_to_wait:
            await work.room()

    async def get(self, queue: AsyncQueue[Any], timeout: float | None = None) -> AsyncMessage | None:
        found = await (await self._queue(queue))._get(timeout, for_transactions=True)
        if found is not None:
            await self._keep([found])
        return found

    async def get_many(
        self, queue: AsyncQueue[Any], count: int, timeout: float | None = None
    ) -> AsyncMessages:
        found = await (await self._queue(queue))._get_many(count, timeout, for_transactions=True)
        await self._keep(found)
        return found

    async def _queue(self, queue: Any) -> ClusterAsyncQueue[Any]:
        if not isinstance(queue, ClusterAsyncQueue):
            raise foreign(queue)
        self._check_own(queue.name, queue._bus)
        await self._working()
        return queue

    async def _keep(self, messages: Sequence[AsyncMessage]) -> None:
        """Release these messages at the end, unless they are settled before."""
        self._got += cast("Sequence[LentSample]", messages)
        try:
            await self._working()
        except HawserError:
            self._release()
            raise

    async def accept(self, messages: AsyncMessage | Sequence[AsyncMessage]) -> None:
        work = await self._working()
        held, kept = held_of(messages, work.router)
        check_held(held)
        work.do(work.accept, held, kept)

    def _release(self) -> None:
        """Give back messages that were received after the end."""
        got, self._got = self._got, []
        for message in got:
            message._queue_session.take_back(message._held_message)


class ClusterAsyncTransaction(ClusterAsyncWork, AsyncTransaction):
    """Begun by its first use."""

    def __init__(self, bus: AsyncStarter, timeout_seconds: int, is_for_certain: bool = False) -> None:
        super().__init__(bus)
        self._is_for_certain = is_for_certain
        self._timeout_seconds = timeout_seconds
        self._work: OpenTransaction | None = None
        self._is_ended = False

    def __del__(self) -> None:
        if self._work is not None and not self._is_ended:
            self._work.abandon()

    @property
    def id(self) -> str:
        return "" if self._work is None else str(self._work.inner.id)

    @property
    def state(self) -> TransactionState:
        if self._work is None:
            return "rolled back" if self._is_ended else "open"
        return self._work.state

    async def _open(self) -> None:
        await self._begun()

    async def _working(self) -> OpenTransaction:
        work = self._work
        if work is None or self._is_ended:
            work = await self._begun()
        work.check()
        return work

    async def _begun(self) -> OpenTransaction:
        self._check_open()
        if self._work is None:
            client = await self._bus._started()
            # Another task may have begun or ended it meanwhile.
            self._check_open()
            if self._work is None:
                self._work = client.lanes.begin(self._timeout_seconds)
        return self._work

    def _check_open(self) -> None:
        if self._is_ended:
            raise UsageError(
                f"transaction {self.id} has ended: it is {self.state}. Begin another one with "
                "bus.transaction()"
            )

    async def commit_offsets(self, subscription: AsyncSubscription[Any]) -> None:
        if not isinstance(subscription, ClusterAsyncSubscription):
            raise foreign(subscription)
        await subscription._open()
        consumer = subscription._consumer
        assert consumer is not None
        member = member_of(consumer)
        if self._is_ended:
            member.give_back(member.taken(asyncio.current_task()))
        # Even if the transaction can only be rolled back: the subscription then goes back.
        work = await self._begun()
        if member.router is not work.router:
            raise foreign(subscription)
        work.do(work.commit_offsets, member, member.taken(asyncio.current_task()))
        # The transaction has claimed the message, so that it is taken again if this error ends the block.
        member.raise_kept_error()

    async def commit(self) -> None:
        work = await self._begun()
        self._is_ended = True
        commit = work.commit_for_certain if self._is_for_certain else work.commit
        try:
            await commit(lent(self._got))
        finally:
            self._got = []

    async def resolve(self) -> bool:
        if self.state in ("committed", "rolled back"):
            return self.state == "committed"
        work = self._work or await self._begun()
        # Raises Closed if the bus is closed.
        await self._bus._started()
        return await work.resolve()

    async def rollback(self) -> None:
        is_first, self._is_ended = not self._is_ended, True
        if is_first and self._work is not None:
            try:
                await self._work.rollback(lent(self._got))
            finally:
                self._got = []

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self.rollback()
        elif not self._is_ended:
            await self.commit()


async def run_transaction(
    begin: Callable[[], ClusterAsyncTransaction],
    fn: Callable[[AsyncTransaction], Awaitable[Result]],
    retries: int,
) -> Result:
    """As `Bus.run_transaction`, with transactions whose commit is for certain."""
    replay = Replay(retries)
    while True:
        transaction = begin()
        try:
            async with transaction:
                return await fn(transaction)
        except HawserError as error:
            pause_seconds = replay.pause_seconds(error, transaction.state)
        await asyncio.sleep(pause_seconds)
