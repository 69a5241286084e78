"""Checks of administrative requests: an operator stores nothing that a node or a client could not handle.

Clients check the same before they ask; the operator checks again, because any program can connect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hawser.cluster import wire
from hawser.cluster.shard_map import topic_of
from hawser.cluster.wire import Setting
from hawser.limits import (
    MAX_DELIVERIES,
    MAX_FIELDS_BYTES,
    MAX_LEASE_SECONDS,
    MAX_SCHEMA_BYTES,
    SYSTEM_PREFIX,
)
from hawser.log.state.results import Outcome
from hawser.record.names import check_queue_names, check_topic_name

__all__ = [
    "check_creation",
    "check_deletion",
    "check_host",
    "check_dead_letters",
    "check_nodes",
    "check_transactions",
    "matches_uuid",
    "unnotified_commits",
]

_MOST_PARTITIONS: Final = 1024
_MOST_REPLICAS: Final = 7
_NODES: Final = {
    wire.AdminKind.ELECT: 0,
    wire.AdminKind.TRANSFER: 1,
    wire.AdminKind.CONTRACT: 1,
    wire.AdminKind.EXPAND: 1,
    wire.AdminKind.SWAP: 2,
}


def check_creation(message: wire.Admin) -> None:
    """ValueError unless a topic or queue may have this name and these settings."""
    check_topic_name(message.name)
    kind, known = message.topic_kind, _SETTINGS[message.topic_kind]
    if kind == "homes" and message.name != wire.HOMES:
        raise ValueError(f"the coordinators of transactions are named {wire.HOMES!r}, not {message.name!r}")
    if kind != "homes":
        _check_is_free(message.name)
    most = _MOST_PARTITIONS if kind == "topic" else 1
    if not 1 <= message.partitions <= most:
        raise ValueError(f"partitions={message.partitions}: a {kind} has 1 to {most} partitions")
    for name, value in message.settings.items():
        if name not in known:
            raise ValueError(f"a {kind} has no setting {name!r}; it has {', '.join(known)}")
        is_right, wanted = known[name]
        if not is_right(value):
            raise ValueError(f"{name}={repr(value)[:80]}: {wanted}")
    dead_letters = message.settings.get("dead_letter")
    if isinstance(dead_letters, str):
        _check_is_free(dead_letters)
    if kind == "queue":
        check_queue_names(message.name, dead_letters)
    if message.settings.get("colocate") == message.name:
        raise ValueError(f"queue {message.name!r} cannot be colocated with itself; name a topic")


def _check_is_free(name: str) -> None:
    """ValueError if the name is reserved for the cluster."""
    if name.startswith(SYSTEM_PREFIX):
        raise ValueError(
            f"{name!r} begins with {SYSTEM_PREFIX!r}, as the cluster's own names do; choose another one"
        )


def check_dead_letters(message: wire.Admin, known: Mapping[str, wire.TopicEntry]) -> None:
    """ValueError if the `dead_letter` setting names something that is not a queue."""
    name = message.settings.get("dead_letter")
    dead_letters = known.get(name) if isinstance(name, str) else None
    if dead_letters is not None and dead_letters.kind != "queue" and not dead_letters.deleted:
        raise ValueError(f"dead_letter={name!r} is a {dead_letters.kind}, not a queue; name a queue")


def check_host(message: wire.Admin, host: wire.TopicEntry | None) -> None:
    """ValueError unless the queue can be colocated with this topic."""
    settings, name = message.settings, message.settings.get("colocate")
    if host is None or host.deleted:
        raise ValueError(f"colocate={name!r}: no topic has that name; create it first")
    if host.kind != "topic":
        raise ValueError(
            f"colocate={name!r} is a {host.kind}; a queue is colocated with a topic, so name a topic"
        )
    if host.partitions != 1:
        raise ValueError(
            f"colocate={name!r} has {host.partitions} partitions; a queue needs a topic with one, so "
            "name another topic"
        )
    replication = host.settings.get("replication", 3)
    if settings.get("replication", replication) != replication:
        raise ValueError(
            f"replication={settings['replication']} with colocate={name!r}, which has "
            f"replication={replication}: a colocated queue has its topic's replicas; leave replication out"
        )


def matches_uuid(name: str, uuid: str, entry: wire.TopicEntry | None) -> bool:
    """Whether this entry is the one to delete, and not a newer one of its name. ValueError if the request has
    no uuid."""
    if not uuid:
        raise ValueError(
            f"a deletion names the uuid of the topic or queue {name!r} that it is about, and none is given; "
            "delete it with this version of Hawser"
        )
    return entry is not None and entry.uuid == uuid


def check_deletion(name: str, entry: wire.TopicEntry) -> None:
    """ValueError if the entry cannot be deleted separately."""
    if entry.kind == "homes":
        raise ValueError(f"{name!r} keeps the outcomes of transactions and cannot be deleted")
    if entry.shard:
        topic = topic_of(entry.shard)
        raise ValueError(
            f"queue {name!r} is colocated with topic {topic!r} and is deleted with it; to empty it, "
            "get and accept its messages"
        )


def check_transactions(name: str, entry: wire.TopicEntry, seen: Sequence[wire.TransactionsSeen]) -> None:
    """ValueError if transactions have work there: branches, or commits that other shards have not been
    told."""
    found = {(each.xid, each.incarnation): each.prepared for answer in seen for each in answer.branches}
    committed = sum(map(unnotified_commits, seen))
    if found or committed:
        prepared = sum(found.values())
        raise ValueError(
            f"{entry.kind} {name!r} cannot be deleted yet: unfinished transactions have work there: "
            f"{len(found) - prepared} open, {prepared} prepared and {committed} committed. `hawser tx list` "
            "shows them; delete it when they are over"
        )


def unnotified_commits(seen: wire.TransactionsSeen) -> int:
    """The number of commits decided there that other shards have not been told. Rollbacks need no
    notification and are not counted."""
    return sum(each.outcome == Outcome.COMMITTED for each in seen.records)


def check_nodes(message: wire.Admin) -> None:
    """ValueError unless the request names as many nodes as its kind takes."""
    wanted = _NODES[message.kind]
    if len(message.nodes) != wanted:
        raise ValueError(f"{message.kind.value} takes {wanted} nodes; {len(message.nodes)} given")


def _is_number(value: Setting, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_bound(value: Setting) -> bool:
    return value is None or _is_number(value, (1 << 63) - 1)


def _is_text(value: Setting, most_bytes: int) -> bool:
    return value is None or (isinstance(value, str) and len(value.encode()) <= most_bytes)


def _is_name(value: Setting) -> bool:
    if not isinstance(value, str):
        return value is None
    try:
        check_topic_name(value)
    except ValueError:
        return False
    return True


def _is_lease(value: Setting) -> bool:
    is_seconds = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_seconds and 0 < float(value) <= MAX_LEASE_SECONDS)


_Checks = dict[str, tuple[Callable[[Setting], bool], str]]

_OF_BOTH: Final[_Checks] = {
    "replication": (
        lambda value: _is_number(value, _MOST_REPLICAS),
        f"there are 1 to {_MOST_REPLICAS} replicas",
    ),
    "schema": (
        lambda value: _is_text(value, MAX_SCHEMA_BYTES),
        f"it is text of at most {MAX_SCHEMA_BYTES} bytes, or null",
    ),
    "fields": (
        lambda value: _is_text(value, MAX_FIELDS_BYTES),
        f"it is text of at most {MAX_FIELDS_BYTES} bytes, or null",
    ),
}
_OF_TOPICS: Final[_Checks] = {
    "retention_bytes": (_is_bound, "it is a whole number from 1 on, or null"),
    "retention_seconds": (_is_bound, "it is a whole number from 1 on, or null"),
    "compression": (
        lambda value: value is None or value in ("lz4", "zstd"),
        'it is "lz4", "zstd" or null',
    ),
}
_OF_QUEUES: Final[_Checks] = {
    "capacity_bytes": (_is_bound, "it is a whole number from 1 on, or null"),
    "max_deliveries": (
        lambda value: value is None or _is_number(value, MAX_DELIVERIES),
        f"it is a whole number from 1 to {MAX_DELIVERIES}, or null",
    ),
    "dead_letter": (_is_name, "it is the name of a queue, or null"),
    "colocate": (_is_name, "it is the name of a topic, or null"),
    "lease": (_is_lease, f"it is a number of seconds up to {MAX_LEASE_SECONDS}, or null"),
}
_SETTINGS: Final[dict[wire.TopicKind, _Checks]] = {
    "topic": {**_OF_BOTH, **_OF_TOPICS},
    "queue": {**_OF_BOTH, **_OF_QUEUES},
    "homes": {},
}
