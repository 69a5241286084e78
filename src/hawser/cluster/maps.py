"""The map of the shards as a process knows it: merged from what operators say, entry by entry.

A deleted topic stays as an entry that says so, for those who have it open; its shards go at once. Of such
entries only the newest are kept, so that a map does not grow with what there was.
"""

from collections.abc import Container
from typing import Final

from hawser.cluster.wire import Map, NodeEntry, ShardEntry, TopicEntry, shard_of

__all__ = ["MAX_DELETED", "ShardMap", "forget_oldest_deleted", "node_of", "topic_of"]

MAX_DELETED: Final = 256


def node_of(member: str) -> str:
    """The node that a member is on."""
    return member.rpartition(".")[0]


def topic_of(shard: str) -> str:
    """The topic that a shard is a partition of."""
    return shard.rpartition("@")[0]


def forget_oldest_deleted(topics: dict[str, TopicEntry], keep: Container[str] = ()) -> None:
    """Of the deleted topics only the newest stay, and those in `keep`."""
    deleted = [name for name, entry in topics.items() if entry.deleted and name not in keep]
    if len(deleted) > MAX_DELETED:
        deleted.sort(key=lambda name: topics[name].version)
        for name in deleted[:-MAX_DELETED]:
            del topics[name]


class ShardMap:
    """Of two entries of the same thing the one with the higher version stays."""

    def __init__(self) -> None:
        self.cluster = ""
        self.nodes: dict[str, NodeEntry] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.shards: dict[str, ShardEntry] = {}

    def merge(self, other: Map) -> None:
        self.cluster = other.cluster or self.cluster
        self.nodes.update(other.nodes)
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

    def _forget_shards(self, name: str, entry: TopicEntry) -> None:
        for partition in range(entry.partitions):
            self.shards.pop(shard_of(name, entry.uuid, partition), None)

    def _is_gone(self, shard: str) -> bool:
        """Whether it belongs to a topic that is known to be deleted; late news of it change nothing."""
        topic = topic_of(shard)
        entry = self.topics.get(topic)
        return entry is not None and entry.deleted and shard.startswith(f"{topic}@{entry.uuid[:8]}/")

    def extract(self, topic: str | None) -> Map:
        """All of it, or what concerns one topic."""
        if topic is None:
            return Map(self.cluster, self.nodes, self.topics, self.shards)
        entry = self.topics.get(topic)
        if entry is None:
            return Map(self.cluster, self.nodes, {}, {})
        names = [shard_of(topic, entry.uuid, partition) for partition in range(entry.partitions)]
        shards = {name: self.shards[name] for name in names if name in self.shards}
        return Map(self.cluster, self.nodes, {topic: entry}, shards)

    def address(self, member: str | None) -> tuple[str, str] | None:
        """The node that `member` is on, and its address."""
        entry = self.nodes.get(node_of(member)) if member else None
        return None if entry is None or member is None else (node_of(member), entry.address)
