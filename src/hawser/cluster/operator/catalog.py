"""The catalog: the records of topics and queues in the metadata store. Topics and queues share one namespace.

A queue may be colocated with a topic. The topic's record names it first, as its guest, and then its own
record is made, with the shard; so of two queues that want the same place one gets it. A queue whose topic is
gone or names another guest is orphaned, and any operator that finds it deletes it.
"""

import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from hawser.cluster.shard_map import topic_of
from hawser.cluster.stores.store import Conflict, Store
from hawser.cluster.wire import Setting, TopicEntry, TopicKind, has_shard, shard_of

__all__ = [
    "claim_shard",
    "cluster_id",
    "create_topic",
    "forget_topic",
    "is_orphaned_queue",
    "list_topics",
    "mark_deleted",
    "store_nodes",
]

_CLUSTER: Final = "cluster"
_NODES: Final = "nodes"
_TOPICS: Final = "topics/"


class _Topic(msgspec.Struct, frozen=True):
    uuid: str
    partitions: int
    settings: dict[str, Setting]
    deleted: bool = False
    kind: TopicKind = "topic"
    shard: str = ""
    guest: str = ""


_decode = msgspec.json.Decoder(_Topic).decode


def cluster_id(store: Store) -> str:
    """The id of the cluster that this store belongs to; the first operator makes it."""
    found = store.get(_CLUSTER)
    if found is None:
        made = store.put(_CLUSTER, secrets.token_hex(16).encode(), None)
        found = made.current if isinstance(made, Conflict) else made
    assert found is not None
    return found.data.decode()


def store_nodes(store: Store, nodes: Mapping[str, str]) -> int:
    """The version of this list of nodes and addresses, which replaces the stored one if it differs. Nodes and
    clients follow the list with the highest version."""
    found = store.get(_NODES)
    data = msgspec.json.encode(nodes, order="sorted")
    if found is not None and found.data == data:
        return found.version
    made = store.put(_NODES, data, None if found is None else found.version)
    return store_nodes(store, nodes) if isinstance(made, Conflict) else made.version


def list_topics(store: Store) -> dict[str, TopicEntry]:
    """All topics and queues, also those that are being deleted."""
    found = store.list(_TOPICS)
    return {key.removeprefix(_TOPICS): _entry(value.data, value.version) for key, value in found.items()}


def create_topic(
    store: Store,
    name: str,
    partitions: int,
    settings: dict[str, Setting],
    kind: TopicKind,
    shard: str = "",
) -> TopicEntry:
    """The topic or queue of this name: a new one, or the existing one. `shard` is the claimed shard of the
    topic that a queue is colocated with."""
    topic = _Topic(secrets.token_hex(16), partitions, settings, kind=kind, shard=shard)
    made = store.put(_TOPICS + name, msgspec.json.encode(topic), None)
    value = made.current if isinstance(made, Conflict) else made
    if value is None:
        return create_topic(store, name, partitions, settings, kind, shard)
    return _entry(value.data, value.version)


def claim_shard(store: Store, name: str, uuid: str, guest: str) -> str | None:
    """The only shard of this very topic, claimed for the queue `guest`; None if the topic is gone or has
    another guest. A claim without a queue is taken over."""
    value = store.get(_TOPICS + name)
    topic = None if value is None else _decode(value.data)
    if value is None or topic is None or topic.deleted or topic.uuid != uuid:
        return None
    shard = shard_of(name, uuid, 0)
    if topic.guest == guest:
        return shard
    other = store.get(_TOPICS + topic.guest) if topic.guest else None
    if other is not None and _decode(other.data).shard == shard:
        return None
    claimed = msgspec.structs.replace(topic, guest=guest)
    made = store.put(_TOPICS + name, msgspec.json.encode(claimed), value.version)
    return claim_shard(store, name, uuid, guest) if isinstance(made, Conflict) else shard


def is_orphaned_queue(name: str, entry: TopicEntry, topics: Mapping[str, TopicEntry]) -> bool:
    """Whether it is a queue colocated with a topic that is gone or has another guest."""
    if not entry.shard:
        return False
    topic = topic_of(entry.shard)
    host = topics.get(topic)
    is_there = host is not None and not host.deleted and has_shard(topic, host, entry.shard)
    return not (is_there and host is not None and host.guest == name)


def mark_deleted(store: Store, name: str, uuid: str) -> TopicEntry | None:
    """Marks this very topic as being deleted; None if it is gone."""
    value = store.get(_TOPICS + name)
    topic = None if value is None else _decode(value.data)
    if value is None or topic is None or topic.uuid != uuid:
        return None
    if topic.deleted:
        return _entry(value.data, value.version)
    gone = msgspec.structs.replace(topic, deleted=True)
    made = store.put(_TOPICS + name, msgspec.json.encode(gone), value.version)
    return mark_deleted(store, name, uuid) if isinstance(made, Conflict) else _entry(made.data, made.version)


def forget_topic(store: Store, name: str, entry: TopicEntry) -> None:
    """Removes its record, once nothing of it is left."""
    store.delete(_TOPICS + name, entry.version)


def _entry(data: bytes, version: int) -> TopicEntry:
    topic = _decode(data)
    return TopicEntry(
        version,
        topic.uuid,
        topic.partitions,
        topic.settings,
        topic.deleted,
        topic.kind,
        topic.shard,
        topic.guest,
    )
