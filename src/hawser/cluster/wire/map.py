"""The map of the cluster: its nodes, its topics and queues, and the shards behind them.

The map is a hint and decides nothing: a node that does not lead a shard tells the client which node does."""

from typing import Final, Literal

import msgspec

from hawser.cluster.wire.messages import Body, Count

__all__ = [
    "HOMES",
    "GetMap",
    "Map",
    "NodeEntry",
    "Setting",
    "ShardEntry",
    "TopicEntry",
    "TopicKind",
    "has_shard",
    "shard_of",
    "shards_of",
]


Setting = int | float | str | bool | None


# A name belongs to a topic or a queue. The shards of "homes" are the coordinators of transactions.
TopicKind = Literal["topic", "queue", "homes"]


HOMES: Final = "__tx"


def shard_of(topic: str, uuid: str, partition: int) -> str:
    """The name of the shard that holds a partition of a topic. The uuid is in the name, so a topic that is
    created anew under an old name has other shards."""
    return f"{topic}@{uuid[:8]}/{partition}"


def shards_of(name: str, entry: "TopicEntry") -> list[str]:
    """The shards of a topic or queue, in the order of its partitions."""
    if entry.shard:
        return [entry.shard]
    return [shard_of(name, entry.uuid, partition) for partition in range(entry.partitions)]


def has_shard(name: str, entry: "TopicEntry", shard: str) -> bool:
    """Whether the shard belongs to this topic or queue, and not to an earlier one of the same name."""
    if entry.shard:
        return shard == entry.shard
    partition = shard.removeprefix(f"{name}@{entry.uuid[:8]}/")
    return partition != shard and partition.isdecimal() and int(partition) < entry.partitions


class NodeEntry(msgspec.Struct, frozen=True, array_like=True):
    """A node as the operator knows it; clients reach it at `address`."""

    address: str
    alive: bool


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """A topic or queue of the cluster, and its settings; `deleted` marks a deleted one. A queue has one
    partition. A colocated queue has the only shard of its topic as `shard`, and that topic names it as
    `guest`."""

    version: Count
    uuid: str
    partitions: int
    settings: dict[str, Setting]
    deleted: bool = False
    kind: TopicKind = "topic"
    shard: str = ""
    guest: str = ""


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard: its members, each named after its node, its leader, and how many copies it should have."""

    version: Count
    epoch: Count
    status: str
    leader: str | None
    members: tuple[str, ...]
    change: str | None = None
    copies: Count = 0


class Map(Body, frozen=True, tag="map"):
    """The map of the cluster, or a part of it. Of two versions of an entry the higher one is newer; all nodes
    share one version."""

    cluster: str
    nodes: dict[str, NodeEntry]
    topics: dict[str, TopicEntry]
    shards: dict[str, ShardEntry]
    nodes_version: Count = 0


class GetMap(Body, frozen=True, tag="get map"):
    """Asks for the map of one topic, or of all topics; with an empty name, only for the nodes."""

    topic: str | None = None
