"""Views outlive samples, subscriptions, topics, buses and the deletion of the topic; nothing dangles."""

import gc
from typing import Any

import numpy
import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, Child

SETTINGS: dict[str, Any] = {"slot_size": 64, "history": 2, "depth": 2, "max_held": 3, "max_loans": 1}


def take(subscription: hawser.Subscription[Any]) -> hawser.Sample:
    sample = subscription.take(0)
    assert sample is not None
    return sample


def test_views_outlive_everything(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("views", **SETTINGS)
    topic.publish_many([b"first", b"second"])
    subscription = topic.subscribe(history=2)
    view = take(subscription).data
    array = take(subscription).array("u1")
    subscription.close()
    for number in range(50):
        topic.publish(b"%05d" % number)
    del subscription
    topic.delete(force=True)
    topic.close()
    bus.close()
    del topic, bus
    gc.collect()
    again = local.connect().topic("views", **SETTINGS)
    again.publish_many([b"other"] * 50)
    assert (bytes(view), bytes(array)) == (b"first", b"second")
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)


def test_release_waits_for_views(local: LocalBus) -> None:
    topic = local.connect().topic("views", **SETTINGS)
    topic.publish(b"sample")
    subscription = topic.subscribe(history=1)
    sample = take(subscription)
    view = sample.data
    part = view[1:3]
    with pytest.raises(BufferError, match="views"):
        sample.release()
    view.release()
    with pytest.raises(BufferError):
        sample.release()
    part.release()
    sample.release()
    sample.release()
    for use in (lambda: sample.data, lambda: bytes(sample), lambda: sample.publisher):
        with pytest.raises(hawser.UsageError, match="released"):
            use()
    with pytest.raises(BufferError):
        memoryview(sample)
    assert (sample.offset, len(sample), subscription.held) == (1, 6, 0)


def test_leaving_a_block_frees_the_slot_with_the_last_view(local: LocalBus) -> None:
    topic = local.connect().topic("views", **SETTINGS)
    topic.publish(b"sample")
    subscription = topic.subscribe(history=1)
    with take(subscription) as sample:
        view = numpy.asarray(sample.data)
    assert (subscription.held, topic.info().slots_referenced) == (1, 1)
    topic.publish_many([b"x"] * 50)
    assert bytes(view) == b"sample"
    del view
    assert (subscription.held, topic.info().slots_referenced) == (0, 0)


def test_iteration_lets_go_of_all_but_what_is_viewed(local: LocalBus) -> None:
    topic = local.connect().topic("views", **SETTINGS)
    topic.publish_many([b"1", b"2"])
    views = []
    with topic.subscribe(history=2) as subscription:
        for sample in subscription:
            views.append(sample.data)
            if sample.offset == 2:
                break
        assert subscription.held == 2
        views.clear()
        assert subscription.held == 1
        del sample
        assert subscription.held == 0


def test_held_samples_never_change(local: LocalBus) -> None:
    """A slot that is read is not written: neither by wild publishing nor by recovery nor by deletion."""
    bus = local.connect("reader")
    topic = bus.topic("views", **SETTINGS)
    topic.publish(b"held")
    subscription = topic.subscribe(history=1)
    sample = take(subscription)

    def publish_wildly(channel: Channel) -> None:
        other = hawser.connect(local.url, name="wild")
        own = other.topic("views")
        for number in range(2000):
            own.publish(b"%064d" % number)
        other.recover()
        own.delete(force=True)

    with Child(publish_wildly):
        pass
    assert bytes(sample) == b"held"
    with pytest.raises(hawser.Closed):
        subscription.take(0)
    sample.release()


def test_a_loan_with_views_is_not_published(local: LocalBus) -> None:
    topic = local.connect().topic("loans", **SETTINGS)
    with pytest.raises(BufferError), topic.loan(4) as buffer:
        buffer[:] = b"data"
        part = buffer[:2]
    assert topic.info().head == 0
    assert topic.info().slots_lent == 1
    part[:] = b"ok"
    part.release()
    assert topic.info().slots_lent == 0
    with pytest.raises(ValueError, match="released"):
        buffer[0]


def test_a_loan_outlives_its_publisher_and_topic(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("loans", **SETTINGS)
    loan = topic.loan(4)
    buffer = loan.__enter__()
    bus.close()
    del topic, bus
    gc.collect()
    buffer[:] = b"mine"
    with pytest.raises(hawser.Closed):
        loan.__exit__(None, None, None)
    watching = local.connect().topic("loans")
    assert (watching.info().slots_lent, watching.info().head) == (0, 0)


def test_samples_survive_their_publishers_death(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("views", **SETTINGS)
    subscription = topic.subscribe()

    def publish_and_die(channel: Channel) -> None:
        own = hawser.connect(local.url, name="mortal").topic("views")
        own.publish(b"inherited")
        loan = own.loan(8)
        loan.__enter__()[:] = b"unborn.."

    with Child(publish_and_die):
        pass
    assert [(each.name, each.slots) for each in bus.recover()] == [("mortal", 1)]
    sample = take(subscription)
    assert (bytes(sample), sample.publisher) == (b"inherited", "mortal")
    assert subscription.take(0) is None


def test_copies_need_no_slot(local: LocalBus) -> None:
    topic = local.connect().topic("copies", **SETTINGS)
    topic.publish(b"copied", key=b"k")
    (sample,) = topic.read_oldest(1).samples
    topic.delete()
    assert (bytes(sample), sample.key, sample.offset) == (b"copied", b"k", 1)
    sample.release()
