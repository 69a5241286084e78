"""The API for event loops on a cluster: the client in the caller's own loop.

`topic`, `publisher` and `subscribe` give objects that are opened by their first use.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hawser.api.aio.bus import AsyncBus, AsyncTopic
from hawser.api.aio.transaction import AsyncTransaction
from hawser.api.bus import anonymous_name
from hawser.api.cluster.aio.publishing import Once
from hawser.api.cluster.aio.queue import ClusterAsyncQueue
from hawser.api.cluster.aio.topic import ClusterAsyncTopic
from hawser.api.cluster.aio.transaction import ClusterAsyncTransaction, run_transaction
from hawser.api.cluster.aio.xa import ClusterAsyncXA
from hawser.api.cluster.bus import settings_of
from hawser.api.cluster.queue import participants
from hawser.api.cluster.transaction import check_transaction_timeout
from hawser.api.info import DomainFile, Participant, Recovered
from hawser.cluster.client.client import Client, addresses_of
from hawser.memory.names import check_bus_name

__all__ = ["ClusterAsyncBus"]

T = TypeVar("T")


class ClusterAsyncBus(AsyncBus):
    """A connection to a cluster, in the event loop that uses it first."""

    def __init__(self, url: str, *, name: str | None = None, **options: Any) -> None:
        self._name = check_bus_name(name) if name is not None else anonymous_name()
        self._addresses = addresses_of(url)
        self._settings = settings_of(options)
        self._client: Client | None = None
        self._topics: dict[tuple[str, Any], ClusterAsyncTopic[Any]] = {}
        # All that were made. Weak: publishes in progress refer to their topic.
        self._made: weakref.WeakSet[ClusterAsyncTopic[Any]] = weakref.WeakSet()
        self._queues: dict[tuple[str, Any], ClusterAsyncQueue[Any]] = {}
        self._xa: ClusterAsyncXA | None = None
        self._once = Once()

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
        if self._client is None or self._once.is_closed:
            await self._open()
        assert self._client is not None
        return self._client

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> AsyncTopic[Any]:
        asked = ClusterAsyncTopic[Any](self, name, schema, create, settings)
        known = self._topics.get((name, schema))
        if known is not None and known._serves(asked):
            known._unused.update(asked._unused)
            return known
        self._made.add(asked)
        self._topics[name, schema] = asked
        return asked

    def _forget(self, topic: ClusterAsyncTopic[Any]) -> None:
        self._topics = {key: each for key, each in self._topics.items() if each is not topic}

    def _queue(
        self, name: str, schema: Any, create: bool, settings: dict[str, Any]
    ) -> ClusterAsyncQueue[Any]:
        asked = ClusterAsyncQueue[Any](self, name, schema, create, settings)
        known = self._queues.get((name, schema))
        if known is not None and known._serves(asked):
            known._unused.update(asked._unused)
            return known
        self._queues[name, schema] = asked
        return asked

    def _forget_queue(self, queue: ClusterAsyncQueue[Any]) -> None:
        self._queues = {key: each for key, each in self._queues.items() if each is not queue}

    async def queues(self) -> list[str]:
        return await (await self._started()).queues()

    async def topics(self) -> list[str]:
        return await (await self._started()).topics()

    def transaction(self, timeout: float | None = None) -> ClusterAsyncTransaction:
        return ClusterAsyncTransaction(self, check_transaction_timeout(timeout))

    async def run_transaction(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        retries: int = 5,
        *,
        timeout: float | None = None,
    ) -> T:
        seconds = check_transaction_timeout(timeout)
        return await run_transaction(lambda: ClusterAsyncTransaction(self, seconds, True), fn, retries)

    @property
    def xa(self) -> ClusterAsyncXA:
        if self._xa is None:
            self._xa = ClusterAsyncXA(self)
        return self._xa

    async def files(self) -> list[DomainFile]:
        return []

    async def participants(self) -> list[Participant]:
        return await participants(await self._started())

    async def recover(self) -> list[Recovered]:
        return []

    async def close(self) -> None:
        if not self._once.is_closed:
            if self._client is not None:
                await self._client.end_transactions()
            opened = [*self._made, *self._queues.values()]
            await asyncio.gather(*(each.close() for each in opened))
        await self._once.close(self._leave)

    async def _leave(self) -> None:
        if self._client is not None:
            await self._client.close()
