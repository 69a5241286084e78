"""Threads share one bus, one publisher, one subscription."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus

THREADS = 8
LARGE = 200 << 10


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(number)` in that many threads; the first error of any is raised here."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize(("size", "each"), [(16, 300), (LARGE, 30)])
def test_one_publisher_serves_many_threads(local: LocalBus, size: int, each: int) -> None:
    topic = local.connect().topic("threads", slot_size=size, history=THREADS * each)
    publisher = topic.publisher()
    receipts: list[tuple[int, bytes]] = []

    def publish(thread: int) -> None:
        for number in range(each):
            data = (b"%d:%d;" % (thread, number)).ljust(size, b"%d" % thread)
            receipts.append((publisher.publish(data).first_offset, data))

    in_threads(publish)
    read = topic.read_oldest(THREADS * each)
    assert {sample.offset: bytes(sample) for sample in read.samples} == dict(receipts)
    last = Counter[int]()
    for sample in read.samples:
        thread, number = map(int, bytes(sample).split(b";")[0].split(b":"))
        assert number == last[thread]
        last[thread] += 1


def test_threads_wait_together_for_a_reliable_subscriber(local: LocalBus) -> None:
    topic = local.connect().topic("threads", slot_size=16, history=1, depth=1)
    subscription, publisher = topic.subscribe(reliable=True), topic.publisher()
    taken: list[bytes] = []

    def publish_or_take(thread: int) -> None:
        if thread == 0:
            while len(taken) < 20 * (THREADS - 1):
                with subscription.take(20) or pytest.fail("a sample is missing") as sample:
                    taken.append(bytes(sample))
            return
        for number in range(20):
            publisher.publish(b"%d:%d" % (thread, number))

    in_threads(publish_or_take)
    assert len(set(taken)) == 20 * (THREADS - 1)
    assert subscription.missed == 0


def test_one_subscription_serves_many_threads(local: LocalBus) -> None:
    topic = local.connect().topic("threads", slot_size=16, history=2000, max_held=THREADS)
    subscription = topic.subscribe()
    topic.publish_many([b"%d" % number for number in range(2000)])
    taken: list[int] = []

    def take(thread: int) -> None:
        while (sample := subscription.take(0)) is not None:
            with sample:
                taken.append(int(bytes(sample)))

    in_threads(take)
    assert sorted(taken) == list(range(2000))


def test_one_subscription_gives_each_value_to_one_thread(local: LocalBus) -> None:
    topic = local.connect().topic("threads", slot_size=16, history=2000)
    subscription = topic.subscribe()
    topic.publish_many([b"%d" % number for number in range(2000)])
    taken: list[int] = []

    def take(thread: int) -> None:
        while values := subscription.take_values(1 + thread % 3, 0):
            taken.extend(int(bytes(value)) for value in values)

    in_threads(take)
    assert sorted(taken) == list(range(2000))


def test_large_copies_let_other_threads_run(local: LocalBus) -> None:
    topic = local.connect().topic("copies", slot_size=32 << 20, history=1, depth=1)
    steps, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            steps[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    counting = threading.Thread(target=count)
    data = bytes(32 << 20)
    # With so long an interval a thread runs only while another one gives the lock up by itself.
    sys.setswitchinterval(1000)
    try:
        counting.start()
        progress = [run_and_count(lambda: topic.publish(data), steps) for _ in range(5)]
    finally:
        over.set()
        counting.join()
        sys.setswitchinterval(interval)
    assert max(progress) > 0


def run_and_count(work: Callable[[], Any], steps: list[int]) -> int:
    before = steps[0]
    work()
    return steps[0] - before


def test_a_bus_is_closed_under_waiting_threads(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("closing", slot_size=16, history=1, depth=1)
    subscription = topic.subscribe(reliable=True)
    topic.publish_many([b"x", b"x"])
    ends: list[str] = []

    def wait(thread: int) -> None:
        if thread == 0:
            time.sleep(0.2)
            bus.close()
            return
        try:
            if thread % 2:
                topic.publish(b"waits")
            else:
                empty = topic.subscribe()
                empty.take()
        except hawser.Closed:
            ends.append("closed")

    in_threads(wait, 5)
    assert ends == ["closed"] * 4
    with pytest.raises(hawser.Closed):
        subscription.take(0)
