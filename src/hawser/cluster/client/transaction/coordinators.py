"""The coordinator shards of transactions: a client finds them, and creates them for their first use."""

import time

from hawser.cluster import wire
from hawser.cluster.client.admin import catalog
from hawser.cluster.client.router import Router
from hawser.errors import NotFound
from hawser.transaction.identity import Xid, coordinator_number

__all__ = ["CoordinatorShards", "boot_seconds"]


def boot_seconds() -> float:
    """A clock that runs while the machine sleeps, because the coordinators' memory expires meanwhile, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class CoordinatorShards:
    """The coordinator shards as one client knows them. Lives in its event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._shards: list[str] = []

    async def of(self, xid: Xid, deadline: float) -> str:
        """The shard that coordinates this xid."""
        shards = await self.all(deadline, create=True)
        return shards[coordinator_number(xid, len(shards))]

    async def all(self, deadline: float, create: bool = False) -> list[str]:
        """All of them; none if they do not exist and are not to be created. Their number never changes."""
        if not self._shards:
            try:
                entry = await catalog.open_topic(self._router, wire.HOMES, {}, create, deadline, "homes")
            except NotFound:
                return []
            self._shards = wire.shards_of(wire.HOMES, entry)
        return self._shards
