"""A client's connection to a cluster, and the handles of the topics and queues opened through it."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import time_ns
from typing import Any, Final, NamedTuple, TypeVar

from hawser.cluster import wire
from hawser.cluster.client.admin import catalog, offsets
from hawser.cluster.client.admin.catalog import delete_group
from hawser.cluster.client.admin.offsets import Place
from hawser.cluster.client.errors import joint_error
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import gather_bounded
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.cluster.client.subscribe.range_reader import RangeReader, TakeResult
from hawser.cluster.client.subscribe.subscription import Consumer
from hawser.cluster.client.transaction.coordinators import CoordinatorShards
from hawser.cluster.client.transaction.transaction import Lanes
from hawser.cluster.client.transaction.xa import Resource
from hawser.cluster.transport import Address, BadAddress, PeerRole
from hawser.errors import Closed, HawserError, OffsetOutOfRange, UsageError
from hawser.limits import is_wait
from hawser.record.metadata import encode_metadata
from hawser.record.payload import as_payload
from hawser.record.record import NO_HEADERS, Receipt, Record
from hawser.record.rows import Records, Rows

__all__ = ["Client", "TopicHandle", "Partition", "addresses_of", "record_of", "records_of"]

Queried = TypeVar("Queried")

_SCHEME: Final = "hawser://"
_LOOK_SECONDS: Final = 2.0
# How long after its timeout a call ends at the latest; and the least time for links to say goodbye.
_LEAVING_SECONDS: Final = 1.0
_GOODBYE_SECONDS: Final = 0.1


def addresses_of(url: str) -> list[str]:
    """The addresses in the URL of a cluster; UsageError if it has none."""
    names = url.removeprefix(_SCHEME).rstrip("/").split(",")
    try:
        addresses = [str(Address.parse(name.strip())) for name in names]
    except BadAddress as error:
        raise UsageError(
            f"{url!r} is not the URL of a cluster: {error}; write hawser://host:port, or several with commas"
        ) from None
    if any(Address.parse(each).port == 0 for each in addresses):
        raise UsageError(f"{url!r} has port 0, on which no node listens; give the port of a node")
    return addresses


def record_of(data: Any, key: Any = None, headers: Mapping[str, bytes] | None = None) -> Record:
    """The record of a message; UsageError if it cannot be published."""
    value = data if type(data) is bytes else bytes(memoryview(as_payload(data)).cast("B"))
    name = None if key is None else _key(key)
    if not headers:
        return Record(value, name, NO_HEADERS, time_ns())
    encode_metadata(name, headers)
    return Record(value, name, {each: bytes(text) for each, text in headers.items()}, time_ns())


def _key(key: Any) -> bytes:
    if type(key) is bytes:
        return key
    encode_metadata(key, None)
    return bytes(key)


def records_of(payloads: Iterable[Any], keys: Iterable[bytes | None] | None) -> Rows:
    """The records of a batch, all with one timestamp. `keys` has one key for each, or is None."""
    values = [
        each if type(each) is bytes else bytes(memoryview(as_payload(each)).cast("B")) for each in payloads
    ]
    count = len(values)
    names: list[bytes | None] = [None] * count
    if keys is not None:
        names = [None if key is None else _key(key) for key in keys]
        if len(names) != count:
            raise UsageError(f"there are {len(names)} keys for {count} messages; give one for each")
    return Rows(values, names, [NO_HEADERS] * count, [time_ns()] * count)


class Partition(NamedTuple):
    """The state of a partition; `start` and `end` are 0 if its leader has not answered."""

    number: int
    shard: str
    entry: wire.ShardEntry | None
    start: int
    end: int
    groups: dict[str, wire.GroupEntry]


class Client:
    """Started and closed in the event loop in which it was created."""

    def __init__(
        self, addresses: Sequence[str], name: str, settings: ClientSettings, role: PeerRole = PeerRole.CLIENT
    ) -> None:
        self.name = name
        self.settings = settings
        self.router = Router(addresses, name, settings, role)
        self.coordinators = CoordinatorShards(self.router)
        self.lanes = Lanes(self.router)
        self.resource = Resource(self.router, self.coordinators, self.lanes.pipelines)
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()

    async def start(self) -> None:
        """Return when a node has answered; Unavailable if none does in time."""
        try:
            await self.router.start(self.settings.connect_seconds)
        except BaseException:
            await self.router.close()
            raise

    async def close(self) -> None:
        """Finish what is being published, then close the links; takes the timeout of one call and
        `_LEAVING_SECONDS` at most. If this is cancelled, calls that wait end all the same."""
        try:
            await self.end_transactions()
            await asyncio.gather(*(handle.close() for handle in list(self._handles)))
            await self.lanes.leave()
            # Nodes that did not answer in that time will not say goodbye either.
            left = self.router.leave_by - self.router.loop.time()
            await self.router.close(max(_GOODBYE_SECONDS, min(_LEAVING_SECONDS, left)))
        finally:
            self.end()

    def end(self) -> None:
        """End the calls that wait, and refuse new ones, because the loop is about to stop."""
        for handle in list(self._handles):
            handle.end()
        self.router.end()

    async def end_transactions(self) -> None:
        """Begin to close: roll back open transactions, while published messages are sent."""
        self.router.leave_by = min(self.router.leave_by, self.deadline(None) + _LEAVING_SECONDS)
        flushes = (handle.flush() for handle in list(self._handles))
        await asyncio.gather(self.lanes.close(), self.resource.close(), *flushes)

    def deadline(self, timeout: float | None) -> float:
        """The deadline of a call that begins now."""
        return self.router.loop.time() + self.seconds(timeout)

    def seconds(self, timeout: float | None) -> float:
        """The timeout of a call, checked; that of the connection for None."""
        if timeout is None:
            return self.settings.timeout
        if not is_wait(timeout):
            raise UsageError("timeout is seconds, 0 or more, or None for that of the connection")
        return timeout

    async def open(
        self, name: str, given: catalog.Settings, create: bool, decode: Callable[[Any], Any] | None
    ) -> "TopicHandle":
        """Open a topic, and create it first if `create` is set and it does not exist."""
        entry = await catalog.open_topic(self.router, name, given, create, self.deadline(None))
        topic = TopicHandle(self, name, entry, decode)
        self._handles.add(topic)
        return topic

    async def open_queue(
        self, name: str, given: catalog.Settings, create: bool, decode: Callable[[Any], Any] | None
    ) -> QueueHandle:
        """Open a queue, as `open` does for topics."""
        entry = await catalog.open_topic(self.router, name, given, create, self.deadline(None), "queue")
        queue = QueueHandle(self, name, entry, decode)
        self._handles.add(queue)
        return queue

    async def topics(self) -> list[str]:
        return await catalog.list_topics(self.router, self.deadline(None))

    async def queues(self) -> list[str]:
        return await catalog.list_topics(self.router, self.deadline(None), "queue")

    async def query(self, name: str, entry: wire.TopicEntry) -> list[Partition]:
        """The state of each partition of a topic, or of a queue."""
        deadline = self.router.loop.time() + min(_LOOK_SECONDS, self.settings.timeout)
        await self.router.refresh(name, deadline)
        queries = [
            self._query_partition_or_empty(name, entry, number, deadline)
            for number in range(entry.partitions)
        ]
        return list(await asyncio.gather(*queries))

    async def _query_partition_or_empty(
        self, name: str, entry: wire.TopicEntry, number: int, deadline: float
    ) -> Partition:
        try:
            return await self._query_partition(name, entry, number, deadline)
        except Closed:
            raise
        except HawserError:
            shard = wire.shards_of(name, entry)[number]
            return Partition(number, shard, self.router.map.shards.get(shard), 0, 0, {})

    async def _query_partition(
        self, name: str, entry: wire.TopicEntry, number: int, deadline: float
    ) -> Partition:
        shard, is_queue = wire.shards_of(name, entry)[number], entry.kind == "queue"
        found = await offsets.inspect(self.router, name, shard, deadline, with_groups=True, queue=is_queue)
        return Partition(
            number, shard, self.router.map.shards.get(shard), found.start, found.end, found.groups
        )

    async def query_topics(self, deadline: float) -> dict[str, list[Partition]]:
        """The partitions of all topics, none of which is opened. Unavailable unless every partition answers
        by the deadline."""
        names = await catalog.list_topics(self.router, deadline)
        return await self._of_all(names, self._query_partitions, deadline)

    async def _query_partitions(self, name: str, entry: wire.TopicEntry, deadline: float) -> list[Partition]:
        queries = [self._query_partition(name, entry, number, deadline) for number in range(entry.partitions)]
        return list(await asyncio.gather(*queries))

    async def query_holders(self, deadline: float) -> dict[str, dict[str, int]]:
        """The number of messages that each session of each queue holds. Unavailable unless every queue
        answers by the deadline."""
        names = await catalog.list_topics(self.router, deadline, "queue")
        return await self._of_all(names, self._query_holders_of, deadline)

    async def _query_holders_of(self, name: str, entry: wire.TopicEntry, deadline: float) -> dict[str, int]:
        request = wire.QueueLook(wire.shards_of(name, entry)[0])
        what = f"looking at queue {name!r}"
        answer = await self.router.ask_leader(name, request.shard, request, what, deadline)
        assert isinstance(answer, wire.Looked), answer
        return answer.holders

    async def _of_all(
        self,
        names: Sequence[str],
        query: Callable[[str, wire.TopicEntry, float], Coroutine[Any, Any, Queried]],
        deadline: float,
    ) -> dict[str, Queried]:
        """The results of one query for each of these; topics and queues that are deleted meanwhile are left
        out."""
        known = {name: self.router.map.topics.get(name) for name in names}
        there = {name: entry for name, entry in known.items() if entry is not None}
        found = await gather_bounded([query(name, entry, deadline) for name, entry in there.items()])
        result = {}
        for name, each in zip(there, found, strict=True):
            if isinstance(each, Closed):
                continue
            if isinstance(each, BaseException):
                raise each
            result[name] = each
        return result


class TopicHandle(Handle):
    def __init__(
        self, client: Client, name: str, entry: wire.TopicEntry, decode: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(client, name, entry, decode)
        self.partitioner = self.new_partitioner()
        self.use(self.partitioner)

    def new_partitioner(self) -> Partitioner:
        """A new publisher."""
        return Partitioner(self.router, self.name, self.entry, self.client.name)

    # Publishing.

    async def publish(self, partitioner: Partitioner, record: Record, timeout: float | None) -> Receipt:
        future: asyncio.Future[Receipt] = self.router.loop.create_future()
        partitioner.submit([record], future, self.client.seconds(timeout))
        return await partitioner.receipt(future)

    async def publish_many(
        self, partitioner: Partitioner, records: Records, timeout: float | None
    ) -> list[Receipt]:
        """Publish all or none in each partition. One error for all that failed, once every result is
        known."""
        if not records:
            raise UsageError("a batch has at least one message; there is nothing to publish")
        seconds = self.client.seconds(timeout)
        futures: list[asyncio.Future[Receipt]] = []
        for partition, part in partitioner.split(records).items():
            futures.append(self.router.loop.create_future())
            partitioner.submit(part, futures[-1], seconds, partition)
        try:
            settled = await asyncio.gather(*futures, return_exceptions=True)
        except asyncio.CancelledError:
            partitioner.drop_cancelled()
            raise
        receipts = [each for each in settled if isinstance(each, Receipt)]
        errors: list[HawserError] = []
        for each in settled:
            if isinstance(each, HawserError):
                errors.append(each)
            elif isinstance(each, BaseException):
                raise each
        if errors:
            raise joint_error(errors, sum(receipt.count for receipt in receipts))
        return receipts

    # Reading.

    async def subscribe(self, start: Place, history: int, group: str | None = None) -> Consumer:
        """Subscribe to every partition from `start`, or from `history` records before now; with a group, to
        this member's share of the partitions from the group's positions."""
        if group is not None:
            place = (start, history)
            member = GroupMember(
                self.router, self.name, self.entry, self.decode, group, self.client.name, place
            )
            self.use(member)
            try:
                await member.start()
            except BaseException:
                await self.release(member)
                raise
            return member
        deadline = self.client.deadline(None)
        starts = await asyncio.gather(
            *(
                offsets.resolve(self.router, self.name, self.shard(each), start, history, deadline)
                for each in range(self.partitions)
            )
        )
        consumer = Consumer(self.router, self.name, self.entry.uuid, self.decode)
        for partition, offset in enumerate(starts):
            consumer.read(partition, offset)
        self.use(consumer)
        return consumer

    async def read_some(self, partition: int, count: int, after: int, newest: bool) -> TakeResult:
        """Up to `count` records behind offset `after`; fewer only if the partition had no more when the call
        began."""
        if not 0 <= partition < self.partitions:
            raise UsageError(f"topic {self.name!r} has no partition {partition}; it has {self.partitions}")
        deadline = self.client.deadline(None)
        last, missed = after, 0
        while True:
            bounds = await offsets.inspect(self.router, self.name, self.shard(partition), deadline)
            if after >= bounds.end:
                raise OffsetOutOfRange(
                    f"topic {self.name!r}, partition {partition}: there is no record {after} to read after; "
                    f"the log ends at record {bounds.end - 1}. If you have read it, the log was put back, as "
                    "by a restored backup; choose where to continue"
                )
            missed += max(0, bounds.start - (last + 1))
            last = max(last, bounds.start - 1)
            first = min(last + 1, bounds.end)
            if newest:
                first = max(first, bounds.end - count)
            wanted = min(count, bounds.end - first)
            if wanted <= 0:
                return TakeResult([], last, missed)
            reader = RangeReader(self.router, self.name, self.entry.uuid, partition, first, bounds.end)
            found = await reader.take(wanted, deadline, self.decode)
            missed += found.missed
            if found.samples or found.error is not None:
                return found._replace(missed=missed)
            # Retention removed all of them meanwhile, so there are newer records.
            last = found.last

    # The topic itself.

    async def forget_group(self, group: str) -> bool:
        """Delete a group and its positions; whether it existed."""
        return await delete_group(self.router, self.name, self.entry, group, self.client.deadline(None))
