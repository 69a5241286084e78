"""The map of the shards as one process knows it, merged from what operators send, entry by entry.

A deleted topic stays as an entry marked as deleted, for clients that still use it; its shards are removed at
once. Only the newest of these entries are kept, so that the map does not grow for ever.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from hawser.cluster.wire import Map, NodeEntry, ShardEntry, TopicEntry, TopicKind, has_shard, shards_of

__all__ = [
    "MAX_DELETED",
    "Resident",
    "ShardMap",
    "forget_oldest_deleted",
    "node_of",
    "owned_shards",
    "topic_of",
]

MAX_DELETED: Final = 256


def node_of(member: str) -> str:
    """The node of a member."""
    return member.rpartition(".")[0]


def owned_shards(name: str, entry: TopicEntry) -> list[str]:
    """The shards that are created and deleted with it: all but the shard that a colocated queue shares with a
    topic."""
    return [] if entry.shard else shards_of(name, entry)


def topic_of(shard: str) -> str:
    """The name in a shard's name: that of its topic, its queue, or the coordinators of transactions."""
    return shard.rpartition("@")[0]


def forget_oldest_deleted(topics: dict[str, TopicEntry], keep: Container[str] = ()) -> None:
    """Keeps only the newest deleted topics, and those in `keep`."""
    deleted = [name for name, entry in topics.items() if entry.deleted and name not in keep]
    if len(deleted) > MAX_DELETED:
        deleted.sort(key=lambda name: topics[name].version)
        for name in deleted[:-MAX_DELETED]:
            del topics[name]


class Resident(NamedTuple):
    """A topic or queue on a shard."""

    name: str
    entry: TopicEntry


class ShardMap:
    """Keeps the entry with the higher version; all nodes together share one version."""

    def __init__(self) -> None:
        self.cluster = ""
        self.nodes_version = 0
        self.nodes: dict[str, NodeEntry] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.shards: dict[str, ShardEntry] = {}

    def merge(self, other: Map) -> None:
        self.merge_nodes(other)
        for name, topic in other.topics.items():
            known = self.topics.get(name)
            if known is None or known.version <= topic.version:
                self.topics[name] = topic
                if known is not None and known.uuid != topic.uuid:
                    self._forget_shards(name, known)
                if topic.deleted and known != topic:
                    self._forget_shards(name, topic)
        for name, shard in other.shards.items():
            if not self._is_gone(name) and (
                name not in self.shards or self.shards[name].version <= shard.version
            ):
                self.shards[name] = shard
        forget_oldest_deleted(self.topics)

    def merge_nodes(self, other: Map) -> None:
        """As `merge`, for the nodes only."""
        self.cluster = other.cluster or self.cluster
        if other.nodes_version >= self.nodes_version:
            self.nodes, self.nodes_version = dict(other.nodes), other.nodes_version

    def _forget_shards(self, name: str, entry: TopicEntry) -> None:
        for shard in owned_shards(name, entry):
            self.shards.pop(shard, None)

    def _is_gone(self, shard: str) -> bool:
        """Whether it belongs to a topic that is known to be deleted; late entries for it are ignored."""
        topic = topic_of(shard)
        entry = self.topics.get(topic)
        return entry is not None and entry.deleted and has_shard(topic, entry, shard)

    def on(self, shard: str) -> dict[TopicKind, Resident]:
        """The residents of this shard by kind: a topic, a queue, both, or coordinators ("homes"). A deleted
        one, or another one of the same name, does not count. Empty if the map does not know the shard."""
        name = topic_of(shard)
        entry = self.topics.get(name)
        if entry is None or entry.deleted or not has_shard(name, entry, shard):
            return {}
        found = {entry.kind: Resident(name, entry)}
        guest = self.topics.get(entry.guest) if entry.guest else None
        if guest is not None and guest.shard == shard and not guest.deleted:
            found[guest.kind] = Resident(entry.guest, guest)
        return found

    def extract(self, topic: str | None) -> Map:
        """The whole map, or the part about one topic; only the nodes if there is no topic of that name."""
        if topic is None:
            return Map(self.cluster, self.nodes, self.topics, self.shards, self.nodes_version)
        entry = self.topics.get(topic)
        if entry is None:
            return Map(self.cluster, self.nodes, {}, {}, self.nodes_version)
        shards = {name: self.shards[name] for name in shards_of(topic, entry) if name in self.shards}
        return Map(self.cluster, self.nodes, {topic: entry}, shards, self.nodes_version)

    def address(self, member: str | None) -> tuple[str, str] | None:
        """The node that `member` is on, and its address."""
        entry = self.nodes.get(node_of(member)) if member else None
        return None if entry is None or member is None else (node_of(member), entry.address)
