"""Threads that share a typed subscription: while Python decodes for one, another one has its turn."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import hawser
from hawser.record import metadata
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

PATIENCE_SECONDS = 30
UNREADABLE = 3


class Value(msgspec.Struct):
    """One cannot be decoded, after a hook has run in the middle of it."""

    n: int

    def __post_init__(self) -> None:
        if self.n == UNREADABLE and hooks:
            hooks[-1]()


class Headers(dict[str, bytes]):
    """Such as can be looked for when nobody refers to them."""


hooks: list[Callable[[], None]] = []


def fail() -> None:
    raise ValueError("it cannot be decoded")


@pytest.fixture
def topic() -> Iterator[hawser.Topic[Value]]:
    with LocalBus() as local:
        yield local.connect("me").topic("values", schema=Value, history=8, depth=8)
        hooks.clear()


def publish(topic: hawser.Topic[Value], last: int) -> None:
    topic.publish_many([Value(n) for n in range(1, last + 1)])


def take_while(subscription: hawser.Subscription[Value], meanwhile: Callable[[], object]) -> list[int]:
    """What `take_values` returns while `meanwhile` runs in another thread, in the middle of decoding."""

    def interrupt() -> None:
        other = threading.Thread(target=meanwhile)
        other.start()
        other.join(PATIENCE_SECONDS)
        fail()

    hooks.append(interrupt)
    try:
        return [value.n for value in subscription.take_values(8, 0)]
    finally:
        hooks[:] = [fail]


def rest_of(subscription: hawser.Subscription[Value]) -> list[Any]:
    """The numbers that still come, and "error" where a call raises."""
    found: list[Any] = []
    while True:
        try:
            value = subscription.take_value(0)
        except hawser.Corrupt:
            found.append("error")
            continue
        if value is None:
            return found
        found.append(value.n)


def test_the_sample_of_another_thread_is_not_put_back(topic: hawser.Topic[Value]) -> None:
    """It came twice, the one that failed never came, and both takes had one reference between them."""
    subscription = topic.subscribe(reliable=True)
    publish(topic, 8)
    taken: list[hawser.Sample | None] = []
    assert take_while(subscription, lambda: taken.append(subscription.take(0))) == [1, 2]
    assert [sample and sample.offset for sample in taken] == [4]
    assert subscription.position == 4
    assert rest_of(subscription) == ["error", 5, 6, 7, 8]
    assert (subscription.received, subscription.missed, subscription.held) == (8, 0, 1)
    assert taken[0] is not None
    taken[0].release()


def test_a_position_that_others_know_is_not_taken_back(topic: hawser.Topic[Value]) -> None:
    """A publisher overwrote what was put back, although the subscription is reliable."""
    subscription = topic.subscribe(reliable=True)
    publish(topic, UNREADABLE)
    assert take_while(subscription, lambda: subscription.take(0)) == [1, 2]
    for n in range(16):
        topic.publish(Value(100 + n), timeout=0)
    assert rest_of(subscription) == ["error", *range(100, 116)]
    assert subscription.missed == 0


def test_what_is_committed_is_not_taken_back(topic: hawser.Topic[Value]) -> None:
    with topic.subscribe(group="g") as subscription:
        publish(topic, 4)
        assert take_while(subscription, subscription.commit) == [1, 2]
        with pytest.raises(hawser.Corrupt):
            subscription.commit()
        subscription.commit()
    with topic.subscribe(group="g") as subscription:
        assert rest_of(subscription) == [4]


def test_a_subscription_is_closed_in_the_middle_of_a_batch(topic: hawser.Topic[Value]) -> None:
    """It wrote how far it was into the entry it had given up."""
    subscription = topic.subscribe(reliable=True)
    publish(topic, 4)
    assert take_while(subscription, subscription.close) == [1, 2]
    with pytest.raises(hawser.Corrupt):
        subscription.take(0)
    with pytest.raises(hawser.Closed):
        subscription.take(0)


@pytest.mark.parametrize("batch", ["take_many", "take_next", "take_value", "take_values"])
def test_the_next_call_raises_the_error_whichever_it_is(topic: hawser.Topic[Value], batch: str) -> None:
    subscription = topic.subscribe()
    publish(topic, 5)
    assert take_while(subscription, lambda: subscription.take(0)) == [1, 2]
    calls: dict[str, Callable[[], Any]] = {
        "take_many": lambda: subscription.take_many(2, 0),
        "take_next": lambda: next(subscription),
        "take_value": lambda: subscription.take_value(0),
        "take_values": lambda: subscription.take_values(2, 0),
    }
    with pytest.raises(hawser.Corrupt, match="cannot be decoded"):
        calls[batch]()
    assert rest_of(subscription) == [5]


def test_headers_that_two_threads_decode_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones of the first thread were overwritten by those of the second, and never freed."""
    made: list[weakref.ref[Headers]] = []

    def decode(data: bytes) -> tuple[None, Headers]:
        headers = Headers()
        made.append(weakref.ref(headers))
        if len(made) == 1:
            other = threading.Thread(target=lambda: sample and sample.headers)
            other.start()
            other.join(PATIENCE_SECONDS)
        return None, headers

    monkeypatch.setattr(metadata, "_decode", decode)
    with LocalBus() as local:
        topic = local.connect().topic("headers")
        subscription = topic.subscribe()
        topic.publish(b"", headers={"a": b"b"})
        sample = subscription.take(0)
        assert sample is not None and sample.headers is sample.headers
        assert len(made) == 2
        sample = None
        assert [each() for each in made] == [None, None]


def test_an_error_that_is_kept_has_no_part_of_the_next_take(topic: hawser.Topic[Value]) -> None:
    """It kept the sample, which was taken again: the end of one took the reference from the other."""
    kept: list[Exception] = []

    def keep_and_fail() -> None:
        kept.append(ValueError("it cannot be decoded"))
        raise kept[-1]

    subscription = topic.subscribe()
    publish(topic, 4)
    hooks.append(keep_and_fail)
    assert [value.n for value in subscription.take_values(8, 0)] == [1, 2]
    assert subscription.held == 0
    sample = subscription.take(0)
    assert sample is not None and sample.offset == UNREADABLE
    kept.clear()
    assert subscription.held == 1
    sample.release()
    assert subscription.held == 0


def test_a_thread_that_waits_gets_what_another_one_left(cluster: RunningCluster) -> None:
    """Of a batch that came after it had looked, and of which another thread took the first message before it
    waited, it got nothing: it slept until more was published."""
    with hawser.connect(cluster.url) as bus:
        topic = bus.topic("left by others")
        subscription: Any = topic.subscribe()
        consumer = subscription._consumer
        ready = consumer.ready
        found: list[int] = []

        def take() -> None:
            found.append(subscription.take().offset)

        def be_late(*looked: Any) -> Any:
            consumer.ready = ready
            topic.publish_many([b"1", b"2", b"3"])
            other = threading.Thread(target=take)
            other.start()
            other.join()
            return ready(*looked)

        consumer.ready = be_late
        late = threading.Thread(target=take, daemon=True)
        late.start()
        late.join(PATIENCE_SECONDS)
        assert found == [1, 2]


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("closes_all", [False, True])
def test_what_interrupts_a_take_may_close(
    cluster: RunningCluster, group: str | None, closes_all: bool
) -> None:
    """A signal handler that closed the subscription, or the bus, whose `take` it had interrupted waited for
    the loop, and the loop for the lock of that `take`."""
    bus = hawser.connect(cluster.url)
    subscription: Any = bus.topic("closed in a handler").subscribe(group=group)

    def close() -> None:
        with subscription._consumer.lock:
            (bus if closes_all else subscription).close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    bus.close()
