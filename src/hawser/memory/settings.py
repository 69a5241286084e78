"""Settings of a topic or queue on one host: checked, completed with defaults, compared.

Given settings are kept apart from defaults, because only given ones can contradict an existing topic. A
region stores topics and queues under the same names of settings: a queue is a ring without history whose
publishers and subscribers are its producers and consumers. Giving `trace` sets it; it is never compared.
"""

import operator
from typing import Any, Final, NamedTuple, TypedDict

from hawser.errors import SettingsMismatch, UsageError
from hawser.limits import (
    MAX_DELIVERIES,
    MAX_LEASE_SECONDS,
    MAX_REGION_BYTES,
    MAX_SLOTS,
    QUEUE_SETTING_BOUNDS,
    SETTING_BOUNDS,
    Bound,
    required_slots,
)
from hawser.record.names import check_topic_name

__all__ = [
    "QueueOptions",
    "RegionSettings",
    "Request",
    "TRACE_LEVELS",
    "TopicOptions",
    "check_same",
    "check_trace_of_queue",
    "complete",
    "group_of_mode",
    "kind_of",
    "queue_request",
    "readable",
    "request",
    "trace_level",
]

RegionSettings = dict[str, int | str]

_MODES: Final = ("user", "group")
# By the level that a region stores; the last one is temporary tracing.
TRACE_LEVELS: Final = (None, "metadata", "payload", "metadata")
# Settings of clusters; here they are accepted and reported as unused.
_FOREIGN: Final = frozenset(
    {"partitions", "replication", "retention_bytes", "retention_seconds", "compression"}
)
_FOREIGN_TO_QUEUES: Final = frozenset({"replication", "capacity_bytes", "colocate"})
# A queue's settings, and their names in a region.
_STORED: Final = {"capacity": "depth", "max_producers": "max_publishers", "max_consumers": "max_subscribers"}
# Further settings of a queue's region: one slot for each producer to write into, and a spare one.
_FIXED: Final = {"history": 0, "max_loans": 1}
_NANOSECONDS: Final = 1_000_000_000


class TopicOptions(TypedDict, total=False):
    """The settings `Bus.topic` takes besides `schema`."""

    slot_size: int
    history: int
    depth: int
    max_publishers: int
    max_subscribers: int
    max_held: int
    max_loans: int
    ephemeral: bool
    mode: str
    partitions: int
    replication: int
    retention_bytes: int | None
    retention_seconds: float | None
    compression: str | None
    trace: str | None


class QueueOptions(TypedDict, total=False):
    """The settings `Bus.queue` takes besides `schema`."""

    max_deliveries: int | None
    dead_letter: str | None
    lease: float | None
    slot_size: int
    capacity: int
    max_producers: int
    max_consumers: int
    max_held: int
    ephemeral: bool
    mode: str
    replication: int
    capacity_bytes: int | None
    colocate: str | None
    trace: str | None


class Request(NamedTuple):
    """The checked settings of a caller: those that a region stores, the unused ones, and the trace level: 0
    for no tracing, None to leave it unchanged."""

    given: RegionSettings
    unused: dict[str, Any]
    trace: int | None


def request(settings: dict[str, Any], fingerprint: str | None = None) -> Request:
    """Check each given setting of a topic by itself; UsageError names the first invalid one."""
    given: RegionSettings = {}
    unused: dict[str, Any] = {}
    trace: int | None = None
    for name, value in settings.items():
        if name in SETTING_BOUNDS:
            given[name] = _bounded(name, value, SETTING_BOUNDS[name])
        elif name == "ephemeral":
            given[name] = _flag(name, value)
        elif name == "mode":
            given["group"] = group_of_mode(value)
        elif name == "trace":
            trace = trace_level(value)
        elif name in _FOREIGN:
            unused[name] = value
        else:
            known = ", ".join((*SETTING_BOUNDS, "ephemeral", "mode", "schema", "trace", *sorted(_FOREIGN)))
            raise UsageError(f"a topic has no setting {name!r}; it has {known}")
    if fingerprint is not None:
        given["schema"] = fingerprint
    return Request(given, unused, trace)


def queue_request(settings: dict[str, Any], fingerprint: str | None = None) -> Request:
    """As `request`, for a queue."""
    own = ("max_deliveries", "dead_letter", "lease")
    numbers = {name: value for name, value in settings.items() if name in QUEUE_SETTING_BOUNDS}
    rest = {name: value for name, value in settings.items() if name not in {*numbers, *own}}
    unused = {name: rest.pop(name) for name in _FOREIGN_TO_QUEUES & rest.keys()}
    unknown = rest.keys() - {"ephemeral", "mode", "trace"}
    if unknown:
        more = ("ephemeral", "mode", "schema", "trace")
        known = ", ".join((*own, *QUEUE_SETTING_BOUNDS, *more, *_FOREIGN_TO_QUEUES))
        raise UsageError(f"a queue has no setting {sorted(unknown)[0]!r}; it has {known}")
    given, _, trace = request(rest, fingerprint)
    if trace is not None:
        check_trace_of_queue(trace)
    given["kind"] = "queue"
    for name, value in numbers.items():
        given[_STORED.get(name, name)] = _bounded(name, value, QUEUE_SETTING_BOUNDS[name])
    if "max_deliveries" in settings:
        given["max_deliveries"] = _deliveries(settings["max_deliveries"])
    if "dead_letter" in settings:
        dead_letters = settings["dead_letter"]
        given["dead_letter"] = "" if dead_letters is None else check_topic_name(dead_letters, "dead_letter")
    if "lease" in settings:
        given["lease_ns"] = _lease(settings["lease"])
    return Request(given, unused, trace)


def kind_of(settings: RegionSettings) -> str:
    """The kind of region with these settings: "topic" or "queue"."""
    return str(settings.get("kind", "topic"))


def complete(given: RegionSettings) -> RegionSettings:
    """All settings of a new region; UsageError if together they exceed the limits of a region."""
    kind = kind_of(given)
    numbers = {name: int(given.get(name, default)) for name, default in _defaults(kind).items()}
    slots = required_slots(numbers)
    if slots > MAX_SLOTS:
        raise UsageError(
            f"these settings need {slots} slots of at most {MAX_SLOTS}; slots are {_SLOTS[kind]}: lower one "
            "of them"
        )
    if slots * numbers["slot_size"] > MAX_REGION_BYTES:
        raise UsageError(
            f"{slots} slots of {numbers['slot_size']} bytes are more than the {MAX_REGION_BYTES} bytes a "
            f"{kind} can have; lower slot_size or the number of slots"
        )
    rest: RegionSettings = {"kind": kind, "ephemeral": 0, "group": 0, "schema": ""}
    if kind == "queue":
        rest |= {"max_deliveries": 0, "dead_letter": "", "lease_ns": 0}
    return {**numbers, **{name: given.get(name, default) for name, default in rest.items()}}


def check_same(name: str, given: RegionSettings, existing: RegionSettings) -> None:
    """Raises SettingsMismatch with every given setting that differs from the existing topic, UsageError if
    the kind differs."""
    kind = kind_of(existing)
    if kind_of(given) != kind:
        raise UsageError(f"{name!r} is a {kind}, not a {kind_of(given)}; open it with bus.{kind}()")
    asked = readable(given)
    has = readable(existing)
    differences = [
        f"{setting}={value!r} was asked for but it has {setting}={has[setting]!r}"
        for setting, value in asked.items()
        if has[setting] != value
    ]
    if differences:
        raise SettingsMismatch(
            f"{kind} {name!r} exists with other settings: {'; '.join(differences)}. "
            f"Leave them out to take the {kind} as it is, or delete it first"
        )


def readable(settings: RegionSettings) -> dict[str, Any]:
    """Settings as users write them."""
    shown: dict[str, Any] = {name: value for name, value in settings.items() if name != "kind"}
    if kind_of(settings) == "queue":
        shown = _readable_of_queue(shown)
    if "ephemeral" in shown:
        shown["ephemeral"] = bool(shown["ephemeral"])
    if "group" in shown:
        shown["mode"] = _MODES[int(shown.pop("group"))]
    return shown


def group_of_mode(mode: Any) -> int:
    """1 for a mode that shares with a group, 0 for the user alone."""
    if mode not in _MODES:
        raise UsageError(f'mode={mode!r} is not known; it is "user" or "group"')
    return _MODES.index(mode)


def trace_level(trace: Any) -> int:
    """The trace level as a region stores it; 0 for None."""
    if trace not in TRACE_LEVELS:
        raise UsageError(f'trace={trace!r} is not known; it is "metadata", "payload" or None')
    return TRACE_LEVELS.index(trace)


def check_trace_of_queue(level: int) -> None:
    """Raises UsageError for payload tracing, which queues do not have."""
    if TRACE_LEVELS[level] == "payload":
        raise UsageError(
            'trace="payload" is for topics; trace a queue with "metadata", and record its messages with '
            "`hawser agent --record`"
        )


_SLOTS: Final = {
    "topic": "history + depth + (max_subscribers + 1) x max_held + max_publishers x (max_loans + 1)",
    "queue": "capacity + (max_consumers + 1) x max_held + max_producers x 2",
}


def _defaults(kind: str) -> dict[str, int]:
    if kind == "topic":
        return {name: bound.default for name, bound in SETTING_BOUNDS.items()}
    own = {_STORED.get(name, name): bound.default for name, bound in QUEUE_SETTING_BOUNDS.items()}
    return {name: {**own, **_FIXED}[name] for name in SETTING_BOUNDS}


def _readable_of_queue(stored: dict[str, Any]) -> dict[str, Any]:
    shown_as = {region: name for name, region in _STORED.items()}
    shown = {shown_as.get(name, name): value for name, value in stored.items() if name not in _FIXED}
    if "max_deliveries" in shown:
        shown["max_deliveries"] = shown["max_deliveries"] or None
    if "dead_letter" in shown:
        shown["dead_letter"] = shown["dead_letter"] or None
    if "lease_ns" in shown:
        shown["lease"] = shown.pop("lease_ns") / _NANOSECONDS or None
    return shown


def _bounded(name: str, value: Any, bound: Bound) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is not a whole number")
    if not bound.lowest <= number <= bound.highest:
        raise UsageError(f"{name}={number} is outside {bound.lowest} to {bound.highest}")
    return number


def _deliveries(value: Any) -> int:
    """The most deliveries; 0 for no limit."""
    return 0 if value is None else _bounded("max_deliveries", value, Bound(1, MAX_DELIVERIES, 1))


def _lease(value: Any) -> int:
    """The lease in nanoseconds; 0 for none."""
    if value is None:
        return 0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_LEASE_SECONDS:
        raise UsageError(f"lease={value!r} is not a number of seconds, above 0 and at most a year, or None")
    return max(1, round(value * _NANOSECONDS))


def _flag(name: str, value: Any) -> int:
    if value is not True and value is not False:
        raise UsageError(f"{name}={value!r} is not True or False")
    return int(value)
