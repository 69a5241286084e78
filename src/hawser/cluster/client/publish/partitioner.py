"""Publishing to a topic: the choice of the partition, and a producer for each partition.

A message with a key goes to partition `xxh3_64(key) mod partitions` (seed 0), so all messages of a key are in
one partition, in order, whichever clients publish them. Messages without a key fill one partition after the
other, one batch each.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, ClassVar

from xxhash import xxh3_64_intdigest

from hawser.cluster.client.publish.batch import Item
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from hawser.cluster.client.router import Router
from hawser.cluster.wire import TopicEntry, shards_of
from hawser.errors import HawserError, SettingsMismatch
from hawser.record.batch import Compression
from hawser.record.record import Receipt, Record
from hawser.record.rows import Records, Rows

__all__ = ["Partitioner", "compression_of", "partition_of", "split_records"]

_COMPRESSIONS = {None: Compression.NONE, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of messages with this key."""
    return xxh3_64_intdigest(key) % partitions


def compression_of(topic: str, entry: TopicEntry) -> Compression:
    """The compression of a topic; SettingsMismatch if only a newer version of Hawser knows it."""
    name = entry.settings.get("compression")
    for known, compression in _COMPRESSIONS.items():
        if name == known:
            return compression
    raise SettingsMismatch(
        f"topic {topic!r} has compression {name!r}, which this version of Hawser does not know; use the "
        "version that created it"
    )


def split_records(records: Records, partitions: int, keyless: int) -> Mapping[int, Records]:
    """The messages of each partition, in order; those without a key go to `keyless`."""
    if partitions == 1 or Rows.of(records).keys.count(None) == len(records):
        return {keyless: records}
    parts: dict[int, list[Record]] = {}
    for record in records:
        partition = keyless if record.key is None else partition_of(record.key, partitions)
        parts.setdefault(partition, []).append(record)
    return parts


class Partitioner:
    """A publisher: one producer for each partition, all with the same id. `submit` and `split` run in the
    event loop; `hand_over` may be called in any thread."""

    producer: ClassVar[type[PartitionProducer]] = PartitionProducer

    def __init__(self, router: Router, topic: str, entry: TopicEntry, name: str) -> None:
        self.id = f"{name}#{secrets.token_hex(6)}".encode()
        self._partitions = entry.partitions
        self._sticky = secrets.randbelow(entry.partitions)
        compression = compression_of(topic, entry)
        self._producers = [
            self.producer(router, topic, number, shard, self.id, compression)
            for number, shard in enumerate(shards_of(topic, entry))
        ]
        self._loop = router.loop
        self._post = router.post
        self._handed: deque[tuple[Records, Any, float]] = deque()
        self._is_called = False
        self._last_sent_batches = 0

    @property
    def incarnation(self) -> int:
        """The highest incarnation of its producers."""
        return max(producer.incarnation for producer in self._producers)

    def submit(self, records: Records, future: Any, seconds: float, partition: int | None = None) -> None:
        """Publish messages of one partition together; the future gets their receipt."""
        if partition is None:
            key = next(iter(records)).key
            partition = self._keyless() if key is None else partition_of(key, self._partitions)
        self._producers[partition].submit(Item(records, future, seconds, self._loop.time()))

    def _keyless(self) -> int:
        """The partition for messages without a key: the next one once a batch was sent to this one."""
        sent_batches = self._producers[self._sticky].sent_batches
        if sent_batches != self._last_sent_batches:
            self._sticky = (self._sticky + 1) % self._partitions
            self._last_sent_batches = self._producers[self._sticky].sent_batches
        return self._sticky

    def hand_over(self, records: Records, future: Any, seconds: float) -> None:
        """As `submit`, from any thread, in its order. Messages that arrive before the loop's turn share one
        wake-up."""
        try:
            self._handed.append((records, future, seconds))
            if not self._is_called:
                self._is_called = True
                self._post(self._take_over)
        except HawserError as error:
            self._is_called = False
            while handed := self._handed:
                handed.popleft()[1].set_exception(error)
            raise
        except BaseException:
            # Interrupted: the loop may not have been woken, so the next call must wake it.
            self._is_called = False
            self.withdraw(future)
            raise

    def _take_over(self, withdrawn: Any = None) -> None:
        """Submit what was handed over, except the messages of the withdrawn future."""
        # First, so that what is handed over from here on wakes the loop again.
        self._is_called = False
        handed = self._handed
        while handed:
            each = handed.popleft()
            if each[1] is not withdrawn:
                self.submit(*each)

    def withdraw(self, future: Any) -> None:
        """Drop the message of a caller that has gone, unless it was sent. May be called in any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._withdraw, future)

    def _withdraw(self, future: Any) -> None:
        if not future.done():
            future.set_exception(CancelledError())
        self._take_over(future)
        self.drop_cancelled()

    async def receipt(self, future: "asyncio.Future[Receipt]") -> Receipt:
        """Wait for the result of a submitted message. If the wait is cancelled, an unsent message is
        dropped."""
        try:
            return await future
        except asyncio.CancelledError:
            self.drop_cancelled()
            raise

    def drop_cancelled(self) -> None:
        """As `PartitionProducer.drop_cancelled`."""
        for producer in self._producers:
            producer.drop_cancelled()

    def split(self, records: Records) -> Mapping[int, Records]:
        """Split messages by partition, in order; those without a key stay together. Messages handed over
        before are submitted first."""
        self._take_over()
        return split_records(records, self._partitions, self._keyless())

    async def flush(self) -> None:
        """Return when every submitted message is written or failed."""
        self._take_over()
        for producer in self._producers:
            await producer.flush()

    def end(self) -> None:
        """As `PartitionProducer.end`."""
        for producer in self._producers:
            producer.end()
        self._take_over()

    async def close(self) -> None:
        """Fail what is not written yet; call `flush` first."""
        self.end()
        for producer in self._producers:
            await producer.close()
