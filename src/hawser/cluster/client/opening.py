"""What a client has open: a topic or a queue, and everybody who was made from it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hawser.cluster import wire
from hawser.cluster.client import topics
from hawser.cluster.client.producers import Producers

if TYPE_CHECKING:
    from hawser.cluster.client.client import Client, Partition

__all__ = ["Open", "User"]


class User(Protocol):
    """Whoever puts into it or takes from it."""

    async def close(self) -> None: ...


class Open:
    """A topic or queue that this client uses."""

    def __init__(
        self, client: "Client", name: str, entry: wire.TopicEntry, decode: Callable[[Any], Any] | None
    ) -> None:
        self.client = client
        self.router = client.router
        self.name = name
        self.entry = entry
        self.decode = decode
        self._shards = wire.shards_of(name, entry)
        self._users: set[User] = set()
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def partitions(self) -> int:
        return self.entry.partitions

    @property
    def is_gone(self) -> bool:
        """Whether this was deleted, as far as this client knows. It knows once a call got Closed for that
        reason."""
        entry = self.router.map.topics.get(self.name)
        return entry is None or entry.deleted or entry.uuid != self.entry.uuid

    def shard(self, partition: int) -> str:
        return self._shards[partition]

    def use(self, user: User) -> None:
        """Close it together with this."""
        self._users.add(user)

    async def release(self, user: User) -> None:
        """Close it now, after what it has to publish."""
        self._users.discard(user)
        if isinstance(user, Producers):
            await user.flush()
        await user.close()

    def abandon(self, user: User) -> None:
        """From any thread, and at any time: release it if there is still a loop to do so."""
        if user in self._users:
            with suppress(RuntimeError):
                self.router.loop.call_soon_threadsafe(self._begin_release, user)

    def _begin_release(self, user: User) -> None:
        task = self.router.loop.create_task(self.release(user))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def flush(self) -> None:
        """Return when everything that was to be published is settled."""
        producers = [user for user in self._users if isinstance(user, Producers)]
        await asyncio.gather(*(each.flush() for each in producers))

    async def close(self) -> None:
        await asyncio.gather(*(self.release(user) for user in list(self._users)))
        if self._releases:
            await asyncio.wait(self._releases)

    async def look(self) -> "list[Partition]":
        """Each partition as it is now."""
        return await self.client.look(self.name, self.entry)

    async def delete(self) -> None:
        await topics.delete_topic(self.router, self.name, self.entry, self.client.deadline(None))
