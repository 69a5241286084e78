"""Handles of open topics and queues, which own the publishers, subscriptions and sessions made from them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hawser.cluster import wire
from hawser.cluster.client.admin import catalog
from hawser.cluster.client.publish.partitioner import Partitioner

if TYPE_CHECKING:
    from hawser.cluster.client.client import Client, Partition

__all__ = ["Handle", "Closable"]


class Closable(Protocol):
    """A publisher, subscription or session. `end` is the part of `close` that does not wait: calls that wait
    end, and no work begins after it."""

    def end(self) -> None: ...
    async def close(self) -> None: ...


class Handle:
    """The handle of a topic or queue."""

    def __init__(
        self, client: "Client", name: str, entry: wire.TopicEntry, decode: Callable[[Any], Any] | None
    ) -> None:
        self.client = client
        self.router = client.router
        self.name = name
        self.entry = entry
        self.decode = decode
        self._shards = wire.shards_of(name, entry)
        self._dependents: set[Closable] = set()
        self._releases: dict[asyncio.Task[None], Closable] = {}

    @property
    def partitions(self) -> int:
        return self.entry.partitions

    @property
    def is_gone(self) -> bool:
        """Whether this client knows that it was deleted, as after a call that raised Closed for that
        reason."""
        entry = self.router.map.topics.get(self.name)
        return entry is None or entry.deleted or entry.uuid != self.entry.uuid

    def shard(self, partition: int) -> str:
        return self._shards[partition]

    def use(self, user: Closable) -> None:
        """Close this user together with the handle."""
        self._dependents.add(user)

    async def release(self, user: Closable) -> None:
        """Flush and close a user now; continues if the caller is cancelled."""
        await asyncio.shield(self._begin_release(user))

    async def _release(self, user: Closable) -> None:
        if isinstance(user, Partitioner):
            await user.flush()
        await user.close()

    def abandon(self, user: Closable) -> None:
        """Release a user if the loop still runs. May be called in any thread at any time."""
        if user in self._dependents:
            with suppress(RuntimeError):
                self.router.loop.call_soon_threadsafe(self._begin_release, user)

    def _begin_release(self, user: Closable) -> asyncio.Task[None]:
        self._dependents.discard(user)
        task = self.router.loop.create_task(self._release(user))
        self._releases[task] = user
        task.add_done_callback(self._releases.pop)
        return task

    async def flush(self) -> None:
        """Return when every submitted message is written or failed."""
        partitioner = [user for user in self._dependents if isinstance(user, Partitioner)]
        await asyncio.gather(*(each.flush() for each in partitioner))

    def end(self) -> None:
        """End all users."""
        for user in (*self._dependents, *self._releases.values()):
            user.end()

    async def close(self) -> None:
        """Release all users; continues if the caller is cancelled."""
        for user in list(self._dependents):
            self._begin_release(user)
        if self._releases:
            ended, _ = await asyncio.wait(self._releases)
            for task in ended:
                task.result()

    async def query(self) -> "list[Partition]":
        """The state of each partition."""
        return await self.client.query(self.name, self.entry)

    async def delete(self) -> None:
        await catalog.delete_topic(self.router, self.name, self.entry, self.client.deadline(None))
