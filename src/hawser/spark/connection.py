"""One connection to a cluster for each process of Spark, kept from task to task.

A worker runs many tasks, and connecting takes longer than a small task. A forked child has none of its
parent's connections. A connection whose calls fail is dropped, because another cluster may have its addresses
now.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from hawser.cluster import wire
from hawser.cluster.client.admin import offsets
from hawser.cluster.client.admin.catalog import open_topic
from hawser.cluster.client.admin.offsets import Bounds, Moment
from hawser.cluster.client.client import Client, addresses_of
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.client.subscribe.range_reader import BatchSlice, LostRange, RangeReader
from hawser.errors import NotFound, OffsetOutOfRange, Unavailable
from hawser.log.state.queue import MESSAGES
from hawser.record.batch import Batch
from hawser.spark.source.offsets import Bounded, Range
from hawser.spark.source.options import Options

__all__ = ["Connection", "connection"]

Result = TypeVar("Result")

# More patient than an interactive program: an election, or the restart of a node, fails no task.
_SETTINGS: Final = ClientSettings(timeout=60.0, connect_timeout=20.0)
# Nodes that have just started may not know of a topic yet.
_APPEAR_SECONDS: Final = 3.0

_connections: dict[tuple[str, ...], "Connection"] = {}
_connecting = threading.Lock()


def _new_lock() -> None:
    """Replace the lock: another thread of the parent may have held it at the fork."""
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def connection(endpoints: str) -> "Connection":
    """The connection of this process to that cluster."""
    addresses = tuple(addresses_of(endpoints))
    with _connecting:
        known = _connections.get(addresses)
        if known is None or not known.is_usable:
            known = _connections[addresses] = Connection(addresses)
        return known


class Connection:
    """The requests of source and sink to a cluster, as blocking calls."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._thread = LoopThread("hawser-spark")
        try:
            self._client = self._thread.call(_started(addresses))
        except BaseException:
            self._thread.stop()
            raise
        self.router = self._client.router
        self.coordinators = self._client.coordinators
        self._is_given_up = False
        self._giving_up = threading.Lock()

    @property
    def is_usable(self) -> bool:
        return self._thread.is_usable and not self._is_given_up

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, done in the event loop of the connection."""
        return self.result(self.begin(work))

    def result(self, future: "Future[Result]") -> Result:
        """The result of a call that `begin` started."""
        try:
            return future.result()
        except Unavailable:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Close it soon, its thread included, without waiting for that."""
        with self._giving_up:
            is_first, self._is_given_up = not self._is_given_up, True
        if is_first:
            self._thread.end_with(self._client.close())

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Begin `work`, without waiting for it."""
        return self._thread.begin(work)

    # Topics.

    def topics(self, options: Options, all_of_them: bool = True) -> dict[str, wire.TopicEntry]:
        """The requested topics, ordered by name. NotFound if there is none, or if one that
        was named is not there and `all_of_them` are needed."""
        return self.call(self._topics(options, all_of_them))

    async def _topics(self, options: Options, all_of_them: bool) -> dict[str, wire.TopicEntry]:
        if options.queue is not None:
            return {options.queue: await self._topic(options.queue, _APPEAR_SECONDS, "queue")}
        found = {}
        names = sorted(options.topics)
        if options.pattern is not None:
            names = [name for name in await self._client.topics() if options.wants(name)]
        is_needed = all_of_them and options.pattern is None
        for name in names:
            try:
                found[name] = await self._topic(name, _APPEAR_SECONDS if is_needed else 0.0)
            except NotFound:
                if is_needed:
                    raise
        if not found and all_of_them:
            raise NotFound(f"no topic matches {options.pattern!r}; see `hawser topic list`")
        return found

    def topic(self, name: str) -> wire.TopicEntry | None:
        """A topic that should exist; None if it does not appear."""
        try:
            return self.call(self._topic(name, _APPEAR_SECONDS))
        except NotFound:
            return None

    def open(self, name: str, kind: wire.TopicKind) -> wire.TopicEntry:
        """A topic or a queue; NotFound if it does not appear."""
        return self.call(self._topic(name, _APPEAR_SECONDS, kind))

    async def _topic(self, name: str, seconds: float, kind: wire.TopicKind = "topic") -> wire.TopicEntry:
        loop = self.router.loop
        until = loop.time() + seconds
        while True:
            try:
                return await open_topic(self.router, name, {}, False, loop.time() + _SETTINGS.timeout, kind)
            except NotFound:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(0.1)

    def bounds(self, topics: dict[str, wire.TopicEntry], options: Options) -> dict[str, Bounded]:
        """The start and end of each requested partition."""
        return self.call(self._bounds(topics, options))

    async def _bounds(self, topics: dict[str, wire.TopicEntry], options: Options) -> dict[str, Bounded]:
        deadline = self.router.loop.time() + _SETTINGS.timeout
        shards = [
            (name, each)
            for name, entry in topics.items()
            for each in options.partitions_of(name, entry.partitions)
        ]
        found = await asyncio.gather(
            *(
                offsets.inspect(
                    self.router,
                    name,
                    wire.shard_of(name, topics[name].uuid, partition),
                    deadline,
                    terms_from=0,
                )
                for name, partition in shards
            )
        )
        bounds: dict[str, Bounded] = {name: Bounded(entry.uuid, {}) for name, entry in topics.items()}
        for (name, partition), each in zip(shards, found, strict=True):
            bounds[name].partitions[partition] = Bounds(each.start, each.end, each.terms)
        return bounds

    def at_times(
        self, topics: dict[str, wire.TopicEntry], times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], Moment]:
        """The offsets of these times, in milliseconds, in their partitions."""
        return self.call(self._at_times(topics, times))

    async def _at_times(
        self, topics: dict[str, wire.TopicEntry], times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], Moment]:
        deadline = self.router.loop.time() + _SETTINGS.timeout
        found = await asyncio.gather(
            *(
                offsets.at_time(
                    self.router,
                    name,
                    wire.shard_of(name, topics[name].uuid, number),
                    min(milliseconds * 1_000_000, (1 << 63) - 1),
                    deadline,
                )
                for (name, number), milliseconds in times.items()
            )
        )
        return dict(zip(times, found, strict=True))

    # Records.

    def read(self, wanted: Range, turn: int) -> Iterator[list[BatchSlice] | LostRange]:
        """The records of a range; the next ones are fetched while these are processed."""
        reader = RangeReader(self.router, *wanted, turn)
        coming = self.begin(reader.next())
        try:
            while (found := self.result(coming)) is not None:
                coming = self.begin(reader.next())
                yield found
        finally:
            coming.cancel()

    def read_queue(self, wanted: Range) -> Iterator[list[BatchSlice] | LostRange]:
        """The messages of a range of a queue, of which all are there; OffsetOutOfRange if one is not."""
        entry = self.open(wanted.topic, "queue")
        first = wanted.first
        while first < wanted.end:
            delivery_batches = self.call(
                self._look(wanted.topic, entry, (first, wanted.end))
            ).delivery_batches
            if not delivery_batches or delivery_batches[0].offset != first:
                raise OffsetOutOfRange(
                    f"message {first} of queue {wanted.topic!r} is done, though a batch of this query has "
                    "claimed it and is not: another program committed or returned its claim. Begin again, "
                    "with a new checkpoint and another claimName"
                )
            for delivery_batch in delivery_batches:
                if delivery_batch.offset == first:
                    yield [BatchSlice(Batch.read(delivery_batch.batch), 0, delivery_batch.count, first)]
                    first += delivery_batch.count

    def queue_end(self, queue: str, entry: wire.TopicEntry) -> int:
        """The offset behind the newest message."""
        return self.call(self._look(queue, entry, None)).end

    async def _look(self, queue: str, entry: wire.TopicEntry, between: tuple[int, int] | None) -> wire.Looked:
        """A queue as it is now, with the messages in a range."""
        (shard,) = wire.shards_of(queue, entry)
        most = 0 if between is None else _SETTINGS.batch_records
        request = wire.QueueLook(shard, MESSAGES, most, _SETTINGS.fetch_bytes, between)
        deadline = self.router.loop.time() + _SETTINGS.timeout
        answer = await self.router.ask_leader(queue, shard, request, f"reading queue {queue!r}", deadline)
        assert isinstance(answer, wire.Looked), answer
        return answer

    def record_bytes(self, wanted: Sequence[Range]) -> list[int]:
        """About how many bytes a record has, by the first batch that is still kept of each range."""
        return self.call(self._record_bytes(wanted))

    async def _record_bytes(self, wanted: Sequence[Range]) -> list[int]:
        return await asyncio.gather(*map(self._record_bytes_of, wanted))

    async def _record_bytes_of(self, wanted: Range) -> int:
        reader = RangeReader(self.router, *wanted, fetch_bytes=1)
        while isinstance(found := await reader.next(), LostRange):
            pass
        return 1 if found is None else max(1, len(found[0].batch.data) // found[0].batch.count)


async def _started(addresses: Sequence[str]) -> Client:
    client = Client(addresses, "spark", _SETTINGS)
    await client.start()
    return client
