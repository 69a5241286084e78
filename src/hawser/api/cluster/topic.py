"""Topics on a cluster."""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from hawser.api.cluster.publishing import ClusterPublisher, ClusterPublishing, check_exclusive
from hawser.api.cluster.subscription import ClusterSubscription, check_options
from hawser.api.info import KeptPosition, Participant, PartitionInfo, ReadResult, TopicInfo
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start, check_count
from hawser.api.topic import Topic
from hawser.cluster.client.client import Partition, TopicHandle
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.cluster.client.subscribe.range_reader import TakeResult
from hawser.cluster.shard_map import node_of
from hawser.errors import Closed, UsageError
from hawser.limits import GROUP_PREFIX

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = [
    "ClusterTopic",
    "Owner",
    "group_named",
    "info_of",
    "participants_of",
    "partition_info",
    "read_result",
]

T = TypeVar("T")


class Owner(Protocol):
    """What a topic needs of its bus."""

    name: str
    _thread: LoopThread

    def release_topic(self, topic: "ClusterTopic[Any]") -> None: ...
    def _require_open(self) -> None: ...


class ClusterTopic(ClusterPublishing[T], Topic[T]):
    """A topic of a cluster. Made by `Bus.topic`."""

    def __init__(
        self, bus: Owner, topic: TopicHandle, codec: "Codec[T] | None", unused: dict[str, Any]
    ) -> None:
        self.name = topic.name
        self._bus = bus
        self._thread = bus._thread
        self._topic = topic
        self._codec = codec
        self._unused = unused
        self._closed = False

    def publisher(self, *, exclusive: bool = False) -> ClusterPublisher[T]:
        self._require_open()
        check_exclusive(exclusive)
        return ClusterPublisher(self, self._thread.call(_new_producers(self._topic)))

    def subscribe(
        self,
        *,
        history: int = 0,
        start: Start = None,
        group: str | None = None,
        reliable: Reliable = False,
        resume: bool = False,
        max_held: int | None = None,
        max_lag: int | None = None,
    ) -> ClusterSubscription[T]:
        self._require_open()
        check_options(history, start, group, resume)
        consumer = self._thread.call(self._topic.subscribe(start, history, group))
        return ClusterSubscription(self._topic, consumer, self._thread)

    def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        return self._read(partition, count, after, newest=False)

    def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        return self._read(partition, count, after, newest=True)

    def _read(self, partition: int, count: int, after: int, newest: bool) -> ReadResult:
        self._require_open()
        check_count(count, 0)
        check_count(after, 0, "after")
        return read_result(self._thread.call(self._topic.read_some(partition, count, after, newest)))

    def info(self) -> TopicInfo:
        self._require_open()
        return info_of(self._topic, self._thread.call(self._topic.query()), self._unused)

    def forget(self, name: str) -> bool:
        self._require_open()
        return self._thread.call(self._topic.forget_group(group_named(name)))

    def delete(self, force: bool = False) -> None:
        self._require_open()
        self._thread.call(self._topic.delete())
        self.close()

    def close(self) -> None:
        if not self._closed and not self._thread.is_inherited:
            self._thread.check_may_close()
            self._closed = True
            try:
                if self._thread.is_usable:
                    self._thread.call(self._topic.close())
            finally:
                self._bus.release_topic(self)

    def _producers(self) -> Partitioner:
        self._require_open()
        return self._topic.partitioner

    def _require_open(self) -> None:
        self._bus._require_open()
        if self._closed:
            raise Closed(f"topic {self.name!r} was closed here; open it again with bus.topic()")


async def _new_producers(topic: TopicHandle) -> Partitioner:
    partitioner = topic.new_partitioner()
    topic.use(partitioner)
    return partitioner


def info_of(topic: TopicHandle, partitions: list[Partition], unused: dict[str, Any]) -> TopicInfo:
    """A topic as users see it."""
    known = [each for each in partitions if each.end]
    return TopicInfo(
        name=topic.name,
        uuid=topic.entry.uuid,
        settings={"partitions": topic.partitions, **topic.entry.settings},
        unused=unused,
        head=max((each.end - 1 for each in known), default=0),
        oldest=min((each.start for each in known), default=0),
        participants=participants_of(topic.name, partitions),
        partitions=[partition_info(each) for each in partitions],
        records=[
            KeptPosition(
                name=f"group:{name}" if topic.partitions == 1 else f"group:{name}/{partition.number}",
                mark=group.position - 1,
                durable=True,
                max_lag=0,
                held=bool(group.members),
            )
            for partition in partitions
            for name, group in sorted(partition.groups.items())
        ],
    )


def read_result(found: TakeResult) -> ReadResult:
    """The result of a read. If the read is incomplete, raise its error, which holds the result."""
    result = ReadResult(cast("list[Sample]", found.samples), found.last, found.missed)
    if found.error is not None:
        if result.samples:
            found.error.read = result
        raise found.error
    return result


def group_named(name: str) -> str:
    """The group of a saved position."""
    if not name.startswith(GROUP_PREFIX):
        raise UsageError(f'{name!r} keeps no position on a cluster; groups do: "{GROUP_PREFIX}NAME"')
    return name.removeprefix(GROUP_PREFIX)


def participants_of(topic: str, partitions: list[Partition]) -> list[Participant]:
    """Those who belong to a group: on its home partition all members do, on others the owner."""
    return [
        Participant(
            topic=topic,
            kind="subscriber",
            name=member,
            pid=0,
            uid=0,
            incarnation=group.generation,
            state=f"group {name}",
            alive=True,
            started_ns=0,
            joined_ns=0,
            reliable="durable",
            cursor=group.position - 1,
            count=0,
            missed=0,
            held=0,
            index=partition.number,
        )
        for partition in partitions
        for name, group in sorted(partition.groups.items())
        for member in group.members
    ]


def partition_info(partition: Partition) -> PartitionInfo:
    """A partition as users see it."""
    entry = partition.entry
    return PartitionInfo(
        partition=partition.number,
        shard=partition.shard,
        epoch=0 if entry is None else entry.epoch,
        status="unknown" if entry is None else entry.status,
        leader=node_of(entry.leader) if entry is not None and entry.leader else None,
        members=[] if entry is None else sorted(map(node_of, entry.members)),
        start=partition.start,
        end=partition.end,
    )
