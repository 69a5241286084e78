"""Threads share the objects of a bus, and switch as often as the interpreter can: nothing is lost or comes
twice. Both scopes; tests/hostile/shared_objects.py and shared_on_cluster.py do it to every method."""

import itertools
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hawser

THREADS = 3
EACH = 120
PATIENCE_SECONDS = 30
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_threads(works: list[Callable[[random.Random], None]]) -> None:
    """Each in a thread; what they raise, and one that does not end, fails the test."""
    errors: list[str] = []

    def run(work: Callable[[random.Random], None], number: int) -> None:
        try:
            work(random.Random(number))
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [
        threading.Thread(target=run, args=(work, number), daemon=True) for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)


def numbers_of(thread: int) -> list[bytes]:
    return [b"%d.%d" % (thread, number) for number in range(EACH)]


def once(told: list[bytes]) -> bool:
    return Counter(told) == Counter(each for thread in range(THREADS) for each in numbers_of(thread))


def test_threads_share_a_topic_and_a_subscription(bus: hawser.Bus) -> None:
    topic: Any = bus.topic(f"shared {next(_numbers)}", max_held=16)
    subscription, publisher = topic.subscribe(start="earliest", reliable=True), topic.publisher()
    taken: list[bytes] = []

    def publish(thread: int) -> Callable[[random.Random], None]:
        def work(chance: random.Random) -> None:
            left = numbers_of(thread)
            while left:
                part, left = left[: (size := chance.randrange(1, 9))], left[size:]
                target = chance.choice([topic, publisher])
                if size == 1:
                    target.publish(part[0])
                else:
                    target.publish_many(part)
                topic.info()

        return work

    def take(chance: random.Random) -> None:
        while len(taken) < THREADS * EACH:
            how = chance.randrange(4)
            if how == 0:
                taken.extend(subscription.take_values(5, 0.01))
            elif how == 1:
                taken.extend(bytes(sample) for sample in subscription.take_many(3, 0.01))
            elif (
                value := subscription.take_value(0.01) if how == 2 else subscription.take(0.01)
            ) is not None:
                taken.append(bytes(value))
            assert subscription.missed == 0 and subscription.received >= 0

    run_threads([*(publish(thread) for thread in range(THREADS)), *([take] * THREADS)])
    assert once(taken)
    assert subscription.take(0) is None


def test_threads_share_a_queue_and_a_consumer(bus: hawser.Bus) -> None:
    queue: Any = bus.queue(f"shared {next(_numbers)}")
    consumer = queue.consume(prefetch=2)
    accepted: list[bytes] = []

    def put(thread: int) -> Callable[[random.Random], None]:
        def work(chance: random.Random) -> None:
            for each in numbers_of(thread):
                queue.put(each)

        return work

    def work_off(chance: random.Random) -> None:
        while len(accepted) < THREADS * EACH:
            how = chance.randrange(4)
            if how == 0 and (message := queue.get(0.01)) is not None:
                if chance.random() < 0.5:
                    accept(message)
                else:
                    message.release()
            elif how == 1:
                with queue.get_values(3, 0.01) as values:
                    pass
                accepted.extend(values)
            elif how == 2:
                for each in itertools.islice(consumer, 1):
                    accept(each)
            elif how == 3:
                with queue.get_many(2, 0.01) as messages:
                    done = [bytes(each) for each in messages]
                accepted.extend(done)

    def accept(message: Any) -> None:
        data = bytes(message)
        with message:
            assert bytes(message) == data
        accepted.append(data)

    def close_at_the_end(chance: random.Random) -> None:
        done = threading.Event()
        while len(accepted) < THREADS * EACH:
            done.wait(0.05)
        consumer.close()

    run_threads([*(put(thread) for thread in range(THREADS)), *([work_off] * THREADS), close_at_the_end])
    assert once(accepted)
    assert queue.get(0) is None
