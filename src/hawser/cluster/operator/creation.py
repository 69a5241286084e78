"""The creation of topics, queues and transaction coordinators: their records in the store, and the nodes of
their shards.

A new shard is placed on the nodes with the fewest shards, and led where the fewest are led.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from hawser.cluster.operator.catalog import claim_shard, create_topic, list_topics
from hawser.cluster.operator.validation import check_dead_letters, check_host
from hawser.cluster.shard_map import node_of
from hawser.cluster.stores.store import Store
from hawser.cluster.wire import Admin, TopicEntry
from hawser.errors import Unavailable

__all__ = ["create", "coordinators_of", "place"]

_MOST_COPIES_OF_COORDINATORS: Final = 3


def coordinators_of(message: Admin, homes: int, nodes: Collection[str]) -> Admin:
    """The request for the coordinators of transactions, with their number and replication for a cluster of
    these nodes."""
    settings = {"replication": min(_MOST_COPIES_OF_COORDINATORS, len(nodes))}
    return msgspec.structs.replace(message, partitions=homes, settings=settings)


def create(store: Store, message: Admin, alive: Collection[str]) -> TopicEntry:
    """The record of this name: a new one, or the existing one, also if it is being deleted. ValueError if the
    request is not valid or too few nodes are alive. For coordinators too few nodes are Unavailable, and the
    client retries."""
    known = list_topics(store)
    check_dead_letters(message, known)
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
            raise ValueError(
                f"colocate={topic!r}: another queue is colocated with that topic; name another topic"
            )
        shard, settings = found, {**settings, "replication": host.settings.get("replication", 3)}
    else:
        replication = settings.get("replication", 3)
        assert isinstance(replication, int)
        if message.topic_kind == "homes" and len(alive) < replication:
            raise Unavailable(
                f"the coordinators of transactions need {replication} nodes, and {len(alive)} are alive; "
                "start the others"
            )
        place(replication, alive, {})
    return create_topic(store, message.name, message.partitions, settings, message.topic_kind, shard)


def place(replication: int, alive: Iterable[str], shards: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """`replication` of the nodes that are alive, the first leader in front. `shards` has the members of all
    shards. ValueError if too few nodes are alive."""
    nodes = sorted(alive)
    if len(nodes) < replication:
        raise ValueError(
            f"{replication} replicas need {replication} nodes, and {len(nodes)} are alive: start more nodes, "
            "or ask for fewer replicas"
        )
    holds = Counter(node_of(member) for members in shards.values() for member in members)
    leads = Counter(node_of(members[0]) for members in shards.values() if members)
    chosen = sorted(nodes, key=lambda node: (holds[node], node))[:replication]
    return tuple(sorted(chosen, key=lambda node: (leads[node], node)))
