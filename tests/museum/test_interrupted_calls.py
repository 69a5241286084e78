"""Calls on a cluster that a signal interrupts, or that a callback makes in the thread of the network. An
interrupted call is over, and so is all its work. Found by reading."""

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import hawser
from hawser.cluster.client.client import Client
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from tests.support.cluster import RunningCluster
from tests.support.processes import until

PATIENCE_SECONDS = 60
_numbers = itertools.count()


class Interrupted(Exception):
    """A signal came."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, as Ctrl-C does; may be called in any thread."""

    is_handled = threading.Event()

    def handle(*_: object) -> None:
        if not is_handled.is_set():
            is_handled.set()
            raise Interrupted

    def send() -> None:
        # A signal that comes just before the main thread begins to wait does not end the wait.
        while not is_handled.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    yield sender.start
    sender.join()
    signal.signal(signal.SIGUSR1, before)


def a_name() -> str:
    return f"interrupted {next(_numbers)}"


def cut_off(bus: Any, patch: pytest.MonkeyPatch) -> None:
    """From here on this bus knows no leader."""
    patch.setattr(bus._client.router, "leader_link", lambda shard: None)


def interrupts_its_post(thread: Any) -> None:
    """The next call is interrupted just after it was posted to the loop."""
    post = thread.post

    def interrupted(*arguments: Any) -> None:
        # The method of the class is called again.
        del thread.post
        post(*arguments)
        raise Interrupted

    thread.post = interrupted


def outcome_of(future: "Future[hawser.Receipt]") -> object:
    """The receipt of a publish, or its error."""
    return future.exception(PATIENCE_SECONDS) or future.result()


def payloads_of(topic: hawser.Topic[Any]) -> list[bytes]:
    return [bytes(each) for each in topic.read_oldest(9).samples]


# Closing.


@pytest.mark.parametrize("begun", ["waiting", "in flight"])
def test_an_interrupted_close_of_a_bus_ends_everything(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None], begun: str
) -> None:
    """The event loop began a request for each that it cancelled, for ever, and futures of publishes never
    ended."""
    bus: Any = hawser.connect(cluster.url, timeout=PATIENCE_SECONDS)
    topic, queue = bus.topic(a_name()), bus.queue(a_name())
    topic.publish(b"first")
    queue.put(b"held")
    message = queue.get(PATIENCE_SECONDS)
    sent = threading.Event()

    async def never(*_: object) -> None:
        sent.set()
        await asyncio.Event().wait()

    async def end_transactions(self: Client) -> None:
        interrupt()
        await original(self)

    original = Client.end_transactions
    with monkeypatch.context() as patched:
        patched.setattr(Client, "end_transactions", end_transactions)
        if begun == "waiting":
            cut_off(bus, patched)
        else:
            patched.setattr("hawser.cluster.client.publish.partition_producer.ask", never)
        future = topic.publish_nowait(b"second")
        assert begun == "waiting" or sent.wait(PATIENCE_SECONDS)
        # The end of the thread is waited for below, and not for ever.
        patched.setattr(bus._thread, "stop", bus._thread._halt)
        with pytest.raises(Interrupted):
            bus.close()
        bus._thread._thread.join(PATIENCE_SECONDS / 2)
        assert not bus._thread._thread.is_alive()
    expected = hawser.Closed if begun == "waiting" else hawser.OutcomeUnknown
    assert type(outcome_of(future)) is expected
    del message


def test_an_interrupted_close_of_a_publisher_goes_on(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None]
) -> None:
    """The bus did not wait for its messages, which were lost, and their futures never ended."""
    original = PartitionProducer.flush

    async def flush(self: PartitionProducer) -> None:
        interrupt()
        await original(self)

    with cluster.connect(timeout=PATIENCE_SECONDS) as bus:
        topic = bus.topic(a_name())
        topic.publish(b"first")
        publisher: Any = topic.publisher()
        with monkeypatch.context() as patched:
            cut_off(bus, patched)
            patched.setattr(PartitionProducer, "flush", flush)
            future = publisher.publish_nowait(b"second")
            with pytest.raises(Interrupted):
                publisher.close()
    assert future.done()
    assert isinstance(future.result(), hawser.Receipt)


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_the_name_of_what_was_closed_can_be_opened_again(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None], kind: str
) -> None:
    """The bus returned the closed object from then on."""

    async def close(_: Handle) -> None:
        interrupt()
        await asyncio.Event().wait()

    with cluster.connect(timeout=PATIENCE_SECONDS) as bus:
        name, opens = a_name(), getattr(bus, kind)
        with monkeypatch.context() as patched:
            opened = opens(name)
            patched.setattr(Handle, "close", close)
            with pytest.raises(Interrupted):
                opened.close()
        again = opens(name)
        assert again is not opened
        assert (again.publish(b"1") if kind == "topic" else again.put(b"1")).count == 1


# Beginning.


def test_a_call_that_is_interrupted_as_it_is_posted_is_cancelled(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on in the event loop: its messages were published later."""
    with cluster.connect(timeout=PATIENCE_SECONDS) as bus:
        topic: Any = bus.topic(a_name())
        topic.publish(b"first")
        with monkeypatch.context() as patched:
            cut_off(bus, patched)
            interrupts_its_post(topic._thread)
            with pytest.raises(Interrupted):
                topic.publish_many([b"interrupted"])
            topic.publish_nowait(b"last")
        topic.flush()
        assert payloads_of(topic) == [b"first", b"last"]


def test_a_get_that_is_interrupted_as_it_is_posted_takes_no_message(cluster: RunningCluster) -> None:
    """It took the next message and dropped it, which counted as a delivery."""
    with cluster.connect(timeout=PATIENCE_SECONDS) as bus:
        queue: Any = bus.queue(a_name(), max_deliveries=1)
        assert queue.get(0) is None
        interrupts_its_post(queue._thread)
        with pytest.raises(Interrupted):
            queue.get()
        until(lambda: not queue._session().queue_session._waiters, "the event loop forgets it")
        queue.put(b"1")
        message = queue.get(PATIENCE_SECONDS)
        assert (bytes(message), message.delivery_count) == (b"1", 1)
        message.accept()


def test_a_publish_that_is_interrupted_before_it_is_handed_over_is_not_sent(cluster: RunningCluster) -> None:
    """To withdraw it sent it."""
    with cluster.connect() as bus:
        topic: Any = bus.topic(a_name())
        topic.publish(b"first")
        partitioner = topic._topic.partitioner
        post = partitioner._post

        def interrupted(*_: object) -> None:
            partitioner._post = post
            raise Interrupted

        partitioner._post = interrupted
        with pytest.raises(Interrupted):
            topic.publish(b"interrupted")
        topic.publish(b"last")
        assert payloads_of(topic) == [b"first", b"last"]


# Callbacks.


@pytest.mark.parametrize("kind", ["bus", "topic", "queue", "publisher", "subscription", "consumer"])
def test_closing_in_a_callback_is_refused_and_changes_nothing(cluster: RunningCluster, kind: str) -> None:
    """It was closed in part: futures never ended, a second close() did nothing, and a group kept its
    member."""
    bus = cluster.connect(timeout=PATIENCE_SECONDS)
    topic, queue = bus.topic(a_name()), bus.queue(a_name())
    make: dict[str, Callable[[], Any]] = {
        "bus": lambda: bus,
        "topic": lambda: topic,
        "queue": lambda: queue,
        "publisher": topic.publisher,
        "subscription": lambda: topic.subscribe(group="g"),
        "consumer": queue.consume,
    }
    closed = make[kind]()
    refusals: list[BaseException] = []

    def close(_: object) -> None:
        with pytest.raises(hawser.UsageError, match="a callback of a future may not wait") as caught:
            closed.close()
        refusals.append(caught.value)

    may_go_on = threading.Event()
    bus._thread.post(may_go_on.wait)  # type: ignore[attr-defined]  # the first is not done before the callback
    first = topic.publish_nowait(b"first")
    first.add_done_callback(close)
    second = topic.publish_nowait(b"second")
    may_go_on.set()
    assert isinstance(outcome_of(second), hawser.Receipt)
    until(lambda: len(refusals) == 1, "the callback was called")
    assert topic.publish(b"third").count == 1
    assert queue.put(b"1").count == 1
    closed.close()
    if kind == "subscription":
        assert not topic.info().participants
    if kind in ("topic", "bus"):
        with pytest.raises(hawser.Closed):
            topic.publish(b"late")
    bus.close()


# The end of a transaction.


class _InterruptingLock:
    """A lock whose release is interrupted, once it is released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        raise Interrupted


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_whose_end_is_interrupted_is_rolled_back(cluster: RunningCluster, end: str) -> None:
    """It stayed open until its time was over."""
    with cluster.connect(timeout=PATIENCE_SECONDS) as bus:
        topic = bus.topic(a_name())
        transaction: Any = bus.transaction()
        transaction.publish(topic, b"1")
        transaction._lock = _InterruptingLock()
        with pytest.raises(Interrupted):
            getattr(transaction, end)()
        transaction._lock = threading.Lock()
        until(lambda: transaction.state == "rolled back", "it is rolled back")
        assert not topic.read_oldest(9).samples
