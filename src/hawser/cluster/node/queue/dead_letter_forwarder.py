"""Dead letters of the queues that this node leads, on their way to queues of other names.

The rule by which each arrives once is that of `hawser.log.queue.dead_letters`; here are the journeys. The
node is a client of its own cluster, once there is something to send, and says that it is a node: others put
nothing under the stamps of letters. While the other queue is full, or away, or cannot be made, letters stay
at home.
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
# After what went wrong.
_PAUSE_SECONDS: Final = 1.0


class DeadLetterForwarder:
    """Of one node, in its event loop; `addresses` are those of the cluster's nodes."""

    def __init__(self, node: str, addresses: Callable[[], Sequence[str]]) -> None:
        self._node = node
        self._addresses = addresses
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._under_way: set[str] = set()
        # What was wrong last, said once for each shard.
        self._troubles: dict[str, str] = {}
        self._background = Background()

    def send(self, shard: Shard) -> None:
        """Send the letters of a shard that this node leads, unless they are on their way."""
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
                text = "shard %s: its dead letters stay with it: %s"
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
                # Of a name that no node has: these links carry nothing of the protocol of nodes.
                name = f"letters of {self._node}"
                client = Client(self._addresses(), name, ClientSettings(), PeerRole.NODE)
                await client.start()
                self._client = client
            return self._client

    async def close(self) -> None:
        self._background.cancel()
        if self._client is not None:
            await self._client.close()
