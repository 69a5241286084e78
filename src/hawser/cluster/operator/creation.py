"""What is made in the store when somebody asks for a topic, a queue, or the homes of transactions."""

from collections.abc import Collection
from typing import Final

import msgspec

from hawser.cluster.operator.checks import check_host, check_letters
from hawser.cluster.operator.placement import place
from hawser.cluster.operator.topics import claim_shard, create_topic, list_topics
from hawser.cluster.stores.store import Store
from hawser.cluster.wire import Admin, TopicEntry
from hawser.errors import Unavailable

__all__ = ["create", "homes_of"]

_MOST_COPIES_OF_HOMES: Final = 3


def homes_of(message: Admin, homes: int, nodes: Collection[str]) -> Admin:
    """The homes of a cluster of these nodes, as they are to be made."""
    settings = {"replication": min(_MOST_COPIES_OF_HOMES, len(nodes))}
    return msgspec.structs.replace(message, partitions=homes, settings=settings)


def create(store: Store, message: Admin, alive: Collection[str]) -> TopicEntry:
    """What has this name: a new one, or the one there is, also if it is just being deleted. ValueError if a
    new one cannot be as it is wanted, or has no place on the nodes that are alive; for homes, which nobody
    can do without, that is Unavailable, and is asked again."""
    known = list_topics(store)
    check_letters(message, known)
    entry = known.get(message.name)
    if entry is not None:
        return entry
    topic, shard, settings = message.settings.get("colocate"), "", message.settings
    if isinstance(topic, str):
        host = known.get(topic)
        check_host(message, host)
        assert host is not None
        found = claim_shard(store, topic, host.uuid, message.name)
        if found is None:
            raise ValueError(f"colocate={topic!r}: another queue lives with that topic; name another topic")
        shard, settings = found, {**settings, "replication": host.settings.get("replication", 3)}
    else:
        replication = settings.get("replication", 3)
        assert isinstance(replication, int)
        if message.topic_kind == "homes" and len(alive) < replication:
            raise Unavailable(
                f"the homes of transactions are made on {replication} nodes, and {len(alive)} are alive; "
                "start the others"
            )
        place(replication, alive, {})
    return create_topic(store, message.name, message.partitions, settings, message.topic_kind, shard)
