"""Sends the dead letters of the queues that this node leads to the queues that their `dead_letter` settings
name.

The node is a client of its own cluster for this; its links have the role of a node, because only nodes may
use the producer names of dead letters. `hawser.log.queue.dead_letters` makes each dead letter arrive once.
While the other queue is full, cannot be reached or cannot be created, the dead letters stay in their own
queue, and the forwarder retries.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from hawser.cluster.background import Background
from hawser.cluster.client.client import Client
from hawser.cluster.client.publish.stamped import StampedPartition
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.node.shard import Shard
from hawser.cluster.transport import PeerRole
from hawser.cluster.wire import Failed
from hawser.errors import Full, HawserError
from hawser.log.entry import Kind
from hawser.log.queue.dead_letters import next_dead_letters, sent

__all__ = ["DeadLetterForwarder"]

_log = logging.getLogger("hawser.cluster.node")

_SEND_SECONDS: Final = 5.0
# The pause after an error.
_PAUSE_SECONDS: Final = 1.0


class DeadLetterForwarder:
    """The forwarder of one node, in its event loop; `addresses` are those of the cluster's nodes."""

    def __init__(self, node: str, addresses: Callable[[], Sequence[str]]) -> None:
        self._node = node
        self._addresses = addresses
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._under_way: set[str] = set()
        # The last error of each shard; it is logged once.
        self._troubles: dict[str, str] = {}
        self._background = Background()

    def send(self, shard: Shard) -> None:
        """Sends the dead letters of a shard that this node leads, unless they are being sent."""
        if shard.name not in self._under_way:
            self._under_way.add(shard.name)
            self._background.start(self._send_from(shard))

    async def _send_from(self, shard: Shard) -> None:
        try:
            await self._send_all(shard)
            self._troubles.pop(shard.name, None)
        except Exception as error:
            if self._troubles.get(shard.name) != str(error):
                self._troubles[shard.name] = str(error)
                level = logging.INFO if isinstance(error, Full) else logging.WARNING
                unforeseen = None if isinstance(error, HawserError) else error
                text = "shard %s: its dead letters cannot be forwarded yet: %s"
                _log.log(level, text, shard.name, error, exc_info=unforeseen)
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._under_way.discard(shard.name)

    async def _send_all(self, shard: Shard) -> None:
        delivery = shard.current_delivery
        if delivery is None:
            return
        client = await self._started()
        queue = await client.open_queue(delivery.queue, {}, False, None)
        target = await queue.dead_letters(create=True)
        try:
            partition = StampedPartition(target, 0)
            replica = shard.replica
            while shard.leads:
                batch = next_dead_letters(replica.machine, replica.entry, shard.name)
                if batch is None:
                    break
                landed = await partition.publish(batch, _SEND_SECONDS)
                count = batch.count if landed is None else landed.records
                if isinstance(await shard.execute(Kind.QUEUE_SETTLE, sent(batch, count)), Failed):
                    break
        finally:
            await target.close()
            await queue.close()

    async def _started(self) -> Client:
        async with self._opening:
            if self._client is None:
                # No node has this name: these links carry nothing of the nodes' protocol.
                name = f"dead letters of {self._node}"
                client = Client(self._addresses(), name, ClientSettings(), PeerRole.NODE)
                await client.start()
                self._client = client
            return self._client

    async def close(self) -> None:
        self._background.cancel()
        if self._client is not None:
            await self._client.close()
