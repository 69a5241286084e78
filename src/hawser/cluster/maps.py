"""The map of the shards as a process knows it: merged from what operators say, entry by entry."""

from hawser.cluster.wire import Map, NodeEntry, ShardEntry, TopicEntry, shard_of

__all__ = ["ShardMap", "node_of", "topic_of"]


def node_of(member: str) -> str:
    """The node that a member is on."""
    return member.rpartition(".")[0]


def topic_of(shard: str) -> str:
    """The topic that a shard is a partition of."""
    return shard.rpartition("@")[0]


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
            if name not in self.topics or self.topics[name].version <= topic.version:
                self.topics[name] = topic
        for name, shard in other.shards.items():
            if name not in self.shards or self.shards[name].version <= shard.version:
                self.shards[name] = shard

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
