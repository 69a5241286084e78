"""Queues in hostile surroundings: forks, threads, signals, kills, leases, sizes at their limits."""

import _thread
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.limits import QUEUE_SETTING_BOUNDS
from hawser.testing import LocalBus
from tests.support.children import Channel, Child, sleep_for_ever, victim
from tests.support.processes import until

SETTINGS: dict[str, Any] = {"slot_size": 64, "capacity": 8, "max_held": 8}


def got(queue: hawser.Queue[Any], timeout: float | None = 30) -> hawser.Message:
    message = queue.get(timeout)
    assert message is not None
    return message


def counts(queue: hawser.Queue[Any]) -> tuple[int, int, int]:
    info = queue.info()
    return info.ready, info.claimed, info.dead


def test_a_forked_child_is_refused_everything(local: LocalBus) -> None:
    bus = local.connect("parent")
    queue = bus.queue("jobs", **SETTINGS)
    queue.put_many([b"1", b"2", b"3", b"4"])
    message, many = got(queue), queue.get_many(1)
    jobs, values = queue.consume(), queue.consume().values()
    assert next(values) == b"3"
    uses: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(b"x"),
        "put_many": lambda: queue.put_many([b"x"]),
        "get": lambda: queue.get(0),
        "get_many": lambda: queue.get_many(1, 0),
        "next": lambda: next(jobs),
        "next value": lambda: next(values),
        "accept value": values.accept,
        "consume": queue.consume,
        "peek": lambda: queue.peek(1),
        "info": queue.info,
        "retry": queue.retry_dead_letters,
        "dead_letters": queue.dead_letters,
        "delete": lambda: queue.delete(force=True),
        "accept": message.accept,
        "release": message.release,
        "reject": message.reject,
        "data": lambda: message.data,
        "many": many.accept,
        "bus.queue": lambda: bus.queue("jobs"),
        "bus.queues": bus.queues,
    }

    def use_all(channel: Channel) -> None:
        allowed = []
        for name, use in uses.items():
            try:
                use()
                allowed.append(name)
            except hawser.UsageError:
                continue
        channel.tell(" ".join(allowed) or "nothing")

    with Child(use_all) as child:
        assert child.hear() == "nothing"
    assert counts(queue) == (1, 3, 0)

    def forget_all(channel: Channel) -> None:
        """What a child drops or closes was never its own."""
        nonlocal message, many, jobs, values, queue, bus
        for each in (jobs, queue, bus):
            each.close()
        del message, many, jobs, values, queue, bus
        uses.clear()
        gc.collect()
        channel.tell("forgot")

    with Child(forget_all) as child:
        assert child.hear() == "forgot"
    assert counts(queue) == (1, 3, 0)
    message.accept()
    many.accept()
    values.accept()
    assert counts(queue) == (1, 0, 0)


def test_a_message_of_the_dead_is_delivered_again(local: LocalBus) -> None:
    queue = local.connect("heir").queue("jobs", **SETTINGS)
    queue.put_many([b"%d" % number for number in range(5)])

    def hold(channel: Channel) -> None:
        jobs = hawser.connect(local.url, name="mortal").queue("jobs")
        first, *_rest = jobs.get_many(3)
        first.accept()
        channel.tell("holding")
        sleep_for_ever()

    with victim(hold) as child:
        child.hear()
        assert counts(queue) == (2, 2, 0)
    dead = [each for each in queue.info().participants if not each.alive]
    assert [(each.kind, each.name) for each in dead] == [("consumer", "mortal")]
    (recovered,) = local.connect().recover()
    assert (recovered.kind, recovered.name, recovered.topic, recovered.complete) == (
        "consumer",
        "mortal",
        "jobs",
        True,
    )
    found = [(bytes(each), each.delivery_count) for each in queue.get_many(9)]
    assert found == [(b"1", 2), (b"2", 2), (b"3", 1), (b"4", 1)]


def test_waiting_for_the_message_of_a_dead_one_needs_nobody_else(local: LocalBus) -> None:
    """Nobody recovers, nobody puts: who waits finds out by itself."""
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put(b"1")

    def hold(channel: Channel) -> None:
        jobs = hawser.connect(local.url).queue("jobs")
        message = got(jobs)
        channel.tell("holding")
        sleep_for_ever()
        message.accept()

    with victim(hold) as child:
        child.hear()
        found: list[hawser.Message] = []
        waiting = threading.Thread(target=lambda: found.append(got(queue)))
        waiting.start()
        child.kill()
        waiting.join(30)
    assert [(bytes(each), each.delivery_count, each.redelivered) for each in found] == [(b"1", 2, True)]


def test_a_producer_killed_in_a_batch_leaves_a_prefix(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)

    def produce(channel: Channel) -> None:
        jobs = hawser.connect(local.url).queue("jobs")
        channel.tell("ready")
        jobs.put_many([b"%d" % number for number in range(1000)])

    with victim(produce) as child:
        child.hear()
        for number in range(20):
            with got(queue) as message:
                assert int(bytes(message)) == number
    messages = queue.get_many(9, 0)
    rest = [int(bytes(each)) for each in messages]
    messages.accept()
    assert rest == list(range(20, 20 + len(rest)))
    assert queue.put(b"next", timeout=30).count == 1


def test_a_value_that_finds_no_memory_goes_back(local: LocalBus) -> None:
    queue = local.connect().queue("large", slot_size=200 << 20, capacity=2)
    queue.put(bytes(200 << 20))
    queue.put(b"small")

    def consume(channel: Channel) -> None:
        own = hawser.connect(local.url).queue("large")
        values = own.consume(prefetch=1).values()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
        with pytest.raises(MemoryError):
            next(values)
        assert next(values) == b"small"
        values.accept()
        channel.tell(str(counts(own)))

    with Child(consume) as child:
        assert child.hear() == "(1, 0, 0)"


@pytest.mark.parametrize("way", ["get", "put", "next", "values"])
def test_a_signal_ends_waiting(local: LocalBus, way: str) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    if way == "put":
        queue.put_many([b"x"] * 8)
    waits: dict[str, Callable[[], object]] = {
        "get": queue.get,
        "put": lambda: queue.put(b"y"),
        "next": lambda: next(queue.consume()),
        "values": lambda: next(queue.consume().values()),
    }
    timer = threading.Timer(0.2, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        waits[way]()
    timer.join()
    gc.collect()
    assert counts(queue) == (8 if way == "put" else 0, 0, 0)


def test_threads_share_a_queue(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    produced, consumed = 4 * 300, []
    errors: list[BaseException] = []

    def produce(thread: int) -> None:
        for number in range(300):
            queue.put(b"%d:%d" % (thread, number))

    def consume(thread: int) -> None:
        while True:
            messages = queue.get_many(2) if thread % 2 else [got(queue)]
            for message in messages:
                data = bytes(message)
                if message.offset % 7 == 0 and not message.redelivered:
                    message.release()
                    continue
                message.accept()
                if data == b"end":
                    return
                consumed.append(data)

    def run(work: Callable[[int], None], thread: int) -> None:
        try:
            work(thread)
        except BaseException as error:
            errors.append(error)

    producers = [threading.Thread(target=run, args=(produce, number)) for number in range(4)]
    consumers = [threading.Thread(target=run, args=(consume, number)) for number in range(4)]
    for thread in (*producers, *consumers):
        thread.start()
    for thread in producers:
        thread.join(60)
    until(lambda: len(consumed) == produced or bool(errors), "all is consumed")
    assert errors == []
    for thread in consumers:
        while thread.is_alive():
            queue.put(b"end")
            thread.join(0.1)
    assert sorted(consumed) == sorted(b"%d:%d" % (each, number) for each in range(4) for number in range(300))


@pytest.mark.parametrize("way", ["get", "put", "next", "delete"])
def test_closing_wakes_whoever_waits(local: LocalBus, way: str) -> None:
    queue, other = (local.connect().queue("jobs", **SETTINGS) for _ in range(2))
    if way == "put":
        queue.put_many([b"x"] * 8)
    jobs = queue.consume()
    waits: dict[str, Callable[[], object]] = {
        "get": queue.get,
        "put": lambda: queue.put(b"y"),
        "next": lambda: list(jobs),
        "delete": queue.get,
    }
    ended: list[object] = []

    def wait() -> None:
        try:
            ended.append(waits[way]())
        except hawser.Closed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    if way == "delete":
        other.delete(force=True)
    else:
        queue.close()
    thread.join(30)
    assert len(ended) == 1
    assert ended[0] == [] if way == "next" else isinstance(ended[0], hawser.Closed)


def test_a_lease_that_is_over_ends_a_claim(local: LocalBus) -> None:
    slow = local.connect("slow").queue("jobs", lease=0.5, **SETTINGS)
    quick = local.connect("quick").queue("jobs")
    slow.put_many([b"1", b"2"])
    late = got(slow)
    view = late.data
    other, again = got(quick), got(quick)
    assert (bytes(other), bytes(again), again.delivery_count, again.redelivered) == (b"2", b"1", 2, True)
    for settle in (late.accept, late.release, late.reject):
        with pytest.raises(hawser.Fenced, match="lease"):
            settle()
    assert bytes(view) == b"1"
    again.accept()
    with pytest.raises(hawser.Fenced), late:
        pass


def test_without_a_lease_a_stopped_consumer_keeps_its_message(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put(b"1")

    def hold(channel: Channel) -> None:
        message = got(hawser.connect(local.url).queue("jobs"))
        channel.tell("holding")
        channel.hear()
        message.accept()
        channel.tell("accepted")

    with victim(hold) as child:
        child.hear()
        child.signal(signal.SIGSTOP)
        assert queue.get(0.5) is None
        child.signal(signal.SIGCONT)
        child.tell("go on")
        assert child.hear() == "accepted"
    assert counts(queue) == (0, 0, 0)


def test_of_many_that_were_taken_away_the_others_are_settled(local: LocalBus) -> None:
    slow = local.connect().queue("jobs", lease=0.5, **SETTINGS)
    quick = local.connect().queue("jobs")
    slow.put(b"0")
    late = got(slow)
    again = got(quick)
    slow.put_many([b"1", b"2"])
    messages = slow.get_many(2)
    messages.insert(0, late)
    with pytest.raises(hawser.Fenced):
        messages.accept()
    assert counts(quick) == (0, 1, 0)
    again.accept()


def test_places_for_consumers_and_producers_end(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", max_consumers=2, max_producers=1, **SETTINGS)
    held = [queue.consume(), queue.consume()]
    with pytest.raises(hawser.Full, match="max_consumers"):
        queue.get(0)
    held.pop().close()
    assert queue.get(0) is None
    queue.put(b"1")
    with pytest.raises(hawser.Full, match="max_producers"):
        local.connect().queue("jobs").put(b"2")


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_smallest_queues_at_every_wrap(local: LocalBus, capacity: int) -> None:
    queue = local.connect().queue(
        "jobs", slot_size=1, capacity=capacity, max_held=1, max_consumers=1, max_producers=1
    )
    for lap in range(50):
        data = [b"%d" % (number % 10) for number in range(lap, lap + capacity)]
        assert queue.put_many(data, timeout=0).count == capacity
        with pytest.raises(hawser.Full):
            queue.put(b"x", timeout=0)
        for each in data:
            message = got(queue, 0)
            assert bytes(message) == each
            with pytest.raises(hawser.Full, match="max_held"):
                queue.get(0)
            message.accept()
            del message
    assert queue.info().slots_leaked == 0


def test_the_largest_settings_can_be_asked_for(local: LocalBus) -> None:
    bus = local.connect()
    for name in QUEUE_SETTING_BOUNDS:
        settings: dict[str, Any] = {each: bound.lowest for each, bound in QUEUE_SETTING_BOUNDS.items()}
        settings[name] = QUEUE_SETTING_BOUNDS[name].highest
        queue = bus.queue(f"large {name}", **settings)
        queue.put(b"1")
        got(queue, 0).reject()
        assert counts(queue) == (0, 0, 1)
        queue.dead_letters().delete(force=True)
        queue.delete()


def test_a_damaged_label_is_no_queue(local: LocalBus) -> None:
    bus = local.connect()
    bus.queue("jobs").close()
    path = local.directory / "jobs.topic"
    for data in (b"", b"junk" * 100):
        path.write_bytes(data)
        assert bus.queues() == []
        with pytest.raises(hawser.HawserError):
            bus.queue("jobs")
    os.unlink(path)
    os.mkfifo(path)
    assert bus.queues() == []
