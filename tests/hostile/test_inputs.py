"""Odd names, sizes at their limits, wrong settings, URLs and types: a clear error, and nothing changed."""

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from hawser.limits import SETTING_BOUNDS
from hawser.testing import LocalBus
from tests.support.children import Channel, Child

ODD_NAMES = [
    "camera/front",
    "../outside",
    "a/../../b",
    ".",
    "..",
    ".hidden",
    ".lock",
    "%2F",
    "%",
    "a%00b",
    "topic.topic",
    "-o",
    "*?[x]",
    "$(id)",
    "a b",
    "a\\b",
    "'\"",
    "Über/größe",
    "話題",
    "🚢⚓",
    "e\u0301",
    "é",
    "A",
    "a",
    "x" * 100,
]
BAD_NAMES: list[Any] = [
    "",
    "/",
    "a//b",
    "/a",
    "a/",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "a\u2028b",
    "\ud800",
    "x" * 101,
    "話" * 40,
    None,
    7,
    b"bytes",
    ["list"],
]


@dataclasses.dataclass
class Pair:
    left: int
    right: int


def files(local: LocalBus) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in local.directory.iterdir()}


def test_odd_names_are_topics_of_their_own(local: LocalBus) -> None:
    bus = local.connect()
    for name in ODD_NAMES:
        bus.topic(name, slot_size=128, history=1).publish(name.encode())
    assert sorted(bus.topics()) == sorted(ODD_NAMES)
    assert {path.parent for path in local.directory.rglob("*")} == {local.directory}
    again = local.connect()
    for name in ODD_NAMES:
        topic = again.topic(name)
        assert (topic.name, bytes(topic.read_oldest(1).samples[0])) == (name, name.encode())


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_bad_names_are_refused(local: LocalBus, name: Any) -> None:
    bus = local.connect()
    with pytest.raises(hawser.UsageError, match="name"):
        bus.topic(name)
    assert files(local) == {}


@pytest.mark.parametrize("name", ["", "n" * 64, "a\nb", "group:x", 3, "\ud800"], ids=repr)
def test_bad_bus_names_are_refused(local: LocalBus, name: Any) -> None:
    with pytest.raises(hawser.UsageError, match="name"):
        local.connect(name)


@pytest.mark.parametrize("length", [1, 50, 55, 56, 63])
def test_a_bus_name_that_is_accepted_works(local: LocalBus, length: int) -> None:
    name = "n" * length
    try:
        bus = local.connect(name)
    except hawser.UsageError:
        assert length > 55
        return
    topic = bus.topic("names", slot_size=64)
    topic.publish(b"x")
    with topic.subscribe(history=1, resume=True) as subscription:
        sample = subscription.take(0)
        assert sample is not None
        assert sample.publisher == name


@pytest.mark.parametrize(
    "url",
    ["", "shm:", "shm:/", "shm://relative", "file:///x", "hawser://h", "http://x", None, 5, "shm:///a\0b"],
)
def test_wrong_urls_are_refused(url: Any) -> None:
    with pytest.raises(hawser.UsageError):
        hawser.connect(url)


def test_wrong_options_are_refused(local: LocalBus) -> None:
    for options in ({"mode": "world"}, {"mode": None}, {"modus": "user"}):
        with pytest.raises(hawser.UsageError):
            local.connect(None, **options)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 4097, 100_000])
def test_every_size_up_to_the_slot(local: LocalBus, size: int) -> None:
    topic = local.connect().topic("sizes", slot_size=max(size, 1), history=4)
    subscription = topic.subscribe()
    data = bytes(range(256)) * (size // 256 + 1)
    topic.publish(data[:size])
    with topic.loan(size) as buffer:
        buffer[:] = data[:size]
    topic.publish_many([data[:size]])
    for sample in subscription.take_many(3, 0):
        assert (len(sample), bytes(sample)) == (size, data[:size])
    for attempt in too_large(topic, max(size, 1) + 1):
        with pytest.raises(hawser.UsageError, match="slot_size"):
            attempt()
    assert topic.info().head == 3
    assert topic.info().slots_lent == 0


def too_large(topic: hawser.Topic[Any], size: int) -> list[Callable[[], object]]:
    return [
        lambda: topic.publish(bytes(size)),
        lambda: topic.publish_many([bytes(size)]),
        lambda: topic.loan(size),
        lambda: topic.loan(1 << 62),
        lambda: topic.publish(bytes(size - 1), key=b"key"),
        lambda: topic.loan(size - 1, headers={"a": b"b"}),
    ]


def test_a_batch_stops_at_the_first_that_does_not_fit(local: LocalBus) -> None:
    topic = local.connect().topic("batch", slot_size=8)
    with pytest.raises(hawser.UsageError) as error:
        topic.publish_many([b"one", b"two", b"much too large", b"four"])
    assert (error.value.published, error.value.outcome) == (2, "applied")
    assert [bytes(sample) for sample in topic.read_oldest(9).samples] == [b"one", b"two"]


WRONG_SETTINGS: list[dict[str, Any]] = [
    *({name: bound.lowest - 1} for name, bound in SETTING_BOUNDS.items()),
    *({name: bound.highest + 1} for name, bound in SETTING_BOUNDS.items()),
    *({name: value} for name in ("slot_size", "history") for value in ("8", 8.0, None, True, 1 << 70)),
    {"ephemeral": 1},
    {"mode": "everybody"},
    {"no_such_setting": 1},
    {"history": 60_000, "depth": 60_000},
    {"slot_size": 1 << 40, "history": 60_000},
    {"max_held": 4096, "max_subscribers": 256},
]


@pytest.mark.parametrize("settings", WRONG_SETTINGS, ids=str)
def test_wrong_settings_are_refused(local: LocalBus, settings: dict[str, Any]) -> None:
    bus = local.connect()
    with pytest.raises(hawser.UsageError):
        bus.topic("settings", **settings)
    assert bus.topics() == []


def test_contradicting_settings_are_refused_and_change_nothing(local: LocalBus) -> None:
    topic = local.connect().topic("settings", slot_size=64, history=3)
    topic.publish(b"kept")
    before = files(local)
    different: dict[str, Any] = {name: bound.default + 1 for name, bound in SETTING_BOUNDS.items()}
    for name, value in {**different, "ephemeral": True, "mode": "group"}.items():
        with pytest.raises(hawser.SettingsMismatch, match=name):
            local.connect().topic("settings", **{name: value})
    with pytest.raises(hawser.SettingsMismatch, match="schema"):
        local.connect().topic("settings", schema=Pair)
    assert files(local) == before
    assert local.connect().topic("settings", slot_size=64).info().head == 1


def test_the_largest_settings_work(local: LocalBus) -> None:
    bus = local.connect()
    huge = bus.topic(
        "huge", slot_size=SETTING_BOUNDS["slot_size"].highest, history=1, depth=1, max_subscribers=1
    )
    huge.publish(b"small")
    assert bytes(huge.read_oldest(1).samples[0]) == b"small"
    assert huge.info().resident_bytes < 1 << 20
    long = bus.topic("long", slot_size=1, history=60_000, depth=5_000, max_subscribers=1)
    long.publish_many([b"x"] * 70_000)
    assert len(long.read_oldest(100_000).samples) == 65_000


def test_wrong_arguments_are_refused(local: LocalBus) -> None:
    topic = local.connect("caller").topic("calls", slot_size=64)
    topic.publish(b"x")
    anonymous = local.connect().topic("calls")
    subscription = topic.subscribe()
    any_topic: Any = topic
    any_subscription: Any = subscription
    yesterday = datetime.datetime(2020, 1, 1)  # noqa: DTZ001
    wrong: list[Callable[[], object]] = [
        lambda: any_topic.publish("text"),
        lambda: any_topic.publish(None),
        lambda: any_topic.publish(5),
        lambda: any_topic.publish([1, 2]),
        lambda: any_topic.publish(memoryview(bytes(8))[::2]),
        lambda: any_topic.publish(b"x", key="text"),
        lambda: any_topic.publish(b"x", headers=[1]),
        lambda: any_topic.publish(b"x", headers={1: b""}),
        lambda: any_topic.publish(b"x", headers={"a": "b"}),
        lambda: any_topic.publish(b"x", timeout=-1),
        lambda: any_topic.publish(b"x", timeout=float("nan")),
        lambda: any_topic.publish(b"x", timeout="soon"),
        lambda: any_topic.publish_many(b"bytes"),
        lambda: any_topic.publish_many(5),
        lambda: any_topic.publish_many([None]),
        lambda: any_topic.loan(-1),
        lambda: any_topic.loan(True),
        lambda: any_topic.loan(1.5),
        lambda: any_topic.loan(None),
        lambda: any_topic.loan(1 << 70),
        lambda: any_topic.subscribe(history=-1),
        lambda: any_topic.subscribe(history="all"),
        lambda: any_topic.subscribe(start="yesterday"),
        lambda: any_topic.subscribe(start=yesterday),
        lambda: any_topic.subscribe(start=0),
        lambda: any_topic.subscribe(start=1, history=1),
        lambda: any_topic.subscribe(group=""),
        lambda: any_topic.subscribe(group="g", resume=True),
        lambda: any_topic.subscribe(reliable="always"),
        lambda: any_topic.subscribe(reliable=1),
        lambda: any_topic.subscribe(max_held=0),
        lambda: any_topic.subscribe(max_held=99),
        lambda: any_topic.subscribe(max_lag=5),
        lambda: any_topic.subscribe(reliable="durable", max_lag=0),
        lambda: anonymous.subscribe(resume=True),
        lambda: anonymous.subscribe(reliable="durable"),
        lambda: any_topic.read_oldest(-1),
        lambda: any_topic.read_oldest("all"),
        lambda: any_topic.read_newest(1, -1),
        lambda: any_topic.forget(5),
        lambda: any_subscription.take(-1),
        lambda: any_subscription.take("soon"),
        lambda: any_subscription.take_many(0, 0),
        lambda: any_subscription.take_many(-1, 0),
        lambda: any_subscription.take_many("all", 0),
        lambda: any_subscription.take_value(-1),
        lambda: any_subscription.take_values(0, 0),
        lambda: any_subscription.take_values("all", 0),
        lambda: any_subscription.commit(),
    ]
    unrefused = [number for number, call in enumerate(wrong) if not clearly_refused(call)]
    assert unrefused == []
    with pytest.raises(hawser.OffsetOutOfRange):
        topic.subscribe(start=99)
    with pytest.raises(hawser.OffsetOutOfRange):
        topic.read_oldest(1, after=99)
    info = topic.info()
    assert (info.head, info.slots_lent, len(info.participants), info.records) == (1, 0, 2, [])


def clearly_refused(call: Callable[[], object]) -> bool:
    """A wrong value is a UsageError; a wrong type may be a TypeError as everywhere in Python."""
    try:
        call()
    except (hawser.UsageError, TypeError):
        return True
    return False


def test_limits_are_named(local: LocalBus) -> None:
    topic = local.connect("holder").topic(
        "limits", slot_size=8, max_publishers=1, max_subscribers=1, max_held=1, max_loans=1
    )
    publisher, subscription = topic.publisher(), topic.subscribe(resume=True)
    publisher.publish_many([b"x", b"y"])
    loan = publisher.loan(1)
    sample = subscription.take(0)
    refusals: dict[str, Callable[[], object]] = {
        "max_publishers": topic.publisher,
        "max_subscribers": topic.subscribe,
        "max_loans": lambda: publisher.loan(1),
        "max_held": lambda: subscription.take(0),
    }
    for limit, attempt in refusals.items():
        with pytest.raises(hawser.Full, match=limit):
            attempt()
    loan.drop()
    assert sample is not None
    sample.release()
    assert subscription.take(0) is not None


def test_only_one_may_be_exclusive_or_resume(local: LocalBus) -> None:
    topic = local.connect("one").topic("exclusive", slot_size=8)
    with topic.publisher(exclusive=True):
        with pytest.raises(hawser.UsageError, match="exclusive"):
            local.connect("two").topic("exclusive").publish(b"x")
        with pytest.raises(hawser.UsageError, match="exclusive"):
            topic.publisher(exclusive=True)
    topic.publish(b"y")
    with topic.subscribe(resume=True), pytest.raises(hawser.UsageError, match="'one'"):
        topic.subscribe(resume=True)

    def resume_in_another_process(channel: Channel) -> None:
        own = hawser.connect(local.url, name="one").topic("exclusive")
        with pytest.raises(hawser.UsageError, match="'one'"):
            own.subscribe(resume=True)

    with topic.subscribe(resume=True), Child(resume_in_another_process):
        pass
