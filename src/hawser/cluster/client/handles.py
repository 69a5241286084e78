"""What a client has open: a topic or a queue, and everybody who was made from it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hawser.cluster import wire
from hawser.cluster.client.admin import catalog
from hawser.cluster.client.publish.partitioner import Producers

if TYPE_CHECKING:
    from hawser.cluster.client.client import Client, Partition

__all__ = ["Open", "User"]


class User(Protocol):
    """Puts into a topic or queue, or takes from it. `end` is the part of `close` that waits for nothing:
    calls that wait end, and no work begins any more."""

    def end(self) -> None: ...
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
        self._releases: dict[asyncio.Task[None], User] = {}

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
        """Close it now, after what it has to publish. That goes on if the caller is cancelled."""
        await asyncio.shield(self._begin_release(user))

    async def _release(self, user: User) -> None:
        if isinstance(user, Producers):
            await user.flush()
        await user.close()

    def abandon(self, user: User) -> None:
        """From any thread, and at any time: release it if there is still a loop to do so."""
        if user in self._users:
            with suppress(RuntimeError):
                self.router.loop.call_soon_threadsafe(self._begin_release, user)

    def _begin_release(self, user: User) -> asyncio.Task[None]:
        self._users.discard(user)
        task = self.router.loop.create_task(self._release(user))
        self._releases[task] = user
        task.add_done_callback(self._releases.pop)
        return task

    async def flush(self) -> None:
        """Return when everything that was to be published is settled."""
        producers = [user for user in self._users if isinstance(user, Producers)]
        await asyncio.gather(*(each.flush() for each in producers))

    def end(self) -> None:
        """As that of users: end all of them."""
        for user in (*self._users, *self._releases.values()):
            user.end()

    async def close(self) -> None:
        """Release all users. That goes on if the caller is cancelled."""
        for user in list(self._users):
            self._begin_release(user)
        if self._releases:
            ended, _ = await asyncio.wait(self._releases)
            for task in ended:
                task.result()

    async def look(self) -> "list[Partition]":
        """Each partition as it is now."""
        return await self.client.look(self.name, self.entry)

    async def delete(self) -> None:
        await catalog.delete_topic(self.router, self.name, self.entry, self.client.deadline(None))
