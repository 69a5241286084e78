"""Settings: bounds, defaults, capacity, and what contradicts what."""

from typing import Any

import pytest

from hawser.errors import SettingsMismatch, UsageError
from hawser.limits import MAX_DELIVERIES, MAX_SLOTS, QUEUE_SETTING_BOUNDS, SETTING_BOUNDS, required_slots
from hawser.memory.settings import check_same, complete, queue_request, readable, request


def test_defaults_are_those_of_the_contract() -> None:
    assert complete({}) == {
        "kind": "topic",
        "slot_size": 64 << 10,
        "history": 64,
        "depth": 64,
        "max_publishers": 8,
        "max_subscribers": 32,
        "max_held": 4,
        "max_loans": 2,
        "ephemeral": 0,
        "group": 0,
        "schema": "",
    }


@pytest.mark.parametrize("name", SETTING_BOUNDS)
def test_each_number_has_its_bounds(name: str) -> None:
    bound = SETTING_BOUNDS[name]
    for good in (bound.lowest, bound.highest):
        assert request({name: good}).given == {name: good}
    for bad in (bound.lowest - 1, bound.highest + 1, True, 1.0, "1", None):
        with pytest.raises(UsageError, match=name):
            request({name: bad})


@pytest.mark.parametrize(
    "settings", [{"ephemeral": 1}, {"mode": "world"}, {"mode": 0}, {"histroy": 3}, {"retention": 3}]
)
def test_what_is_no_setting_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        request(settings)


def test_settings_of_other_scopes_are_kept_apart() -> None:
    asked = request({"partitions": 4, "history": 3, "compression": None})
    assert asked.given == {"history": 3}
    assert asked.unused == {"partitions": 4, "compression": None}


def test_tracing_is_a_switch_and_no_setting_that_is_compared() -> None:
    assert request({}).trace is None
    asked = [request({"trace": trace}) for trace in (None, "metadata", "payload")]
    assert [(each.given, each.trace) for each in asked] == [({}, 0), ({}, 1), ({}, 2)]
    assert queue_request({"trace": "metadata"}).trace == 1
    for settings in ({"trace": "all"}, {"trace": True}, {"trace": 1}):
        with pytest.raises(UsageError, match='it is "metadata", "payload" or None'):
            request(settings)
    with pytest.raises(UsageError, match="is for topics"):
        queue_request({"trace": "payload"})


def test_slots_follow_from_the_settings() -> None:
    numbers = {name: bound.default for name, bound in SETTING_BOUNDS.items()}
    assert required_slots(numbers) == 64 + 64 + 33 * 4 + 8 * 3


def test_too_many_slots_or_bytes_are_refused() -> None:
    at_most = {"history": 60_000, "depth": MAX_SLOTS - 60_000 - 2 - 2, "max_publishers": 1}
    at_most |= {"max_subscribers": 1, "max_held": 1, "max_loans": 1}
    assert complete({**at_most})["depth"] == at_most["depth"]
    with pytest.raises(UsageError, match="slots"):
        complete({**at_most, "depth": at_most["depth"] + 1})
    with pytest.raises(UsageError, match="slot_size"):
        complete({"slot_size": 1 << 40})


def test_only_what_was_given_can_contradict() -> None:
    existing = complete({"history": 7, "schema": "msgpack:A:1"})
    check_same("t", {}, existing)
    check_same("t", {"history": 7, "group": 0}, existing)
    with pytest.raises(SettingsMismatch) as caught:
        check_same("t", {"history": 8, "ephemeral": 1, "group": 1, "schema": "x"}, existing)
    for part in (
        "'t'",
        "history=8",
        "history=7",
        "ephemeral=True",
        "ephemeral=False",
        "mode='group'",
        "schema='x'",
    ):
        assert part in str(caught.value)


def test_settings_read_as_they_are_written() -> None:
    shown = readable(complete({"group": 1, "ephemeral": 1}))
    assert shown["mode"] == "group"
    assert shown["ephemeral"] is True
    assert "group" not in shown


def test_a_queue_has_the_defaults_of_the_contract() -> None:
    assert readable(complete(queue_request({}).given)) == {
        "slot_size": 64 << 10,
        "capacity": 1024,
        "max_producers": 8,
        "max_consumers": 32,
        "max_held": 64,
        "ephemeral": False,
        "schema": "",
        "mode": "user",
        "max_deliveries": None,
        "dead_letter": None,
        "lease": None,
    }


@pytest.mark.parametrize("name", QUEUE_SETTING_BOUNDS)
def test_each_number_of_a_queue_has_its_bounds(name: str) -> None:
    bound = QUEUE_SETTING_BOUNDS[name]
    for good in (bound.lowest, bound.highest):
        assert readable(queue_request({name: good}).given) == {name: good}
    for bad in (bound.lowest - 1, bound.highest + 1, True, 1.0, "1", None):
        with pytest.raises(UsageError, match=name):
            queue_request({name: bad})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_deliveries", [1, MAX_DELIVERIES, None], [0, -1, MAX_DELIVERIES + 1, True, 1.5, "3"]),
        ("lease", [0.5, 3, None, 1e-9], [0, -1, float("nan"), float("inf"), True, "1", 1e12]),
        ("dead_letter", ["other", None], ["", "/", 5, b"a", "a" * 101]),
        ("ephemeral", [True, False], [1, None]),
        ("mode", ["user", "group"], ["world", None]),
    ],
)
def test_each_other_setting_of_a_queue_comes_back_or_is_refused(
    name: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert readable(queue_request({name: value}).given) == {name: value}
    for value in bad:
        with pytest.raises(UsageError):
            queue_request({name: value})


def test_a_queue_has_no_setting_of_a_topic() -> None:
    for name in ("history", "depth", "max_publishers", "max_loans", "partitions", "kind"):
        with pytest.raises(UsageError, match=f"no setting '{name}'.*capacity"):
            queue_request({name: 1})
    assert queue_request({"replication": 5, "capacity_bytes": None}).unused == {
        "replication": 5,
        "capacity_bytes": None,
    }


def test_too_many_slots_of_a_queue_are_refused_in_its_own_words() -> None:
    with pytest.raises(UsageError, match=r"capacity \+ \(max_consumers \+ 1\) x max_held"):
        complete(queue_request({"capacity": 60_000, "max_consumers": 256}).given)


def test_a_topic_and_a_queue_contradict_each_other() -> None:
    topic, queue = complete({}), complete(queue_request({"capacity": 7}).given)
    with pytest.raises(UsageError, match=r"'t' is a topic, not a queue; open it with bus.topic\(\)"):
        check_same("t", queue_request({}).given, topic)
    with pytest.raises(UsageError, match=r"'q' is a queue, not a topic; open it with bus.queue\(\)"):
        check_same("q", {}, queue)
    with pytest.raises(SettingsMismatch, match=r"queue 'q' exists .*capacity=8 .*capacity=7"):
        check_same("q", queue_request({"capacity": 8}).given, queue)
