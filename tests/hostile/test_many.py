"""Many topics, many subscribers, many names."""

from collections.abc import Callable

import pytest

import hawser
from hawser.testing import LocalBus


def test_five_hundred_topics(local: LocalBus, record_property: Callable[[str, object], None]) -> None:
    with local.connect("many") as bus:
        topics = [bus.topic(f"many/{number}", slot_size=64, history=2, depth=2) for number in range(500)]
        subscriptions = [topic.subscribe() for topic in topics]
        for number, topic in enumerate(topics):
            topic.publish(b"%d" % number)
        for number, subscription in enumerate(subscriptions):
            with subscription.take(0) as sample:  # type: ignore[union-attr]
                assert bytes(sample) == b"%d" % number
        assert len(bus.topics()) == 500
        assert len(bus.participants()) == 1000
        record_property("topics", len(topics))
    with local.connect("many") as again:
        assert again.participants() == []
        for name in again.topics():
            again.topic(name).delete()
        assert again.topics() == []


def test_256_subscribers(local: LocalBus, record_property: Callable[[str, object], None]) -> None:
    topic = local.connect().topic("crowd", slot_size=64, history=8, max_subscribers=256, max_held=2)
    subscriptions = [topic.subscribe(reliable=number % 2 == 0) for number in range(256)]
    with pytest.raises(hawser.Full, match="max_subscribers"):
        topic.subscribe()
    for number in range(100):
        topic.publish(b"%d" % number)
        samples = [subscription.take(0) for subscription in subscriptions]
        assert {bytes(sample) for sample in samples if sample is not None} == {b"%d" % number}
        assert None not in samples
    assert topic.info().slots_referenced == 1
    samples.clear()
    subscriptions[200].close()
    late = topic.subscribe(history=3)
    assert len(late.take_many(3, 0)) == 2
    assert [subscription.missed for subscription in subscriptions[:200]] == [0] * 200
    record_property("subscribers", len(subscriptions))


def test_all_publishers_at_once(local: LocalBus) -> None:
    topic = local.connect().topic("authors", slot_size=64, max_publishers=256, history=256)
    publishers = [local.connect(f"author-{number}").topic("authors").publisher() for number in range(256)]
    with pytest.raises(hawser.Full, match="max_publishers"):
        topic.publisher()
    for publisher in publishers:
        publisher.publish(b"x")
    names = [sample.publisher for sample in topic.read_oldest(256).samples]
    assert names == [f"author-{number}" for number in range(256)]


def test_kept_positions_are_limited_and_can_be_forgotten(local: LocalBus) -> None:
    topic = local.connect().topic("records", slot_size=64, max_subscribers=3)
    for number in range(3):
        topic.subscribe(group=f"g{number}").close()
    with pytest.raises(hawser.Full, match="kept positions"):
        topic.subscribe(group="one too many")
    assert topic.info().participants == []
    assert topic.forget("group:g1")
    assert not topic.forget("group:g1")
    topic.subscribe(group="one more").close()
    assert {record.name for record in topic.info().records} == {"group:g0", "group:g2", "group:one more"}
