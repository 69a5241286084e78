"""The catalog of a cluster: opening, creating, listing and deleting topics and queues, and deleting
groups."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff
from hawser.cluster.client.router import Router
from hawser.errors import NotFound, Rejected, SettingsMismatch, Unavailable, UsageError
from hawser.limits import MAX_DELIVERIES, MAX_LEASE_SECONDS, SYSTEM_PREFIX
from hawser.log.entry import Kind
from hawser.log.state import results
from hawser.log.state.commands import GroupDelete, encode_command
from hawser.log.state.queue import CAPACITY_BYTES
from hawser.log.state.results import decode_result
from hawser.record.names import check_queue_names, check_topic_name

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = [
    "check_queue_settings",
    "check_settings",
    "delete_group",
    "delete_topic",
    "list_topics",
    "open_topic",
]

Settings = dict[str, wire.Setting]

_TOPIC_DEFAULTS: Final[Settings] = {
    "replication": 3,
    "retention_bytes": None,
    "retention_seconds": None,
    "compression": None,
    "schema": None,
}
_QUEUE_DEFAULTS: Final[Settings] = {
    "replication": 3,
    "capacity_bytes": CAPACITY_BYTES,
    "max_deliveries": None,
    "dead_letter": None,
    "lease": None,
    "colocate": None,
    "schema": None,
}
_DEFAULTS: Final[dict[wire.TopicKind, Settings]] = {
    "topic": _TOPIC_DEFAULTS,
    "queue": _QUEUE_DEFAULTS,
    # The operator knows its settings.
    "homes": {},
}
# Settings of one host's topics, which a cluster accepts and reports as unused.
_FOREIGN: Final = frozenset(
    {"slot_size", "history", "depth", "max_publishers", "max_subscribers", "max_held", "max_loans"}
    | {"ephemeral", "mode", "trace"}
)
_FOREIGN_TO_QUEUES: Final = frozenset(
    {"slot_size", "capacity", "max_producers", "max_consumers", "max_held", "ephemeral", "mode", "trace"}
)
_LOOK_SECONDS: Final = 2.0
_MOST: Final = {"partitions": 1024, "replication": 7}


def check_settings(asked: dict[str, Any], codec: "Codec[Any] | None") -> tuple[Settings, dict[str, Any]]:
    """The settings of a topic as they are stored, and those that a cluster does not use. UsageError names the
    first wrong one."""
    given: Settings = {}
    unused: dict[str, Any] = {}
    for name, value in asked.items():
        if name in _FOREIGN:
            unused[name] = value
        elif name == "compression":
            if value not in (None, "lz4", "zstd"):
                raise UsageError(f'compression={value!r} is not "lz4", "zstd" or None')
            given[name] = value
        elif name in _MOST:
            given[name] = _number(name, value, _MOST[name])
        elif name in _TOPIC_DEFAULTS:
            given[name] = None if value is None else _number(name, value, (1 << 63) - 1)
        else:
            known = ", ".join(("partitions", *_TOPIC_DEFAULTS, *sorted(_FOREIGN)))
            raise UsageError(f"a topic has no setting {name!r}; it has {known}")
    _add_schema(given, codec)
    return given, unused


def check_queue_settings(
    asked: dict[str, Any], codec: "Codec[Any] | None"
) -> tuple[Settings, dict[str, Any]]:
    """As `check_settings`, for a queue."""
    given: Settings = {}
    unused: dict[str, Any] = {}
    for name, value in asked.items():
        if name in _FOREIGN_TO_QUEUES:
            unused[name] = value
        elif name not in _QUEUE_DEFAULTS or name == "schema":
            known = ", ".join((*_QUEUE_DEFAULTS, *sorted(_FOREIGN_TO_QUEUES)))
            raise UsageError(f"a queue has no setting {name!r}; it has {known}")
        elif value is None and name == "capacity_bytes":
            continue
        elif value is None and name != "replication":
            given[name] = None
        elif name == "lease":
            given[name] = _lease(value)
        elif name in ("dead_letter", "colocate"):
            given[name] = _name(value, name)
        else:
            most = {**_MOST, "max_deliveries": MAX_DELIVERIES}
            given[name] = _number(name, value, most.get(name, (1 << 63) - 1))
    _add_schema(given, codec)
    return given, unused


def _add_schema(given: Settings, codec: "Codec[Any] | None") -> None:
    if codec is not None:
        given["schema"] = codec.fingerprint
        if codec.fields is not None:
            given["fields"] = codec.fields


def _name(value: Any, what: str = "name") -> str:
    name = check_topic_name(value, what)
    if name.startswith(SYSTEM_PREFIX):
        raise UsageError(
            f"{name!r} begins with {SYSTEM_PREFIX!r}, as a cluster's own names do; choose another one"
        )
    return name


def _lease(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_LEASE_SECONDS:
        raise UsageError(f"lease={value!r} is not a number of seconds, above 0 and at most a year, or None")
    return value


def _number(name: str, value: Any, most: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not (isinstance(value, float) and value.is_integer()):
        raise UsageError(f"{name}={value!r} is not a whole number")
    if not 1 <= value <= most:
        raise UsageError(f"{name}={value} is outside 1 to {most}")
    return int(value)


async def open_topic(
    router: Router,
    name: str,
    given: Settings,
    create: bool,
    deadline: float,
    kind: wire.TopicKind = "topic",
) -> wire.TopicEntry:
    """The topic or queue; created if it does not exist and `create` is set. SettingsMismatch if it has other
    settings, UsageError if it is of the other kind. The coordinator shards are opened with `wire.HOMES` and
    no settings."""
    if kind != "homes":
        _name(name)
    if kind == "queue":
        check_queue_names(name, given.get("dead_letter"))
    await _know(router, deadline)
    entry = await _find(router, name, deadline)
    if entry is None and not create:
        # The node that answered first may be cut off from the operator, and have an old map.
        await router.hear_late(deadline)
        entry = await _find(router, name, deadline)
    if entry is None:
        if not create:
            raise NotFound(f"there is no {kind} {name!r} in this cluster; see `hawser {kind} list`")
        entry = await _created(router, name, given, deadline, kind)
    if entry.kind != kind:
        raise UsageError(f"{name!r} is a {entry.kind}, not a {kind}; open it with bus.{entry.kind}()")
    _check_same(name, given, entry)
    return entry


async def _created(
    router: Router, name: str, given: Settings, deadline: float, kind: wire.TopicKind
) -> wire.TopicEntry:
    try:
        await _create(router, name, given, deadline, kind)
    except Rejected as refused:
        # It may exist all the same: nodes that have just started do not know it yet.
        try:
            return await _appear(router, name, min(deadline, router.loop.time() + _LOOK_SECONDS))
        except Unavailable:
            raise refused from None
    return await _appear(router, name, deadline)


async def _create(router: Router, name: str, given: Settings, deadline: float, kind: wire.TopicKind) -> None:
    asked = {key: value for key, value in given.items() if value is not None}
    partitions = asked.pop("partitions", 1)
    assert isinstance(partitions, int)
    settings = {**_DEFAULTS[kind], **asked}
    if "colocate" in asked and "replication" not in asked:
        # A colocated queue has the replication of its topic.
        del settings["replication"]
    request = wire.Admin(wire.AdminKind.CREATE, name, (), partitions, settings, kind)
    answer = await router.ask_any(request, f"creating {kind} {name!r}", deadline)
    if not isinstance(answer, wire.AdminDone) or not answer.done:
        raise Rejected(f"{kind} {name!r} was not created: {getattr(answer, 'text', answer)}")


async def _know(router: Router, deadline: float) -> None:
    """Return when the router has a map."""
    backoff = Backoff(router.settings)
    while not await router.refresh(None, deadline):
        if (left := deadline - router.loop.time()) <= 0:
            raise Unavailable(f"no node of the cluster answers: {router.trouble()}")
        await asyncio.sleep(min(backoff.next(), left))


async def _find(router: Router, name: str, deadline: float) -> wire.TopicEntry | None:
    """The topic, if it exists and all its shards are known."""
    await router.refresh(name, deadline)
    entry = router.map.topics.get(name)
    if entry is None or entry.deleted:
        return None
    return entry if all(shard in router.map.shards for shard in wire.shards_of(name, entry)) else None


async def _appear(router: Router, name: str, deadline: float) -> wire.TopicEntry:
    backoff = Backoff(router.settings)
    while (entry := await _find(router, name, deadline)) is None:
        if (left := deadline - router.loop.time()) <= 0:
            raise Unavailable(f"{name!r} was created, but no node that answers knows it yet; open it again")
        await asyncio.sleep(min(backoff.next(), left))
    return entry


def _check_same(name: str, given: Settings, entry: wire.TopicEntry) -> None:
    has = {**_DEFAULTS[entry.kind], **entry.settings, "partitions": entry.partitions}
    differences = [
        f"{key}={value!r} was asked for but it has {key}={has[key]!r}"
        for key, value in given.items()
        # The fields follow from the schema.
        if key != "fields" and has[key] != value
    ]
    if differences:
        raise SettingsMismatch(
            f"{entry.kind} {name!r} exists with other settings: {'; '.join(differences)}. "
            f"Leave them out to take the {entry.kind} as it is, or delete it first"
        )


async def list_topics(router: Router, deadline: float, kind: wire.TopicKind = "topic") -> list[str]:
    """Names of all topics, or of all queues, sorted."""
    if not await router.refresh(None, deadline):
        raise Unavailable(f"no node of the cluster answers: {router.trouble()}")
    found = router.map.topics.items()
    return sorted(name for name, entry in found if not entry.deleted and entry.kind == kind)


async def delete_topic(router: Router, name: str, entry: wire.TopicEntry, deadline: float) -> None:
    """Delete this topic or queue; return when nodes know that it is gone, also if another client deleted it.
    Unavailable or OutcomeUnknown at the deadline. A new one of the same name stays."""
    what = f"deleting {entry.kind} {name!r}"
    request = wire.Admin(wire.AdminKind.DELETE, name, uuid=entry.uuid)
    with suppress(NotFound):
        await router.ask_any(request, what, deadline)
    backoff = Backoff(router.settings)
    while True:
        has_heard = await router.refresh(name, deadline)
        known = router.map.topics.get(name)
        if has_heard and (known is None or known.deleted or known.uuid != entry.uuid):
            return
        if (left := deadline - router.loop.time()) <= 0:
            error = Unavailable(
                f"{entry.kind} {name!r} is deleted, but no node that answers knows it yet; delete it again "
                "to wait until one does"
            )
            error.outcome = "applied"
            raise error
        await asyncio.sleep(min(backoff.next(), left))


def _not_forgotten(what: str, result: results.Rejected) -> Rejected:
    text = result.text
    if result.reason is results.Reason.LOCKED:
        text = "a prepared transaction is about to move it; forget it when that has ended"
    error = Rejected(f"{what}: {text}")
    error.retryable = result.retryable
    return error


async def delete_group(
    router: Router, topic: str, entry: wire.TopicEntry, group: str, deadline: float
) -> bool:
    """Delete a group and its positions; whether it existed. OutcomeUnknown if an answer is lost: a repeat
    could delete a group that was created since. Rejected while a transaction is about to move the group."""
    existed = False
    for partition in range(entry.partitions):
        shard = wire.shard_of(topic, entry.uuid, partition)
        request = wire.Execute(shard, Kind.GROUP_DELETE, encode_command(GroupDelete(group)))
        what = f"forgetting group {group!r} of topic {topic!r}"
        answer = await router.ask_leader(topic, shard, request, what, deadline, may_repeat=False)
        assert isinstance(answer, wire.Executed), answer
        result = decode_result(answer.result)
        if isinstance(result, results.Rejected):
            raise _not_forgotten(what, result)
        assert isinstance(result, results.Deleted), result
        existed = existed or result.existed
    return existed
