"""A forked child has its parent's objects and may use none of them."""

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, Child, sleep_for_ever, victim


def participants(topic: hawser.Topic[Any]) -> list[tuple[str, int, bool]]:
    return [(each.kind, each.index, each.alive) for each in topic.info().participants]


def refused(use: Callable[[], object]) -> bool:
    try:
        use()
        return False
    except hawser.UsageError:
        return True


def test_the_child_is_refused_everything(local: LocalBus) -> None:
    bus = local.connect("parent")
    topic = bus.topic("fork", slot_size=64)
    topic.publish(b"one")
    publisher, subscription = topic.publisher(), topic.subscribe(history=1, group="g")
    sample, loan = subscription.take(0), publisher.loan(3)
    assert sample is not None
    view = loan.__enter__()
    view[:] = b"two"
    uses: dict[str, Callable[[], object]] = {
        "topic.publish": lambda: topic.publish(b"x"),
        "topic.publish_many": lambda: topic.publish_many([b"x"]),
        "topic.loan": lambda: topic.loan(1),
        "topic.publisher": topic.publisher,
        "topic.subscribe": topic.subscribe,
        "topic.read_oldest": lambda: topic.read_oldest(1),
        "topic.read_newest": lambda: topic.read_newest(1),
        "topic.info": topic.info,
        "topic.forget": lambda: topic.forget("group:g"),
        "topic.delete": lambda: topic.delete(force=True),
        "publisher.publish": lambda: publisher.publish(b"x"),
        "publisher.loan": lambda: publisher.loan(1),
        "subscription.take": lambda: subscription.take(0),
        "subscription.take_many": lambda: subscription.take_many(1, 0),
        "subscription.take_value": lambda: subscription.take_value(0),
        "subscription.take_values": lambda: subscription.take_values(1, 0),
        "subscription.next": lambda: next(subscription),
        "subscription.commit": subscription.commit,
        "sample.data": lambda: sample.data,
        "sample.bytes": lambda: bytes(sample),
        "sample.publisher": lambda: sample.publisher,
        "loan.publish": lambda: loan.__exit__(None, None, None),
        "bus.topic": lambda: bus.topic("fork"),
        "bus.participants": bus.participants,
        "bus.recover": bus.recover,
        "bus.topics": bus.topics,
    }

    def use_everything(channel: Channel) -> None:
        assert [name for name, use in uses.items() if not refused(use)] == []
        sample.release()
        subscription.close()
        publisher.close()
        topic.close()
        bus.close()

    before = participants(topic), topic.info().slots_lent, topic.info().slots_referenced
    with Child(use_everything):
        pass
    assert before == (participants(topic), topic.info().slots_lent, topic.info().slots_referenced)
    assert bytes(sample) == b"one"
    loan.__exit__(None, None, None)
    taken = subscription.take(0)
    assert taken is not None
    assert bytes(taken) == b"two"


def test_the_childs_garbage_collector_changes_nothing(local: LocalBus) -> None:
    topic = local.connect().topic("fork", slot_size=64)
    topic.publish(b"kept")
    subscription = topic.subscribe(history=1)
    held = [subscription.take(0)]
    loans = [topic.loan(8)]

    def drop_everything(channel: Channel) -> None:
        nonlocal topic, subscription
        held.clear()
        loans.clear()
        del topic, subscription
        gc.collect()

    before = participants(topic)
    with Child(drop_everything):
        pass
    info = topic.info()
    assert participants(topic) == before
    assert (info.slots_lent, info.slots_referenced) == (1, 1)
    assert held[0] is not None
    assert bytes(held[0]) == b"kept"


def test_a_child_keeps_none_of_its_dead_parents_locks(local: LocalBus) -> None:
    topic = local.connect().topic("fork", slot_size=64, max_subscribers=2, max_publishers=1)
    topic.publish(b"sample")
    topic.close()

    def parent(channel: Channel) -> None:
        own = hawser.connect(local.url, name="parent").topic("fork")
        publisher, subscription = own.publisher(), own.subscribe(history=1, resume=True)
        things = [publisher.loan(8), subscription.take(0)]
        child = os.fork()
        if child == 0:
            sleep_for_ever()
        channel.tell(str(child))
        sleep_for_ever()
        del things

    with victim(parent) as process:
        child = int(process.hear())
        try:
            process.kill()
            topic = local.connect("parent").topic("fork")
            info = topic.info()
            assert [each for each in info.participants if each.alive] == []
            assert (info.slots_lent, info.slots_referenced, info.slots_leaked) == (0, 0, 0)
            topic.publish(b"goes on")
            with topic.subscribe(resume=True) as resumed:
                taken = resumed.take(0)
                assert taken is not None
                assert taken.offset == 1
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_connects_for_itself_is_a_participant(local: LocalBus) -> None:
    topic = local.connect("parent").topic("fork", slot_size=64)
    subscription = topic.subscribe()

    def publish_from_the_child(channel: Channel) -> None:
        hawser.connect(local.url, name="child").topic("fork").publish(b"hello")

    with Child(publish_from_the_child):
        sample = subscription.take(10)
        assert sample is not None
        assert (bytes(sample), sample.publisher) == (b"hello", "child")


def test_forks_while_threads_are_busy(local: LocalBus) -> None:
    """A fork at any moment neither hangs nor gives the child a lock that outlives its parent."""
    import threading

    topic = local.connect().topic("fork", slot_size=64, max_subscribers=4)
    over = threading.Event()

    def join_and_leave() -> None:
        while not over.is_set():
            topic.subscribe().close()
            topic.publish(b"x")

    threads = [threading.Thread(target=join_and_leave) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = [Child(lambda channel: time.sleep(0.05)) for _ in range(20)]
    over.set()
    for thread in threads:
        thread.join()
    alive = [each for each in topic.info().participants if each.kind == "subscriber"]
    for child in children:
        with child:
            pass
    assert alive == []
