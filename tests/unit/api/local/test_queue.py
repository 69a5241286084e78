"""Queues on one host: each message to one consumer, until one accepts it."""

import gc
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy
import pyarrow
import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.processes import until

SETTINGS: dict[str, Any] = {"slot_size": 256, "capacity": 8, "max_held": 8}


class Order(msgspec.Struct):
    identity: int


class Other(msgspec.Struct):
    text: str


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


@pytest.fixture
def queue(local: LocalBus) -> hawser.Queue[Any]:
    return local.connect("worker").queue("jobs", **SETTINGS)


def got(queue: hawser.Queue[Any], timeout: float | None = 0) -> hawser.Message:
    message = queue.get(timeout)
    assert message is not None
    return message


def counts(queue: hawser.Queue[Any]) -> tuple[int, int, int]:
    info = queue.info()
    return info.ready, info.claimed, info.dead


def test_what_is_put_is_got_once_in_order(queue: hawser.Queue[Any]) -> None:
    receipt = queue.put(b"first", key=b"k", headers={"h": b"v"})
    assert receipt == hawser.Receipt("jobs", 0, 1, 1, "process")
    assert queue.put_many([b"", b"x" * 256]).count == 2
    first = got(queue)
    assert isinstance(first, hawser.Message)
    assert isinstance(first, hawser.Sample)
    assert (bytes(first), first.offset, first.key, first.headers) == (b"first", 1, b"k", {"h": b"v"})
    assert (first.publisher, first.partition, first.delivery_count, first.redelivered) == (
        "worker",
        0,
        1,
        False,
    )
    second, third = queue.get_many(5, 0)
    assert (bytes(second), len(third)) == (b"", 256)
    assert queue.get(0) is None
    assert queue.get_many(3, 0) == []
    for message in (first, second, third):
        message.accept()
    assert counts(queue) == (0, 0, 0)


def test_it_is_delivered_until_it_is_accepted(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2"])
    for delivery in range(1, 4):
        message = got(queue)
        assert (bytes(message), message.delivery_count) == (b"1", delivery)
        assert message.redelivered == (delivery > 1)
        message.release()
    with got(queue) as message:
        assert message.delivery_count == 4
    assert bytes(got(queue)) == b"2"


def test_a_block_accepts_or_releases(queue: hawser.Queue[Any]) -> None:
    queue.put(b"1")
    with pytest.raises(ZeroDivisionError), got(queue):
        _ = 1 / 0
    assert counts(queue) == (1, 0, 0)
    with got(queue) as message:
        view = message.data
    assert bytes(view) == b"1"
    assert counts(queue) == (0, 0, 0)


def test_one_that_is_dropped_without_a_word_is_released(queue: hawser.Queue[Any]) -> None:
    queue.put(b"1")
    message: hawser.Message | None = got(queue)
    assert counts(queue) == (0, 1, 0)
    del message
    gc.collect()
    assert counts(queue) == (1, 0, 0)
    # A view keeps the message it is of.
    view = got(queue).data
    assert counts(queue) == (0, 1, 0)
    del view
    assert counts(queue) == (1, 0, 0)
    assert got(queue).delivery_count == 3


def test_views_outlive_the_message(local: LocalBus, queue: hawser.Queue[Any]) -> None:
    """Their slots are not used again, however much is put meanwhile."""
    other = local.connect().queue("jobs")
    views = []
    for number in range(8):
        queue.put(b"%d" % number * 8)
        with got(queue) as message:
            views.append(message.data)
    del message
    for number in range(100):
        queue.put(b"x" * 200)
        if number % 2:
            with other.get_many(2, 0) as messages:
                assert [bytes(each) for each in messages] == [b"x" * 200] * 2
    assert [bytes(view) for view in views] == [b"%d" % number * 8 for number in range(8)]
    with pytest.raises(hawser.Full, match="max_held"):
        queue.get(0)
    views.clear()
    assert queue.get(0) is None


def test_settling_twice_changes_nothing(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2", b"3"])
    verdicts = {"accept": "accepted", "release": "released", "reject": "rejected"}
    messages = dict(zip(verdicts, queue.get_many(3, 0), strict=True))
    for verdict, message in messages.items():
        getattr(message, verdict)()
    before = counts(queue)
    for verdict, message in messages.items():
        getattr(message, verdict)()
        with message:
            pass
        for other in verdicts.keys() - {verdict}:
            with pytest.raises(hawser.UsageError, match=f"was {verdicts[verdict]} already"):
                getattr(message, other)()
    assert counts(queue) == before == (1, 0, 1)


def test_many_at_once(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"%d" % number for number in range(6)])
    messages = queue.get_many(6, 0)
    assert isinstance(messages, list)
    messages[1].accept()
    messages[4].reject()
    messages.release()
    assert [bytes(each) for each in queue.get_many(9, 0)] == [b"0", b"2", b"3", b"5"]
    gc.collect()
    with pytest.raises(ZeroDivisionError), queue.get_many(9, 0) as messages:
        _ = 1 / 0
    with queue.get_many(2, 0) as messages:
        assert [each.delivery_count for each in messages] == [4, 4]
    rest = queue.get_many(9, 0)
    rest.reject()
    assert counts(queue) == (0, 0, 3)
    assert [bytes(each) for each in queue.dead_letters().get_many(9, 0)] == [b"4", b"3", b"5"]


def test_values_are_copies_that_are_settled_together(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"%d" % number for number in range(6)])
    with queue.get_values(2, 0) as values:
        assert values == [b"0", b"1"]
    with pytest.raises(ZeroDivisionError), queue.get_values(2, 0) as values:
        _ = 1 / 0
    values = queue.get_values(1, 0)
    values.reject()
    assert values == [b"2"]
    assert queue.get_values(9, 0) == [b"3", b"4", b"5"]
    assert counts(queue) == (3, 0, 1)
    queue.get_values(9, 0).accept()
    assert queue.get_values(9, 0) == []
    assert counts(queue) == (0, 0, 1)


def test_full_waits_or_says_so(queue: hawser.Queue[Any]) -> None:
    assert queue.put_many([b"x"] * 8).count == 8
    for timeout in (0, 0.01):
        with pytest.raises(hawser.Full, match="jobs"):
            queue.put(b"y", timeout=timeout)
        with pytest.raises(hawser.Full) as caught:
            queue.put_many([b"y", b"z"], timeout=timeout)
        assert (caught.value.published, caught.value.retryable) == (0, True)
    held = queue.get_many(2, 0)
    with pytest.raises(hawser.Full) as caught:
        queue.put_many([b"y"] * 3, timeout=0)
    assert (caught.value.published, caught.value.outcome) == (2, "applied")
    del held
    gc.collect()

    def make_room() -> None:
        for _ in range(10):
            got(queue, 10).accept()

    thread = threading.Thread(target=make_room)
    waiting = threading.Thread(target=lambda: queue.put(b"waited"))
    waiting.start()
    thread.start()
    waiting.join(30)
    thread.join(30)
    assert not waiting.is_alive()
    assert bytes(got(queue, 10)) == b"waited"


def test_a_consumer_that_holds_its_claims_does_not_hold_up_the_queue(local: LocalBus) -> None:
    slow = local.connect("slow").queue("jobs", **SETTINGS)
    quick = local.connect("quick").queue("jobs")
    slow.put_many([b"%d" % number for number in range(8)])
    held = slow.get_many(8, 0)
    for lap in range(50):
        quick.put(b"lap %d" % lap, timeout=0)
        with got(quick) as message:
            assert bytes(message) == b"lap %d" % lap
    held.release()
    assert [int(bytes(each)) for each in quick.get_many(8, 0)] == list(range(8))


@pytest.mark.parametrize("values", [False, True])
def test_a_loop_hands_out_nothing_that_others_have_accepted_meanwhile(local: LocalBus, values: bool) -> None:
    slow = local.connect("slow").queue("jobs", lease=0.05, **SETTINGS)
    quick = local.connect("quick").queue("jobs")
    slow.put_many([b"%d" % number for number in range(5)])
    consumer = slow.consume(prefetch=4)
    loop = iter(consumer.values() if values else consumer)
    assert bytes(next(loop)) == b"0"
    while quick.info().ready + quick.info().claimed:
        for message in quick.get_many(5, 1):
            message.accept()
    quick.put(b"new")
    if values:
        with pytest.raises(hawser.Fenced):
            next(loop)
    assert bytes(next(loop)) == b"new"


def test_messages_that_come_back_keep_their_place(local: LocalBus) -> None:
    first, second = (local.connect(name).queue("jobs", **SETTINGS) for name in ("first", "second"))
    first.put_many([b"%d" % number for number in range(6)])
    held = first.get_many(4, 0)
    held[2].release()
    held[0].release()
    assert [bytes(each) for each in second.get_many(3, 0)] == [b"0", b"2", b"4"]


def test_peek_looks_and_changes_nothing(queue: hawser.Queue[Any]) -> None:
    assert queue.peek(3) == []
    queue.put_many([b"%d" % number for number in range(4)])
    held = got(queue)
    copies = queue.peek(3)
    assert [(each.offset, bytes(each)) for each in copies] == [(1, b"0"), (2, b"1"), (3, b"2")]
    held.accept()
    assert [bytes(each) for each in queue.peek(9)] == [b"1", b"2", b"3"]
    assert queue.peek(0) == []
    assert counts(queue) == (3, 0, 0)
    queue.get_many(9, 0).accept()
    assert bytes(copies[0]) == b"0"
    assert queue.peek(9) == []


def test_info_tells_who_holds_what(local: LocalBus) -> None:
    worker = local.connect("worker").queue("jobs", **SETTINGS, replication=3, lease=60, max_deliveries=3)
    other = local.connect("other").queue("jobs")
    worker.put_many([b"x"] * 6)
    mine, theirs = worker.get_many(3, 0), other.get_many(1, 0)
    info = worker.info()
    assert (info.name, info.ready, info.claimed, info.dead, info.head) == ("jobs", 2, 4, 0, 6)
    assert sorted((each.name, each.claimed) for each in info.owners) == [("other", 1), ("worker", 3)]
    assert all(each.pid > 0 for each in info.owners)
    assert info.unused == {"replication": 3}
    assert info.settings == {
        "slot_size": 256,
        "capacity": 8,
        "max_held": 8,
        "max_producers": 8,
        "max_consumers": 32,
        "max_deliveries": 3,
        "dead_letter": None,
        "lease": 60,
        "ephemeral": False,
        "mode": "user",
        "schema": "",
        "trace": None,
    }
    assert info.oldest_age_seconds is not None
    assert 0 <= info.oldest_age_seconds < 3600
    kinds = sorted((each.kind, each.name, each.alive) for each in info.participants)
    assert kinds == [("consumer", "other", True), ("consumer", "worker", True), ("producer", "worker", True)]
    assert msgspec.json.decode(msgspec.json.encode(info))["owners"]
    mine.accept()
    theirs.accept()
    worker.get_many(9, 0).accept()
    assert worker.info().oldest_age_seconds is None
    assert worker.info().slots_leaked == 0


def test_values_of_a_schema(local: LocalBus) -> None:
    orders = local.connect().queue("orders", schema=Order)
    orders.put(Order(7), key=b"k")
    orders.put_many([Order(8), Order(9)])
    assert [each.value for each in orders.peek(9)] == [Order(7), Order(8), Order(9)]
    with orders.get_many(2, 0) as messages:
        assert [each.value for each in messages] == [Order(7), Order(8)]
    with got(orders) as message:
        assert message.value == Order(9)
        message.reject()
    assert got(orders.dead_letters()).value == Order(9)
    with pytest.raises(hawser.SettingsMismatch, match="schema"):
        local.connect().queue("orders", schema=Other)


def test_arrays_and_arrow(local: LocalBus) -> None:
    queue: hawser.Queue[Any] = local.connect().queue("data")
    queue.put(numpy.arange(10, dtype="i4"))
    batch = pyarrow.record_batch({"a": [1, 2, 3]})
    queue.put(batch)
    with got(queue) as message:
        array = message.array("i4", (2, 5))
    with got(queue) as message:
        found = message.arrow()
    del message
    assert array.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert found.to_pydict() == {"a": [1, 2, 3]}


def test_iteration_holds_one_at_a_time(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"%d" % number for number in range(5)])
    seen = []
    with queue.consume() as jobs:
        for job in jobs:
            seen.append((bytes(job), job.delivery_count))
            if len(seen) == 1:
                continue
            with job:
                assert counts(queue)[1] == 1
            if len(seen) == 6:
                break
    assert seen == [(b"0", 1), (b"0", 2), (b"1", 1), (b"2", 1), (b"3", 1), (b"4", 1)]
    assert counts(queue) == (0, 0, 0)
    assert queue.info().participants[-1].kind == "producer"


def test_iteration_can_hold_some_ahead(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"%d" % number for number in range(6)])
    jobs = queue.consume(prefetch=3)
    for expected in range(3):
        with next(jobs) as job:
            assert int(bytes(job)) == expected
    assert counts(queue) == (2, 1, 0)
    next(jobs)
    jobs.close()
    assert counts(queue) == (3, 0, 0)
    assert list(jobs) == []
    for wrong in (-1, 8, True, 1.5, "3"):
        with pytest.raises(hawser.UsageError, match="prefetch"):
            queue.consume(prefetch=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["close the consumer", "close the queue", "delete the queue"])
def test_a_loop_that_waits_ends(local: LocalBus, queue: hawser.Queue[Any], end: str) -> None:
    queue.put(b"only one")
    consumer, seen, failed = queue.consume(prefetch=2), [], []

    def work() -> None:
        try:
            for job in consumer:
                with job:
                    seen.append(bytes(job))
        except hawser.Closed as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: seen == [b"only one"] and counts(queue) == (0, 0, 0), "the only message to be done")
    if end == "close the consumer":
        consumer.close()
    elif end == "close the queue":
        queue.close()
    else:
        local.connect().queue("jobs").delete(force=True)
    worker.join(30)
    assert not worker.is_alive()
    assert len(failed) == (end == "delete the queue")


def test_a_loop_in_c_lets_others_run(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"comes back"] * 8)
    consumer = queue.consume(prefetch=2)
    closing = threading.Timer(0.2, consumer.close)
    closing.start()
    deque(consumer, maxlen=0)
    assert counts(queue) == (8, 0, 0)


def test_a_loop_in_c_sees_signals(queue: hawser.Queue[Any]) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise InterruptedError

    queue.put_many([b"comes back"] * 8)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(InterruptedError), queue.consume(prefetch=2) as consumer:
            threading.Timer(0.2, signal.raise_signal, (signal.SIGUSR1,)).start()
            deque(consumer, maxlen=0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert counts(queue) == (8, 0, 0)


def test_a_loop_over_values_in_c_lets_others_run_and_sees_signals(
    local: LocalBus, queue: hawser.Queue[Any]
) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise InterruptedError

    def put() -> None:
        producer = local.connect().queue("jobs")
        while not ended.is_set():
            with suppress(hawser.Full):
                producer.put(b"done", timeout=0.1)

    ended, putting = threading.Event(), threading.Thread(target=put)
    before = signal.signal(signal.SIGUSR1, interrupt)
    putting.start()
    try:
        with pytest.raises(InterruptedError), queue.consume(prefetch=2) as consumer:
            threading.Timer(0.2, signal.raise_signal, (signal.SIGUSR1,)).start()
            deque(consumer.values(), maxlen=0)
    finally:
        signal.signal(signal.SIGUSR1, before)
        ended.set()
        putting.join(30)
    assert counts(queue)[1] == 0


def test_threads_that_share_a_loop_over_values_lose_nothing(queue: hawser.Queue[Any]) -> None:
    seen: set[bytes] = set()
    with queue.consume(prefetch=3) as consumer:
        values = consumer.values()

        def work() -> None:
            with suppress(hawser.Fenced):  # of what was in hand when it was closed
                seen.update(values)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        expected = {b"%d" % number for number in range(3000)}
        for value in sorted(expected):
            queue.put(value)
        until(lambda: counts(queue)[0] == 0 and counts(queue)[1] <= 4, "all of them to be had")
    for worker in workers:
        worker.join(30)
    left = {bytes(each) for each in queue.peek(9)}
    assert seen | left == expected and len(left) <= 4


def test_a_consumer_that_is_dropped_leaves(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2"])
    for job in queue.consume(prefetch=1):
        assert bytes(job) == b"1"
        break
    assert counts(queue) == (1, 1, 0)
    del job
    assert counts(queue) == (2, 0, 0)
    assert [each.kind for each in queue.info().participants] == ["producer"]


def test_closing_gives_back_what_is_held(local: LocalBus, queue: hawser.Queue[Any]) -> None:
    other = local.connect().queue("jobs")
    queue.put_many([b"1", b"2"])
    message = got(queue)
    view = message.data
    jobs = queue.consume()
    next(jobs)
    queue.close()
    assert counts(other) == (2, 0, 0)
    with pytest.raises(hawser.Fenced):
        message.accept()
    assert bytes(view) == b"1"
    assert counts(other) == (2, 0, 0)
    for call in (lambda: queue.put(b"x"), lambda: queue.get(0), queue.info, queue.consume):
        with pytest.raises(hawser.Closed, match=r"bus\.queue"):
            call()
    assert list(jobs) == []


def test_a_closed_bus(local: LocalBus) -> None:
    bus = local.connect()
    queue, jobs = bus.queue("jobs"), bus.queue("jobs").consume()
    queue.put(b"1")
    bus.close()
    assert list(jobs) == []
    for call in (lambda: queue.put(b"x"), lambda: queue.get(0), lambda: bus.queue("jobs"), bus.queues):
        with pytest.raises(hawser.Closed):
            call()
    assert counts(local.connect().queue("jobs")) == (1, 0, 0)


def test_a_queue_is_opened_once_in_a_bus(local: LocalBus) -> None:
    bus = local.connect()
    with pytest.raises(hawser.NotFound, match=r"no queue 'jobs'.*hawser queue list"):
        bus.queue("jobs", create=False)
    queue = bus.queue("jobs", capacity=5)
    assert bus.queue("jobs") is bus.queue("jobs", create=False) is queue
    with pytest.raises(hawser.SettingsMismatch, match=r"queue 'jobs'.*capacity=6"):
        bus.queue("jobs", capacity=6)
    with pytest.raises(hawser.SettingsMismatch, match="lease"):
        local.connect().queue("jobs", lease=3)


def test_a_name_is_a_topic_or_a_queue(local: LocalBus) -> None:
    bus = local.connect()
    bus.topic("t")
    bus.queue("q")
    for each in (bus, local.connect()):
        with pytest.raises(hawser.UsageError, match=r"'t' is a topic, not a queue; open it with bus\.topic"):
            each.queue("t")
        with pytest.raises(hawser.UsageError, match=r"'q' is a queue, not a topic; open it with bus\.queue"):
            each.topic("q")
        with pytest.raises(hawser.UsageError, match="'q' is a queue"):
            each.topic("q", create=False, history=3)
        assert (each.topics(), each.queues()) == (["t"], ["q"])
    assert [(each.topic, each.state) for each in bus.files()] == [
        (None, "lock"),
        ("q", "queue"),
        ("t", "topic"),
    ]
    bus.queue("q").delete()
    assert bus.topic("q").publish(b"x").first_offset == 1


def test_a_deleted_queue_is_closed_for_all(local: LocalBus) -> None:
    ours, theirs = (local.connect(name).queue("jobs", **SETTINGS) for name in ("ours", "theirs"))
    ours.put(b"1")
    held = got(theirs)
    with pytest.raises(hawser.UsageError, match=r"queue 'jobs' is in use by .*theirs"):
        ours.delete()
    ours.delete(force=True)
    for call in (lambda: theirs.put(b"x"), lambda: theirs.get(0), lambda: theirs.get_many(2)):
        with pytest.raises(hawser.Closed):
            call()
    assert bytes(held) == b"1"
    again = local.connect().queue("jobs")
    assert counts(again) == (0, 0, 0)
    assert again.info().settings["capacity"] == 1024


def test_an_ephemeral_queue_goes_with_the_last(local: LocalBus) -> None:
    with local.connect() as bus:
        queue = bus.queue("jobs", ephemeral=True)
        queue.put(b"1")
        got(queue).reject()
        assert counts(queue) == (0, 0, 1)
        assert bus.queues() == ["jobs", "jobs.dead"]
    assert local.connect().queues() == []


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_wrong_timeouts(queue: hawser.Queue[Any], timeout: Any) -> None:
    queue.put_many([b"x"] * 8)
    for call in (
        lambda: queue.put(b"x", timeout=timeout),
        lambda: queue.get(timeout),
        lambda: queue.get_many(2, timeout),
    ):
        with pytest.raises((hawser.UsageError, TypeError)):
            call()
    assert counts(queue) == (8, 0, 0)


def test_wrong_arguments(queue: hawser.Queue[Any]) -> None:
    wrong: Any
    for wrong in (-1, 1.5, "2", None):
        for call in (queue.get_many, queue.peek):
            with pytest.raises((hawser.UsageError, TypeError)):
                call(wrong)
    for data in ("text", 5, None, object(), b"x" * 257):
        with pytest.raises(hawser.UsageError):
            queue.put(data)
        with pytest.raises(hawser.UsageError):
            queue.put_many([data])
    with pytest.raises(hawser.UsageError):
        queue.put_many([])
    with pytest.raises(hawser.UsageError, match="keys"):
        queue.put_many([b"1"], keys=[b"1", b"2"])
    with pytest.raises(hawser.UsageError, match="no setting 'partitions'"):
        queue._bus.queue("other", partitions=3)  # type: ignore[attr-defined]
    with pytest.raises(hawser.UsageError):
        queue.retry_dead_letters(-1)
