"""Publishing batches under stamps of the caller's own, for a producer whose place the topic itself keeps.

What became of a batch is always certain in the end, because asking again is harmless: the shard answers a
stamp that it knows with what is there under it, and refuses one that is older than the newest.
"""

from typing import NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.handles import Handle
from hawser.errors import Full, OutcomeUnknown, UsageError
from hawser.log.state.results import Accepted, Reason, Rejected, Repeated, decode_result
from hawser.record.batch import Batch, Compression

__all__ = ["AppendResult", "Newest", "ProducerState", "StampedPartition"]


class Newest(NamedTuple):
    """The newest batch of a producer."""

    incarnation: int
    first_offset: int
    records: int


class ProducerState(NamedTuple):
    """A partition begins at offset `start`, which is 1 until something was trimmed, and this is the newest
    batch of a producer in it; None if the partition knows nothing of the producer."""

    start: int
    newest: Newest | None


class AppendResult(NamedTuple):
    """So many records, from offset `first_offset` on, are in the topic under the stamp; if not `is_new`, they
    were there before, and may be others than those that were sent."""

    first_offset: int
    records: int
    is_new: bool


class StampedPartition:
    """One partition of a topic, or a queue, which has one. Everything happens in the event loop of the
    client."""

    def __init__(self, topic: Handle, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._shard = topic.shard(partition)
        name = topic.entry.settings.get("compression")
        self._compression = Compression.NONE if name is None else Compression[str(name).upper()]

    @property
    def _name(self) -> str:
        if self._topic.entry.kind == "queue":
            return f"queue {self._topic.name!r}"
        return f"topic {self._topic.name!r}, partition {self._partition}"

    @property
    def uuid(self) -> str:
        """Of the topic or queue."""
        return self._topic.entry.uuid

    async def producer_state(self, producer: bytes, timeout: float) -> ProducerState:
        """What is true now, by the leader."""
        request = wire.Inspect(self._shard, producer=producer, queue=self._topic.entry.kind == "queue")
        answer = await self._ask(request, f"looking at {self._name}", timeout)
        assert isinstance(answer, wire.Inspected), answer
        return ProducerState(answer.start, None if answer.newest is None else Newest(*answer.newest))

    async def publish(self, batch: Batch, timeout: float, follows: int = 0) -> AppendResult | None:
        """What is in the topic under the stamp of this batch, on the disks of a majority; None if the newest
        stamp there is newer, or its batch does not end right before sample `follows`: then this batch is not
        there. After an error it may be sent again; Full says that a queue has no room for it."""
        make = wire.QueuePut if self._topic.entry.kind == "queue" else wire.Publish
        request = make(self._shard, bytes(self._compressed(batch).data), follows)
        answer = await self._ask(request, f"publishing to {self._name}", timeout)
        assert isinstance(answer, wire.Executed), answer
        result = decode_result(answer.result)
        if isinstance(result, Accepted | Repeated):
            return AppendResult(result.first_offset, result.count, isinstance(result, Accepted))
        assert isinstance(result, Rejected), result
        if result.reason in (Reason.FENCED, Reason.GAP):
            return None
        if result.reason is Reason.QUEUE_FULL:
            raise Full(f"putting into {self._name}: {result.text}")
        raise OutcomeUnknown(f"publishing to {self._name}: {result.text}")

    def _compressed(self, batch: Batch) -> Batch:
        """As the topic wants it, unless it would become too large for a batch by that."""
        if self._compression is Compression.NONE:
            return batch
        try:
            return Batch.of_arrow(batch.to_arrow(), batch.stamp, self._compression)
        except UsageError:
            return batch

    async def _ask(
        self, request: "wire.Inspect | wire.Publish | wire.QueuePut", what: str, timeout: float
    ) -> wire.Answer:
        router = self._topic.router
        return await router.ask_leader(
            self._topic.name, self._shard, request, what, router.loop.time() + timeout
        )
