"""Subscriptions: where they begin, what they keep, and what they refuse."""

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


@pytest.fixture
def topic(local: LocalBus) -> hawser.Topic[Any]:
    topic: hawser.Topic[Any] = local.connect("tester").topic("t", history=8, depth=4)
    topic.publish_many([b"%d" % number for number in range(1, 6)])
    return topic


def rest(subscription: hawser.Subscription[Any]) -> list[int]:
    found = []
    while (sample := subscription.take(0)) is not None:
        found.append(sample.offset)
        sample.release()
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"history": 2}, [4, 5]),
        ({"history": 100}, [1, 2, 3, 4, 5]),
        ({"start": "latest"}, []),
        ({"start": "earliest"}, [1, 2, 3, 4, 5]),
        ({"start": 3}, [3, 4, 5]),
        ({"start": 6}, []),
        ({"start": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)}, [1, 2, 3, 4, 5]),
        ({"start": datetime.datetime(2900, 1, 1, tzinfo=datetime.UTC)}, []),
    ],
)
def test_a_subscription_begins_where_it_is_told(
    topic: hawser.Topic[Any], options: dict[str, Any], expected: list[int]
) -> None:
    subscription = topic.subscribe(**options)
    assert rest(subscription) == expected
    topic.publish(b"6")
    assert rest(subscription) == [6]
    assert subscription.received == len(expected) + 1
    assert (subscription.missed, subscription.position) == (0, 6)


def test_a_time_is_between_two_samples(topic: hawser.Topic[Any]) -> None:
    time.sleep(0.001)
    moment = datetime.datetime.now(datetime.UTC)
    time.sleep(0.001)
    topic.publish(b"6")
    assert rest(topic.subscribe(start=moment)) == [6]


@pytest.mark.parametrize(
    "options",
    [
        {"history": -1},
        {"history": 1.0},
        {"history": 1, "start": 1},
        {"start": 0},
        {"start": -3},
        {"start": True},
        {"start": "first"},
        {"start": datetime.datetime(2000, 1, 1)},  # noqa: DTZ001
        {"reliable": "yes"},
        {"reliable": None},
        {"max_lag": 5},
        {"max_lag": 0, "reliable": "durable"},
        {"max_held": 0},
        {"max_held": 5},
        {"group": ""},
        {"group": "x" * 60},
        {"group": "g", "resume": True},
    ],
)
def test_options_that_make_no_sense_are_refused(topic: hawser.Topic[Any], options: dict[str, Any]) -> None:
    with pytest.raises(hawser.UsageError):
        topic.subscribe(**options)
    assert [each.kind for each in topic.info().participants] == ["publisher"]


@pytest.mark.parametrize("start", [7, 1000, 1 << 62])
def test_an_offset_that_is_not_there_is_refused(topic: hawser.Topic[Any], start: int) -> None:
    with pytest.raises(hawser.OffsetOutOfRange):
        topic.subscribe(start=start)


def test_what_is_overwritten_is_counted(topic: hawser.Topic[Any]) -> None:
    subscription = topic.subscribe(history=5)
    for number in range(100):
        topic.publish(b"%d" % number)
    found = rest(subscription)
    assert found == list(range(106 - len(found), 106))
    assert subscription.missed + len(found) == 105
    assert subscription.missed > 0


def test_iterating_lets_go_of_the_last_sample(topic: hawser.Topic[Any]) -> None:
    with topic.subscribe(history=5, max_held=1) as subscription:
        seen = []
        for sample in subscription:
            seen.append(bytes(sample))
            assert subscription.held == 1
            if len(seen) == 5:
                break
    assert seen == [b"1", b"2", b"3", b"4", b"5"]
    assert list(subscription) == []


def test_as_many_samples_are_held_as_allowed(topic: hawser.Topic[Any]) -> None:
    subscription = topic.subscribe(history=5, max_held=2)
    held = subscription.take_many(5, 0)
    assert [each.offset for each in held] == [1, 2]
    with pytest.raises(hawser.Full, match="hold"):
        subscription.take(0)
    with held[0]:
        pass
    sample = subscription.take(0)
    assert sample is not None
    assert sample.offset == 3


def test_taking_waits_no_longer_than_told(topic: hawser.Topic[Any]) -> None:
    subscription = topic.subscribe()
    assert subscription.take(0) is None
    assert subscription.take(timeout=0.01) is None
    assert subscription.take_many(3, timeout=0.01) == []


def test_the_next_run_resumes(local: LocalBus) -> None:
    topic: hawser.Topic[Any] = local.connect().topic("t")
    for expected in ([1, 2], [3, 4], [5, 6]):
        topic.publish_many([b"x", b"y"])
        with local.connect("reader") as bus:
            subscription = bus.topic("t").subscribe(start="earliest", resume=True)
            with pytest.raises(hawser.UsageError, match="held"):
                bus.topic("t").subscribe(resume=True)
            assert rest(subscription) == expected
    assert [(each.name, each.mark) for each in topic.info().records] == [("reader", 6)]
    assert topic.forget("reader")
    assert not topic.forget("reader")
    assert topic.info().records == []


def test_only_a_named_bus_resumes(local: LocalBus) -> None:
    topic = local.connect().topic("t")
    keeping: list[dict[str, Any]] = [{"resume": True}, {"reliable": "durable"}]
    for options in keeping:
        with pytest.raises(hawser.UsageError, match="name"):
            topic.subscribe(**options)


def test_a_group_moves_by_commit(local: LocalBus) -> None:
    topic: hawser.Topic[Any] = local.connect().topic("t")
    topic.publish_many([b"1", b"2", b"3"])
    with topic.subscribe(group="g", start="earliest") as subscription:
        with subscription.take(0) or pytest.fail():
            subscription.commit()
        assert rest(subscription) == [2, 3]
    with local.connect().topic("t").subscribe(group="g") as subscription:
        assert rest(subscription) == [2, 3]
        subscription.commit()
    with topic.subscribe(group="g") as subscription:
        assert rest(subscription) == []
    assert [each.name for each in topic.info().records] == ["group:g"]
    with topic.subscribe() as subscription, pytest.raises(hawser.UsageError):
        subscription.commit()


def test_a_durable_subscriber_is_waited_for(local: LocalBus) -> None:
    topic: hawser.Topic[Any] = local.connect().topic("t", history=0, depth=2)
    with local.connect("reader") as bus:
        bus.topic("t").subscribe(reliable="durable")
    assert [topic.publish(b"x", timeout=0).first_offset for _ in range(2)] == [1, 2]
    with pytest.raises(hawser.Full, match="reader"):
        topic.publish(b"x", timeout=0)
    with local.connect("reader") as bus:
        assert rest(bus.topic("t").subscribe(reliable="durable")) == [1, 2]
    assert topic.publish(b"x", timeout=0).first_offset == 3


def test_a_durable_subscriber_is_waited_for_only_so_far(local: LocalBus) -> None:
    topic: hawser.Topic[Any] = local.connect().topic("t", history=0, depth=2)
    with local.connect("reader") as bus:
        with pytest.raises(
            hawser.UsageError, match="max_lag 3 is more than the 2 samples that the topic keeps"
        ):
            bus.topic("t").subscribe(reliable="durable", max_lag=3)
        bus.topic("t").subscribe(reliable="durable", max_lag=2)
    for _ in range(9):
        topic.publish(b"x", timeout=0)
