"""Publishing batches under stamps of the caller, for a producer whose progress the topic itself records.

The outcome of a batch can always be learned, because a repeat is harmless: the shard answers a known stamp
with the records that it has under it, and refuses a stamp that is older than the newest.
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
    """The start offset of a partition, which is 1 until something is trimmed, and the newest batch of a
    producer in it; None if the partition does not know the producer."""

    start: int
    newest: Newest | None


class AppendResult(NamedTuple):
    """The topic has `records` records from `first_offset` on under the stamp. Unless `is_new` they were there
    before, and may differ from those that were sent."""

    first_offset: int
    records: int
    is_new: bool


class StampedPartition:
    """One partition of a topic, or a queue, which has one. Lives in the event loop."""

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
        """The producer's state in this partition, as the leader knows it now."""
        request = wire.Inspect(self._shard, producer=producer, queue=self._topic.entry.kind == "queue")
        answer = await self._ask(request, f"looking at {self._name}", timeout)
        assert isinstance(answer, wire.Inspected), answer
        return ProducerState(answer.start, None if answer.newest is None else Newest(*answer.newest))

    async def publish(self, batch: Batch, timeout: float, follows: int = 0) -> AppendResult | None:
        """Write a batch on the disks of a majority, or learn what the topic has under its stamp. None if the
        topic has a newer stamp, or the newest batch does not end right before sample `follows`: then this
        batch is not in it. After an error the batch may be sent again. Full if a queue has no room."""
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
        """The batch in the topic's compression; uncompressed if that made it too large."""
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
