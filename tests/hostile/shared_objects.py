"""Threads share every public object of one host with every method: `python -m tests.hostile.shared_objects`.

Messages are numbers, and each says its own: what is read must be what was published at that offset. At the
end the numbers are counted: through a shared reliable subscription each message is taken once, in a shared
queue each is accepted once, and nothing is held any more. Prints the figures.
"""

import argparse
import gc
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

import hawser
from hawser.testing import LocalBus
from tests.hostile.shared_scene import (
    UNREADABLE_WORDS,
    USES,
    Book,
    Scene,
    Use,
    Value,
    Wrong,
    check_sample,
    encoded,
    key_of,
    names,
    uses,
    value_of,
)

THREADS = 4
SWITCH_SECONDS = 1e-6
JOIN_SECONDS = 60
ALLOWED = (hawser.HawserError, BufferError, StopIteration)


# Publishing


def published_of(error: hawser.HawserError, numbers: list[int]) -> list[int]:
    return numbers[: error.published]


@uses("Topic.publish", "publish_nowait", "flush", "Publisher.publish")
def publish_one(scene: Scene, chance: random.Random) -> None:
    n = next(scene.numbers)
    if chance.random() < 0.3:
        scene.topic.publish_nowait(value_of(n), key=key_of(n)).result()
        scene.topic.flush()
    else:
        target: Any = chance.choice([scene.topic, scene.publisher])
        target.publish(value_of(n), key=key_of(n), timeout=chance.choice(scene.patience))
    scene.published.append(n)


@uses("Topic.publish_many", "Publisher.publish_many", weight=4)
def publish_several(scene: Scene, chance: random.Random) -> None:
    numbers = [next(scene.numbers) for _ in range(chance.randrange(1, 9))]
    target: Any = chance.choice([scene.topic, scene.publisher])
    try:
        target.publish_many(map(value_of, numbers), keys=map(key_of, numbers), timeout=scene.patience[0])
    except hawser.HawserError as error:
        scene.published += published_of(error, numbers)
        raise
    scene.published += numbers


@uses("Topic.loan", "loan_array", "Publisher.loan", "loan_array")
def lend(scene: Scene, chance: random.Random) -> None:
    n = next(scene.numbers)
    data, target = encoded(n), chance.choice([scene.topic, scene.publisher])
    if chance.random() < 0.5:
        loan: Any = target.loan(len(data), key=key_of(n), timeout=scene.patience[0])
        with memoryview(loan) as view:
            view[:] = data
        scene.share(scene.loans, (n, loan))
        return
    loan = target.loan_array(len(data), key=key_of(n), timeout=scene.patience[0])
    try:
        with loan as array:
            array[:] = list(data)
    finally:
        if loan.receipt is not None:
            scene.published.append(n)


@uses("Loan.publish", "drop", "receipt", "nbytes")
def end_a_loan(scene: Scene, chance: random.Random) -> None:
    """Whoever publishes it writes it down; others look at it, drop it and publish it at the same time."""
    n, loan = scene.any_of(scene.loans, chance)
    how = chance.random()
    if how < 0.2:
        with memoryview(loan) as view:
            if bytes(view) != encoded(n):
                raise Wrong(f"loan {n} holds {bytes(view)!r}")
    elif how < 0.4:
        loan.drop()
    elif how < 0.7:
        with loan:
            pass
        if not loan.receipt or loan.nbytes != len(encoded(n)):
            raise Wrong(f"loan {n} was published without a receipt")
        scene.published.append(n)
    else:
        loan.publish(scene.patience[0])
        scene.published.append(n)


# Taking


def shared_subscription(scene: Scene, chance: random.Random) -> tuple[hawser.Subscription[Value], Book]:
    which = chance.choice(["reliable", "reliable", "reliable", "lossy", "group"])
    return scene.subscriptions[which], scene.books[which]


@uses("Subscription.take", "take_many", weight=2)
def take_samples(scene: Scene, chance: random.Random) -> None:
    subscription, book = shared_subscription(scene, chance)
    try:
        if chance.random() < 0.5:
            found = [subscription.take(chance.choice([0, 0.0005]))]
        else:
            found = list(subscription.take_many(chance.randrange(1, 5), 0))
    except hawser.Corrupt as error:
        book.note(error)
        return
    for sample in found:
        if sample is not None:
            book.taken.append(check_sample(sample))
            scene.share(scene.held, sample)


@uses("Subscription.take_value", "take_values", weight=4)
def take_values(scene: Scene, chance: random.Random) -> None:
    subscription, book = shared_subscription(scene, chance)
    try:
        if chance.random() < 0.4:
            value = subscription.take_value(chance.choice([0, 0.0005]))
            values = [] if value is None else [value]
        else:
            values = subscription.take_values(chance.randrange(1, 9), 0)
    except hawser.Corrupt as error:
        book.note(error)
        return
    book.taken += [value.n for value in values]


@uses("Subscription.__next__", "values")
def iterate(scene: Scene, chance: random.Random) -> None:
    if not scene.iterating.acquire(blocking=False):
        return
    subscription, book = scene.subscriptions["reliable"], scene.books["reliable"]
    try:
        if chance.random() < 0.5:
            book.taken.append(check_sample(next(subscription)))
        else:
            book.taken.append(next(subscription.values()).n)
    except hawser.Corrupt as error:
        book.note(error)
    finally:
        scene.iterating.release()


@uses("Subscription.missed", "received", "position", "held", "incarnation", "name", "commit", "take_batches")
def ask_subscription(scene: Scene, chance: random.Random) -> None:
    subscription, _ = shared_subscription(scene, chance)
    if (
        subscription.missed < 0
        or subscription.held > 16
        or subscription.incarnation < 1
        or not subscription.name
    ):
        raise Wrong(f"{subscription.missed} missed, {subscription.held} held")
    if subscription.received > subscription.position:
        raise Wrong(f"{subscription.received} received up to {subscription.position}")
    try:
        scene.subscriptions["group"].commit()
    except hawser.Corrupt as error:
        scene.books["group"].note(error)
    subscription.take_batches(1, 0)


@uses("Sample.data", "value", "array", "arrow", "offset", "timestamp_ns", "publisher", "key", "headers")
def read_sample(scene: Scene, chance: random.Random) -> None:
    sample = scene.any_of(scene.held, chance)
    n = check_sample(sample)
    view = sample.data if chance.random() < 0.5 else sample.array()
    if chance.random() < 0.3:
        scene.share(scene.held, sample)
    if bytes(view) != encoded(n):
        raise Wrong(f"a view of {n} is {bytes(view)!r}")
    try:
        if sample.value.n != n:
            raise Wrong(f"the value of {n} is {sample.value}")
        sample.arrow()
    except (hawser.Corrupt, ValueError):
        return


@uses("Sample.release", "__exit__", "lost_before", "partition")
def release_sample(scene: Scene, chance: random.Random) -> None:
    sample = scene.any_of(scene.held, chance)
    if chance.random() < 0.5:
        sample.release()
    else:
        with sample:
            check_sample(sample)


# The topic and the bus


@uses("Topic.info", "read_oldest", "read_newest", "forget", "name", "subscribe", "publisher")
def use_topic(scene: Scene, chance: random.Random) -> None:
    info = scene.topic.info()
    if info.slots_leaked or info.name != scene.topic.name:
        raise Wrong(f"{info.slots_leaked} slots leaked")
    for result in (scene.topic.read_oldest(5, max(0, info.oldest - 1)), scene.topic.read_newest(3)):
        for sample in result.samples:
            check_sample(sample)
    if scene.topic.forget("nobody"):
        raise Wrong("nobody was forgotten")
    with scene.topic.subscribe(history=3) as own:
        own.take_values(2, 0)
    with scene.topic.publisher():
        pass


@uses("Topic.delete", "close", "Publisher.close", "name", "incarnation", "Subscription.close")
def use_up_a_topic(scene: Scene, chance: random.Random) -> None:
    """One that the threads publish to, delete and close at the same time."""
    topic = scene.bus.topic("short-lived", schema=Value, slot_size=64)
    publisher, subscription = topic.publisher(), topic.subscribe(history=4)
    subscription.take_values(4, 0)
    if publisher.incarnation < 1 or publisher.name != subscription.name:
        raise Wrong("names differ")
    ends: list[Callable[[], object]] = [topic.close, publisher.close, subscription.close]
    ends.append(lambda: topic.delete(force=True))
    chance.choice(ends)()
    publisher.publish(value_of(1))
    subscription.close()
    publisher.close()


@uses("Bus.topics", "queues", "files", "participants", "recover", "topic", "queue", "name", "url", "xa")
def ask_bus(scene: Scene, chance: random.Random) -> None:
    bus = scene.bus
    if "shared" not in bus.topics() or "jobs" not in bus.queues() or bus.name != "sharer" or not bus.url:
        raise Wrong(f"{bus.topics()} {bus.queues()}")
    bus.files()
    if not bus.participants():
        raise Wrong("nobody takes part")
    if bus.topic("shared", schema=Value) is not scene.topic or bus.queue("jobs") is not scene.queue:
        raise Wrong("another object of the same name")
    if bus.recover():
        raise Wrong("somebody died")
    raise Wrong(f"{bus.xa} is a resource of one host")


def do_nothing(transaction: object) -> None:
    """In a transaction."""


@uses("Bus.transaction", "run_transaction", "close")
def use_another_bus(scene: Scene, chance: random.Random) -> None:
    """There are no transactions on one host."""
    with hawser.connect(scene.bus.url, name="another") as bus:
        bus.topic("shared", schema=Value).publisher().close()
        if chance.random() < 0.5:
            bus.transaction()
        bus.run_transaction(do_nothing)


# The queue


@uses("Queue.put", "put_many")
def put(scene: Scene, chance: random.Random) -> None:
    numbers = [next(scene.numbers) for _ in range(chance.choice([1, 1, 4]))]
    items = [encoded(n) for n in numbers]
    try:
        if len(numbers) == 1:
            scene.queue.put(items[0], key=key_of(numbers[0]), timeout=chance.choice(scene.patience))
        else:
            scene.queue.put_many(items, keys=map(key_of, numbers), timeout=scene.patience[0])
    except hawser.HawserError as error:
        scene.put += published_of(error, numbers)
        raise
    scene.put += numbers


@uses("Queue.get", "get_many", "Messages.accept", "release", "reject")
def get_messages(scene: Scene, chance: random.Random) -> None:
    if chance.random() < 0.6:
        message = scene.queue.get(chance.choice([0, 0.0005]))
        if message is not None:
            check_sample(message)
            scene.share(scene.messages, message)
        return
    messages = scene.queue.get_many(chance.randrange(1, 5), 0)
    numbers = [check_sample(message) for message in messages]
    if chance.random() < 0.7:
        messages.accept()
        scene.accepted.taken += numbers
    else:
        chance.choice([messages.release, messages.reject])()


@uses("Message.accept", "release", "reject", "__exit__")
def settle_message(scene: Scene, chance: random.Random) -> None:
    """One thread settles it, while others may read it."""
    message = scene.taken_from(scene.messages)
    n, how = check_sample(message), chance.random()
    if how < 0.3:
        with message:
            pass
        scene.accepted.taken.append(n)
    elif how < 0.6:
        message.accept()
        scene.accepted.taken.append(n)
    else:
        chance.choice([message.release, message.reject])()


@uses("Message.data", "array", "delivery_count", "redelivered", "value", "arrow")
def read_message(scene: Scene, chance: random.Random) -> None:
    message = scene.any_of(scene.messages, chance)
    n = check_sample(message)
    view = message.data if chance.random() < 0.5 else message.array()
    if bytes(view) != encoded(n) or message.value != encoded(n):
        raise Wrong(f"a view of {n} is {bytes(view)!r}")
    if message.delivery_count < 1 or message.delivery_count > 1 > message.redelivered:
        raise Wrong(f"{message.delivery_count} deliveries, redelivered: {message.redelivered}")


@uses("Queue.get_values", "Values.accept", "release", "reject")
def get_values(scene: Scene, chance: random.Random) -> None:
    values = scene.queue.get_values(chance.randrange(1, 9), 0)
    numbers = [msgspec.msgpack.decode(value)["n"] for value in values]
    how = chance.random()
    if how < 0.7:
        with values:
            pass
        scene.accepted.taken += numbers
    elif how < 0.9:
        chance.choice([values.release, values.reject])()


@uses("Consumer.values", "ValueLoop.accept", "release", "reject", "__next__")
def loop_over_values(scene: Scene, chance: random.Random) -> None:
    """A loop of one's own, over a consumer that all share."""
    done: list[int] = []
    with scene.consumer.values() as values:
        for value in values:
            scene.accepted.taken += done
            done = [msgspec.msgpack.decode(value)["n"]]
            if chance.random() < 0.3:
                chance.choice([values.release, values.reject])()
                done = []
            if chance.random() < 0.4 or scene.stop.is_set():
                break
    scene.accepted.taken += done


@uses("Queue.consume", "Consumer.__iter__", "__next__", "close", "name")
def loop_over_messages(scene: Scene, chance: random.Random) -> None:
    if chance.random() < 0.5:
        return work_off(scene.consumer, scene, chance)
    with scene.queue.consume(prefetch=chance.randrange(3)) as consumer:
        return work_off(consumer, scene, chance)


def work_off(consumer: hawser.Consumer[Any], scene: Scene, chance: random.Random) -> None:
    """Other threads loop over the same consumer. One message after the other, in a block or not."""
    if consumer.name != "jobs":
        raise Wrong(consumer.name)
    for message in consumer:
        n = check_sample(message)
        if chance.random() < 0.5:
            with message:
                check_sample(message)
        else:
            message.accept()
        scene.accepted.taken.append(n)
        if chance.random() < 0.4 or scene.stop.is_set():
            break


@uses("Queue.info", "peek", "dead_letters", "retry_dead_letters", "forget", "name")
def use_queue(scene: Scene, chance: random.Random) -> None:
    info = scene.queue.info()
    if info.slots_leaked or info.name != scene.queue.name:
        raise Wrong(f"{info.slots_leaked} slots leaked")
    for sample in scene.queue.peek(5):
        check_sample(sample)
    if scene.queue.forget("nobody"):
        raise Wrong("nobody was forgotten")
    for letter in scene.queue.dead_letters().peek(3):
        if letter.key is None or bytes(letter) != encoded(int(letter.key)):
            raise Wrong(f"letter {letter.key!r} is {bytes(letter)!r}")
    scene.queue.retry_dead_letters(chance.choice([2, None]))


@uses("Queue.delete", "close")
def use_up_a_queue(scene: Scene, chance: random.Random) -> None:
    queue = scene.bus.queue("short-lived jobs", slot_size=64)
    queue.put(b"x", timeout=0)
    queue.get(0)
    ends: list[Callable[[], object]] = [queue.close, lambda: queue.delete(force=True)]
    chance.choice(ends)()
    queue.put(b"x", timeout=0)


def work(scene: Scene, chance: random.Random, draw: list[Use], until: threading.Event) -> None:
    """One thread. An error of Hawser's own is a right answer, unless it speaks of damage."""
    while not until.is_set() and not scene.findings:
        use = chance.choice(draw)
        try:
            use(scene, chance)
        except hawser.Corrupt as error:
            if UNREADABLE_WORDS not in str(error):
                scene.findings.append(traceback.format_exc())
        except ALLOWED:
            continue
        except BaseException:
            scene.findings.append(traceback.format_exc())


def run_threads(scene: Scene, seconds: float, seed: int) -> None:
    """The threads that take end first: what they wait for must come. All of them end, or it is a finding."""
    takers = [
        threading.Thread(
            target=work, args=(scene, random.Random(f"{seed} {i}"), USES, scene.stop), daemon=True
        )
        for i in range(THREADS)
    ]
    feeding: list[Use] = [publish_one, publish_several, put]
    feeder = threading.Thread(target=work, args=(scene, random.Random(seed), feeding, scene.dry), daemon=True)
    for thread in [*takers, feeder]:
        thread.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not scene.findings:
        time.sleep(0.05)
    scene.stop.set()
    for thread in takers:
        thread.join(JOIN_SECONDS)
    scene.dry.set()
    feeder.join(JOIN_SECONDS)
    if any(thread.is_alive() for thread in [*takers, feeder]):
        raise Wrong("a thread does not end")


def count_up(scene: Scene) -> None:
    """Take what is left; then every number must be where it belongs, and nothing held."""
    while scene.loans:
        scene.loans.pop()[1].drop()
    scene.held.clear()
    scene.messages.clear()
    gc.collect()
    for which, subscription in scene.subscriptions.items():
        drain(subscription, scene.books[which])
        scene.books[which].check_once(which, scene.published, subscription.missed)
        if subscription.held:
            raise Wrong(f"{which}: {subscription.held} samples are held")
    topic = scene.topic.info()
    told = (topic.head, topic.slots_lent, topic.slots_referenced, topic.slots_leaked)
    if told != (len(scene.published), 0, 0, 0):
        raise Wrong(f"head, lent, referenced and leaked are {told} after {len(scene.published)} messages")
    scene.consumer.close()
    while (info := scene.queue.info()).ready or info.dead:
        for message in iter(lambda: scene.queue.get(0), None):
            with message:
                scene.accepted.taken.append(check_sample(message))
        scene.queue.retry_dead_letters()
    scene.accepted.check_once("queue", scene.put)
    if scene.queue.info().claimed or scene.queue.info().slots_lent:
        raise Wrong("messages are held, and nobody has any")


def drain(subscription: hawser.Subscription[Value], book: Book) -> None:
    while True:
        try:
            values = subscription.take_values(100, 0)
        except hawser.Corrupt as error:
            book.note(error)
            continue
        if not values:
            return
        book.taken += [value.n for value in values]


def close_under_use(scene: Scene, seconds: float, seed: int) -> None:
    """The bus is closed while everything is in use: each thread gets Closed, and ends."""
    scene.stop.clear()
    scene.dry.clear()
    closing = threading.Timer(seconds, scene.bus.close)
    closing.start()
    run_threads(scene, 2 * seconds, seed)
    closing.join(JOIN_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    unraisable: list[str] = []
    sys.unraisablehook = lambda found: unraisable.append(f"{found.exc_value!r} in {found.object!r}")
    logging.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    with LocalBus() as local:
        scene = Scene(local.connect("sharer"))
        try:
            run_threads(scene, arguments.seconds, arguments.seed)
            if not scene.findings:
                count_up(scene)
                close_under_use(scene, arguments.seconds / 4, arguments.seed + 1)
        except Wrong:
            scene.findings.append(traceback.format_exc())
        scene.findings += unraisable
    for finding in scene.findings[:3]:
        print(finding, file=sys.stderr)
    print(
        f"calls={sum(names.values())} published={len(scene.published)} put={len(scene.put)} "
        f"accepted={len(scene.accepted.taken)} unreadable={len(scene.books['reliable'].errors)}"
    )
    return 1 if scene.findings else 0


if __name__ == "__main__":
    sys.exit(main())
