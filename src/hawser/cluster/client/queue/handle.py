"""The handle of a queue: putting, peeking, sessions of consumers, and its dead letters."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from hawser.cluster import wire
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.publish.queue_producer import UNLIMITED_SECONDS, QueuePublisher
from hawser.cluster.client.queue.session import Make, QueueSession
from hawser.cluster.client.sample import FetchedSample
from hawser.errors import NotFound, UsageError
from hawser.limits import DEAD_LETTER_SUFFIX
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES
from hawser.record.batch import Batch
from hawser.record.record import Receipt
from hawser.record.rows import Records

if TYPE_CHECKING:
    from hawser.cluster.client.client import Client

__all__ = ["QueueHandle"]

_PEEKED_BYTES: Final = 8 << 20


class QueueHandle(Handle):
    """A queue, or its dead letters, which have an index of their own in the same shard."""

    def __init__(
        self,
        client: "Client",
        name: str,
        entry: wire.TopicEntry,
        decode: Callable[[Any], Any] | None,
        subqueue: int = MESSAGES,
    ) -> None:
        super().__init__(client, name, entry, decode)
        self.subqueue = subqueue
        self._dead_letters: QueueHandle | None = None
        self._publisher: QueuePublisher | None = None
        if subqueue == MESSAGES:
            self._publisher = QueuePublisher(self.router, name, entry, client.name)
            self.use(self._publisher)

    @property
    def full_name(self) -> str:
        """The name shown to users: that of dead letters is their queue's with a suffix."""
        return self.name if self.subqueue == MESSAGES else self.name + DEAD_LETTER_SUFFIX

    @property
    def publisher(self) -> QueuePublisher:
        """UsageError for dead letters, into which no client puts."""
        if self._publisher is None:
            raise UsageError(
                f"the dead letters of queue {self.name!r} take no new messages; put the message into the "
                "queue and reject it"
            )
        return self._publisher

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of the queue that receives its dead letters; None if they stay in this shard."""
        name = self.entry.settings.get("dead_letter")
        return name if isinstance(name, str) else None

    async def dead_letters(self, create: bool = False) -> "QueueHandle":
        """The handle of its dead letters. If another queue receives them and does not exist, it is created
        with this queue's settings, or NotFound is raised."""
        if self.dead_letter_queue is None:
            if self._dead_letters is None:
                self._dead_letters = QueueHandle(
                    self.client, self.name, self.entry, self.decode, DEAD_LETTERS
                )
                self.use(self._dead_letters)
            return self._dead_letters
        try:
            return await self.client.open_queue(self.dead_letter_queue, {}, False, self.decode)
        except NotFound:
            if not create:
                raise
        alike = {name: self.entry.settings.get(name) for name in ("replication", "schema", "fields")}
        return await self.client.open_queue(self.dead_letter_queue, alike, True, self.decode)

    # Putting.

    def room_seconds(self, timeout: float | None) -> float:
        """How long a put waits for room."""
        return UNLIMITED_SECONDS if timeout is None else min(timeout, UNLIMITED_SECONDS)

    async def put(self, records: Records, timeout: float | None) -> Receipt:
        """Put all of the messages or none."""
        if not records:
            raise UsageError("a batch has at least one message; there is nothing to put")
        future: asyncio.Future[Receipt] = self.router.loop.create_future()
        self.publisher.submit(records, future, self.room_seconds(timeout))
        return await self.publisher.receipt(future)

    # Getting.

    @property
    def lease_seconds(self) -> float:
        """The lease of a delivered message; infinite if the queue has none."""
        lease = self.entry.settings.get("lease")
        return lease if isinstance(lease, int | float) else inf

    def queue_session(self, make: Make, prefetch: int = 0, for_transactions: bool = False) -> QueueSession:
        """A new session, which this handle closes."""
        queue_session = QueueSession(
            self.router,
            self.name,
            self.shard(0),
            self.subqueue,
            self.client.name,
            make,
            prefetch,
            self.lease_seconds,
            for_transactions,
        )
        self.use(queue_session)
        return queue_session

    # Queries.

    async def delete(self) -> None:
        if self.subqueue == DEAD_LETTERS:
            raise UsageError(
                f"the dead letters of queue {self.name!r} are deleted with it; accept them instead"
            )
        await super().delete()

    async def query_contents(self, most: int = 0, first: int = 0) -> wire.Looked:
        """The queue's state now, and up to `most` of its oldest messages from offset `first` on, as many as
        fit into one answer."""
        request = wire.QueueLook(self.shard(0), self.subqueue, most, _PEEKED_BYTES, first=first)
        answer = await self.router.ask_leader(
            self.name, self.shard(0), request, f"looking at queue {self.name!r}", self.client.deadline(None)
        )
        assert isinstance(answer, wire.Looked), answer
        return answer

    async def peek(self, count: int) -> list[FetchedSample]:
        """Copies of the oldest messages."""
        found: list[FetchedSample] = []
        first, end = 0, 1
        while len(found) < count and first < end:
            looked = await self.query_contents(count - len(found), first)
            first = end = looked.end
            for delivery_batch in looked.delivery_batches:
                batch = Batch.read(delivery_batch.batch)
                publisher = batch.header.producer.decode(errors="replace").rpartition("#")[0]
                for place, record in enumerate(batch.records()):
                    offset = delivery_batch.offset + place
                    found.append(FetchedSample(record, 0, offset, publisher, 0, self.decode))
                    first = offset + 1
        return found
