"""Settings of a topic on one host: what was asked for, checked, completed, compared.

Asked-for settings are kept apart from defaults: only what the caller said himself can contradict a
topic that exists.
"""

import operator
from typing import Any, Final, NamedTuple, TypedDict

from hawser.errors import SettingsMismatch, UsageError
from hawser.limits import MAX_REGION_BYTES, MAX_SLOTS, SETTING_BOUNDS, required_slots

__all__ = ["Request", "TopicOptions", "check_same", "complete", "group_of_mode", "readable", "request"]

RegionSettings = dict[str, int | str]

_MODES: Final = ("user", "group")
# Known in other scopes; here they are accepted and reported as unused.
_FOREIGN: Final = frozenset(
    {"partitions", "replication", "retention_bytes", "retention_seconds", "compression", "trace"}
)


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


class Request(NamedTuple):
    """What a caller asked for: settings as a region stores them, and those without meaning here."""

    given: RegionSettings
    unused: dict[str, Any]


def request(settings: dict[str, Any], fingerprint: str | None = None) -> Request:
    """Check each asked-for setting by itself; UsageError names the first wrong one."""
    given: RegionSettings = {}
    unused: dict[str, Any] = {}
    for name, value in settings.items():
        if name in SETTING_BOUNDS:
            given[name] = _bounded(name, value)
        elif name == "ephemeral":
            given[name] = _flag(name, value)
        elif name == "mode":
            given["group"] = group_of_mode(value)
        elif name in _FOREIGN:
            unused[name] = value
        else:
            known = ", ".join((*SETTING_BOUNDS, "ephemeral", "mode", "schema", *sorted(_FOREIGN)))
            raise UsageError(f"a topic has no setting {name!r}; it has {known}")
    if fingerprint is not None:
        given["schema"] = fingerprint
    return Request(given, unused)


def complete(given: RegionSettings) -> RegionSettings:
    """All settings for a new region; UsageError when together they need more than a region can have."""
    numbers = {name: int(given.get(name, bound.default)) for name, bound in SETTING_BOUNDS.items()}
    slots = required_slots(numbers)
    if slots > MAX_SLOTS:
        raise UsageError(
            f"these settings need {slots} slots of at most {MAX_SLOTS}; slots are history + depth + "
            "(max_subscribers + 1) x max_held + max_publishers x (max_loans + 1): lower one of them"
        )
    if slots * numbers["slot_size"] > MAX_REGION_BYTES:
        raise UsageError(
            f"{slots} slots of {numbers['slot_size']} bytes are more than the {MAX_REGION_BYTES} bytes a "
            "topic can have; lower slot_size or the number of slots"
        )
    rest: RegionSettings = {"ephemeral": 0, "group": 0, "schema": ""}
    return {**numbers, **{name: given.get(name, default) for name, default in rest.items()}}


def check_same(topic: str, given: RegionSettings, existing: RegionSettings) -> None:
    """SettingsMismatch naming every asked-for setting that the existing topic has otherwise."""
    asked = readable(given)
    has = readable(existing)
    differences = [
        f"{name}={value!r} was asked for but it has {name}={has[name]!r}"
        for name, value in asked.items()
        if has[name] != value
    ]
    if differences:
        raise SettingsMismatch(
            f"topic {topic!r} exists with other settings: {'; '.join(differences)}. "
            "Leave them out to take the topic as it is, or delete it first"
        )


def readable(settings: RegionSettings) -> dict[str, Any]:
    """Settings as users write them."""
    shown: dict[str, Any] = dict(settings)
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


def _bounded(name: str, value: Any) -> int:
    bound = SETTING_BOUNDS[name]
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is not a whole number")
    if not bound.lowest <= number <= bound.highest:
        raise UsageError(f"{name}={number} is outside {bound.lowest} to {bound.highest}")
    return number


def _flag(name: str, value: Any) -> int:
    if value is not True and value is not False:
        raise UsageError(f"{name}={value!r} is not True or False")
    return int(value)
