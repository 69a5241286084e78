"""The topics and queues of a cluster in its metadata store: what was created, and what is to be deleted. They
share one namespace."""

import secrets
from typing import Final

import msgspec

from hawser.cluster.stores.store import Conflict, Store
from hawser.cluster.wire import Setting, TopicEntry, TopicKind

__all__ = ["cluster_id", "create_topic", "forget_topic", "list_topics", "mark_deleted"]

_CLUSTER: Final = "cluster"
_TOPICS: Final = "topics/"


class _Topic(msgspec.Struct, frozen=True):
    uuid: str
    partitions: int
    settings: dict[str, Setting]
    deleted: bool = False
    kind: TopicKind = "topic"


def cluster_id(store: Store) -> str:
    """The name of the cluster that this store belongs to, made by whoever asks first."""
    found = store.get(_CLUSTER)
    if found is None:
        made = store.put(_CLUSTER, secrets.token_hex(16).encode(), None)
        found = made.current if isinstance(made, Conflict) else made
    assert found is not None
    return found.data.decode()


def list_topics(store: Store) -> dict[str, TopicEntry]:
    """Every topic, those that are being deleted too."""
    found = store.list(_TOPICS)
    return {key.removeprefix(_TOPICS): _entry(value.data, value.version) for key, value in found.items()}


def create_topic(
    store: Store, name: str, partitions: int, settings: dict[str, Setting], kind: TopicKind
) -> TopicEntry:
    """The topic or queue of this name: a new one, or the one there is."""
    topic = _Topic(secrets.token_hex(16), partitions, settings, kind=kind)
    made = store.put(_TOPICS + name, msgspec.json.encode(topic), None)
    value = made.current if isinstance(made, Conflict) else made
    return (
        create_topic(store, name, partitions, settings, kind)
        if value is None
        else _entry(value.data, value.version)
    )


def mark_deleted(store: Store, name: str) -> TopicEntry | None:
    """From now on the topic is being deleted; None if there is none."""
    value = store.get(_TOPICS + name)
    if value is None:
        return None
    topic = msgspec.json.decode(value.data, type=_Topic)
    if topic.deleted:
        return _entry(value.data, value.version)
    gone = msgspec.structs.replace(topic, deleted=True)
    made = store.put(_TOPICS + name, msgspec.json.encode(gone), value.version)
    return mark_deleted(store, name) if isinstance(made, Conflict) else _entry(made.data, made.version)


def forget_topic(store: Store, name: str, entry: TopicEntry) -> None:
    """Nothing of it is left anywhere."""
    store.delete(_TOPICS + name, entry.version)


def _entry(data: bytes, version: int) -> TopicEntry:
    topic = msgspec.json.decode(data, type=_Topic)
    return TopicEntry(version, topic.uuid, topic.partitions, topic.settings, topic.deleted, topic.kind)
