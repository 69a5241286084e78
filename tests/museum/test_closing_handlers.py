"""Signal handlers that close what they have interrupted, and forks while another thread is in a call. They
waited for ever for a lock. Found by reading."""

import asyncio
import importlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import hawser
from hawser.api.bus import codec_of
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.record import schema as schemas
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

PATIENCE_SECONDS = 60


class TransactionGate:
    """A region whose calls are interrupted, as they end, by a handler that closes what uses it."""

    def __init__(self, region: Any, close: Callable[[], None]) -> None:
        self._region = region
        self._close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def publisher(self, *arguments: Any, **options: Any) -> Any:
        return self._interrupted(self._region.publisher(*arguments, **options))

    def consumer(self, *arguments: Any, **options: Any) -> Any:
        return self._interrupted(self._region.consumer(*arguments, **options))

    def _interrupted(self, made: Any) -> Any:
        self._close()
        return made


class ClosingSet(weakref.WeakSet[Any]):
    """Of participants. `add` is interrupted, before or after it adds, by a handler that closes the owner."""

    def __init__(self, close: Callable[[], None], is_late: bool) -> None:
        super().__init__()
        self._close = close
        self._is_late = is_late

    def add(self, item: Any) -> None:
        if not self._is_late:
            self._close()
        super().add(item)
        if self._is_late:
            self._close()


def ends(call: Callable[[], object]) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS / 4)
    return not thread.is_alive()


CALLS: dict[str, Callable[[Any], object]] = {
    "publish": lambda topic: topic.publish(b""),
    "publisher": lambda topic: topic.publisher(),
    "subscribe": lambda topic: topic.subscribe(),
    "put": lambda queue: queue.put(b""),
    "get": lambda queue: queue.get(0),
    "consume": lambda queue: queue.consume(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_late", [False, True])
def test_what_interrupts_the_joining_of_a_participant_may_close_its_topic(call: str, is_late: bool) -> None:
    with LocalBus() as local:
        bus = local.connect()
        is_topic = call in ("publish", "publisher", "subscribe")
        opened: Any = (bus.topic if is_topic else bus.queue)("closed")
        holder: Any = (local.connect().topic if is_topic else local.connect().queue)("closed")
        opened._region = TransactionGate(opened._region, opened.close)
        opened._joined = ClosingSet(opened.close, is_late)
        if is_late and call in ("publisher", "consume"):
            # Interrupted later, as it is kept.
            opened._region = opened._region._region
        closed: list[type[BaseException]] = []

        def use() -> None:
            with pytest.raises(hawser.HawserError) as caught:
                CALLS[call](opened)
            closed.append(caught.type)

        assert ends(use)
        assert closed == [hawser.Closed]
        assert not holder.info().participants
        assert not {"publish", "loan", "put", "get"} & vars(opened).keys()


def in_child(use: Callable[[], object]) -> int:
    """The exit status of a forked child that does this; it is killed if that takes too long."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_SECONDS // 6)
        try:
            use()
            os._exit(0)
        except hawser.UsageError:
            os._exit(2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_describes_types_that_its_parent_was_describing(monkeypatch: pytest.MonkeyPatch) -> None:
    described = threading.Event()
    original = schemas.codec_of

    def slow_codec_of(schema: Any) -> Any:
        if schema is First:
            described.set()
            time.sleep(0.2)
        return original(schema)

    monkeypatch.setattr(schemas, "codec_of", slow_codec_of)
    describing = threading.Thread(target=codec_of, args=[First])
    describing.start()
    assert described.wait(PATIENCE_SECONDS)
    assert in_child(lambda: codec_of(Second)) == 0
    describing.join()


class First(msgspec.Struct):
    number: int


class Second(msgspec.Struct):
    text: str


def test_nobody_waits_for_a_call_for_dead_letters(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect() as bus:
        queue = bus.queue("asks for its letters", dead_letter="letters")
        asks, may_go_on = threading.Event(), threading.Event()
        dead_letters = QueueHandle.dead_letters

        async def slow_dead_letters(self: QueueHandle, create: bool = False) -> QueueHandle:
            asks.set()
            while not may_go_on.is_set():
                await asyncio.sleep(0.01)
            return await dead_letters(self, create)

        monkeypatch.setattr(QueueHandle, "dead_letters", slow_dead_letters)
        asking = threading.Thread(target=queue.dead_letters)
        asking.start()
        assert asks.wait(PATIENCE_SECONDS)
        assert in_child(queue.get) == 2
        assert in_child(queue.close) == 0
        assert ends(lambda: queue.get(0))
        may_go_on.set()
        asking.join()
        assert queue.dead_letters() is queue.dead_letters()


def taking(topic: Any, count: int) -> Any:
    """A subscription of a group with so many messages to take, of which it has taken the first."""
    topic.publish_many([b"%d" % number for number in range(count)])
    subscription = topic.subscribe(start="earliest", group="g")
    assert subscription.take_value(PATIENCE_SECONDS) == b"0"
    return subscription


def interrupt_next(subscription: Any, handle: Callable[[], object]) -> None:
    """A handler interrupts the next take of a sample."""
    consumer = subscription._consumer
    take = consumer.next_sample

    def interrupted() -> Any:
        consumer.next_sample = take
        handle()
        return take()

    consumer.next_sample = interrupted


def test_a_handler_cannot_take_or_commit_in_the_middle_of_a_take(cluster: RunningCluster) -> None:
    refusals: list[BaseException] = []
    taken: list[object] = []
    with cluster.connect() as bus:
        subscription = taking(bus.topic("taken in a handler"), 4)

        def handle() -> None:
            for call in (subscription.commit, lambda: subscription.take(0)):
                with pytest.raises(hawser.UsageError, match="in the middle of a take") as caught:
                    call()
                refusals.append(caught.value)

        interrupt_next(subscription, handle)
        assert ends(lambda: taken.append(subscription.take_value(PATIENCE_SECONDS)))
        assert len(refusals) == 2
        assert taken == [b"1"]
        assert subscription.take_value(PATIENCE_SECONDS) == b"2"
        subscription.commit()
        assert [each.mark for each in bus.topic("taken in a handler").info().records] == [3]


def test_a_handler_may_close_the_bus_in_the_middle_of_a_take(cluster: RunningCluster) -> None:
    """The event loop waited for the take, which waited for the event loop."""
    bus: Any = cluster.connect()
    topic = bus.topic("closed in a take", partitions=2)
    subscription = taking(topic, 4)
    transaction = bus.transaction()
    transaction.commit_offsets(subscription)
    interrupt_next(subscription, bus.close)

    def take() -> None:
        with pytest.raises(hawser.Closed):
            subscription.take(0)

    assert ends(take)
    assert transaction.state == "rolled back"
    assert not bus._thread._thread.is_alive()


@pytest.mark.parametrize("interrupted", ["begin", "publish"])
def test_a_handler_may_begin_a_transaction_and_publish_in_the_middle_of_that(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    with cluster.connect() as bus:
        topic = bus.topic(f"transactions of a handler, {interrupted}")
        first = bus.transaction()
        module, name = ("transaction", "Transaction") if interrupted == "begin" else ("workspace", "size_of")
        client = importlib.import_module(f"hawser.cluster.client.transaction.{module}")
        original = getattr(client, name)

        def handle() -> None:
            second = bus.transaction()
            second.publish(topic, b"handler")
            second.commit()
            first.publish(topic, b"handler")

        def interrupt(*arguments: Any) -> Any:
            patched.undo()
            handle()
            return original(*arguments)

        def work() -> None:
            first.publish(topic, b"first")
            third = bus.transaction()
            third.publish(topic, b"third")
            third.commit()
            first.commit()

        with monkeypatch.context() as patched:
            patched.setattr(client, name, interrupt)
            assert ends(work)
        found = sorted(bytes(each) for each in topic.read_oldest(9).samples)
        assert found == [b"first", b"handler", b"handler", b"third"]
