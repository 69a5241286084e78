"""Threads share every public object of a cluster with every method:
`python -m tests.hostile.shared_on_cluster URL`. As tests/hostile/shared_objects.py, and with transactions and
branches: each of those is in the books as a whole, or not at all.
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
from itertools import islice
from types import MethodType
from typing import Any

import hawser
from hawser.cluster.client.sample import FetchedSample
from hawser.cluster.client.subscribe.subscription import Consumer
from hawser.xa import XA, XAError, Xid
from tests.hostile import shared_objects as host
from tests.hostile.shared_scene import (
    PUBLISHERS,
    USES,
    Book,
    Scene,
    Value,
    Wrong,
    check_sample,
    covered,
    encoded,
    key_of,
    names,
    uses,
    value_of,
)

PATIENCE_SECONDS = 30.0
# In this time another thread certainly takes, too.
MEETING_SECONDS = 0.05
# What one host alone has, or means otherwise.
LOCAL: set[Callable[..., None]] = {
    host.ask_subscription, host.use_topic, host.ask_bus, host.use_another_bus, host.use_queue,
    host.lend, host.end_a_loan,
}  # fmt: skip


class Together:
    """A transaction or a branch that threads share, and what they did in it."""

    def __init__(self, work: Any, xid: Xid | None = None) -> None:
        self.work = work
        self.xid = xid
        self.published: list[int] = []
        self.put: list[int] = []
        self.accepted: list[int] = []
        # Of a branch: what a call that completed it has said.
        self.told: set[str] = set()


class ClusterScene(Scene):
    """What the threads share."""

    def __init__(self, bus: hawser.Bus) -> None:
        super().__init__(bus, (PATIENCE_SECONDS,))
        self.works: list[Together] = []
        self.all_works: list[Together] = []
        self.making = threading.Lock()
        # How long to wait for messages that are still to come when all threads have ended.
        self.drain_seconds = PATIENCE_SECONDS
        # Its position goes with transactions, and back with them.
        self.placed = self.topic.subscribe(group="placed")
        for shared in (self.topic, self.queue):
            if shared.info().head:
                # Each run begins with number 1: what another one published would be in the books of this one.
                raise Wrong(f"{shared.name!r} has {shared.info().head} messages of an earlier run; delete it")


def current(scene: ClusterScene, chance: random.Random) -> Together:
    """A transaction or branch that others may work in, too."""
    with scene.making:
        if len(scene.works) < 3:
            if chance.random() < 0.5 and not any(each.xid for each in scene.works):
                xid = Xid(7, b"%d" % next(scene.numbers), b"")
                made = Together(scene.bus.xa.start(xid), xid)
            else:
                made = Together(scene.bus.transaction())
            scene.works.append(made)
            scene.all_works.append(made)
        return chance.choice(scene.works)


@uses("Transaction.publish", "publish_many", "id", "state", weight=4)
def publish_together(scene: ClusterScene, chance: random.Random) -> None:
    together = current(scene, chance)
    numbers = [next(scene.numbers) for _ in range(chance.choice([1, 1, 3]))]
    keys = list(map(key_of, numbers))
    target, kept = chance.choice([(scene.topic, together.published), (scene.queue, together.put)])
    values: list[Any] = list(map(value_of if target is scene.topic else encoded, numbers))
    if len(numbers) == 1:
        together.work.publish(target, values[0], key=keys[0])
    else:
        together.work.publish_many(target, values, keys=keys)
    kept += numbers
    if not together.work.id or (together.xid is None and not together.work.state):
        raise Wrong("a transaction has no state")


@uses("Transaction.get", "get_many", "accept", weight=4)
def get_together(scene: ClusterScene, chance: random.Random) -> None:
    together = current(scene, chance)
    if chance.random() < 0.5:
        message = together.work.get(scene.queue, 0)
        messages = [] if message is None else [message]
    else:
        messages = together.work.get_many(scene.queue, 2, 0)
    numbers = [check_sample(message) for message in messages]
    if messages and chance.random() < 0.8:
        together.work.accept(messages if chance.random() < 0.5 else list(messages))
        together.accepted += numbers


@uses(
    *("Transaction.commit", "rollback", "resolve", "commit_offsets", "__exit__"),
    *("XA.start", "end", "prepare", "commit", "rollback", "recover", "forget", "set_timeout", "get_timeout"),
    weight=2,
)
def end_together(scene: ClusterScene, chance: random.Random) -> None:
    together = current(scene, chance)
    if together.xid is not None:
        end_branch(scene, together, chance)
        return
    work = together.work
    how = chance.random()
    if how < 0.1:
        scene.placed.take_many(3, 0)
        work.commit_offsets(scene.placed)
        return
    try:
        if how < 0.6:
            work.commit()
        elif how < 0.8:
            with work:
                pass
        elif how < 0.9:
            work.rollback()
        work.resolve()
    finally:
        leave(scene, together)


def leave(scene: ClusterScene, together: Together) -> None:
    with scene.making:
        if together in scene.works and (together.xid is not None or together.work.state != "open"):
            scene.works.remove(together)


def end_branch(scene: ClusterScene, together: Together, chance: random.Random) -> None:
    """Threads complete it at the same time: each call is answered, or refused."""
    xa, xid = scene.bus.xa, together.xid
    assert xid is not None
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("set_timeout", lambda: xa.set_timeout(xid, 600)),
        ("get_timeout", lambda: xa.get_timeout(xid)),
        ("suspend", lambda: xa.end(xid, suspend=True)),
        ("resume", lambda: setattr(together, "work", xa.start(xid, resume=True))),
        ("end", lambda: xa.end(xid)),
        ("forget", lambda: xa.forget(xid)),
        ("recover", lambda: xa.recover()),
        chance.choice(
            [
                ("commit", lambda: (xa.prepare(xid), xa.commit(xid))),
                ("commit", lambda: xa.commit(xid, one_phase=True)),
                ("rollback", lambda: xa.rollback(xid)),
            ]
        ),
    ]
    for name, step in steps:
        try:
            step()
        except XAError as error:
            if error.code not in ("illegal-state", "not-found", "command-invalid", "rb-rollback"):
                raise Wrong(f"{name}: {error}") from error
        except hawser.UsageError:
            continue
        else:
            together.told.add(name)
    leave(scene, together)


@uses("Topic.loan", "loan_array", "Publisher.loan", "loan_array", "Loan.receipt")
def lend(scene: ClusterScene, chance: random.Random) -> None:
    n = next(scene.numbers)
    data, target = encoded(n), chance.choice([scene.topic, scene.publisher])
    lend_it: Any = chance.choice([target.loan, target.loan_array])
    loan = lend_it(len(data), key=key_of(n))
    with loan as buffer:
        buffer[:] = list(data) if hasattr(buffer, "dtype") else data
    if loan.receipt is None:
        raise Wrong(f"{n} was published without a receipt")
    scene.published.append(n)


@uses("Bus.transaction", "run_transaction")
def run_transaction(scene: ClusterScene, chance: random.Random) -> None:
    n, m = next(scene.numbers), next(scene.numbers)

    def work(tx: hawser.Transaction) -> None:
        tx.publish(scene.topic, value_of(n), key=key_of(n))
        tx.publish(scene.queue, encoded(m), key=key_of(m))

    scene.bus.run_transaction(work)
    scene.published.append(n)
    scene.put.append(m)


@uses("Subscription.take_batches", "missed", "received", "position", "held", "commit", "positions")
def ask_subscription(scene: ClusterScene, chance: random.Random) -> None:
    subscription, book = host.shared_subscription(scene, chance)
    if subscription.missed or subscription.held or subscription.received > subscription.position:
        raise Wrong(f"{subscription.missed} missed, {subscription.received} received")
    try:
        for batch in subscription.take_batches(1, 0):
            book.taken += map(int, batch.column("key").to_pylist())
    except hawser.Corrupt as error:
        book.note(error)
    try:
        scene.subscriptions["group"].commit()
    except hawser.Corrupt as error:
        scene.books["group"].note(error)


@uses("Topic.info", "read_oldest", "read_newest", "subscribe", "publisher")
def use_topic(scene: ClusterScene, chance: random.Random) -> None:
    if scene.topic.info().name != "shared":
        raise Wrong("another topic")
    for result in (scene.topic.read_oldest(5), scene.topic.read_newest(3)):
        for sample in result.samples:
            check_sample(sample)
    with scene.topic.subscribe(start="latest") as own:
        own.take_many(2, 0)
    with scene.topic.publisher():
        pass


@uses("Queue.info", "peek", "dead_letters", "retry_dead_letters")
def use_queue(scene: ClusterScene, chance: random.Random) -> None:
    scene.queue.info()
    for sample in [*scene.queue.peek(5), *scene.queue.dead_letters().peek(3)]:
        check_sample(sample)
    scene.queue.retry_dead_letters(chance.choice([2, None]))


@uses("Bus.topics", "queues", "participants", "recover", "topic", "queue", "xa")
def ask_bus(scene: ClusterScene, chance: random.Random) -> None:
    bus = scene.bus
    if "shared" not in bus.topics() or "jobs" not in bus.queues():
        raise Wrong(f"{bus.topics()} {bus.queues()}")
    if bus.topic("shared", schema=Value) is not scene.topic or bus.queue("jobs") is not scene.queue:
        raise Wrong("another object of the same name")
    bus.participants()
    bus.recover()


def count_up(scene: ClusterScene) -> None:
    """Every transaction and branch is over; then every number is where it belongs."""
    for together in scene.all_works:
        if together.xid is not None:
            end_for_good(scene, together.xid)
    found = {int(each.key or b"") for each in scene.topic.read_oldest(1_000_000).samples}
    for together in scene.all_works:
        if together.xid is None:
            together.work.rollback()
            is_committed = together.work.resolve()
        else:
            is_committed = "commit" in together.told or bool(found & set(together.published))
        if is_committed:
            scene.published += together.published
            scene.put += together.put
            scene.accepted.taken += together.accepted
    for thread_safe in (scene.held, scene.messages, scene.loans):
        thread_safe.clear()
    gc.collect()
    for which, subscription in scene.subscriptions.items():
        drain(subscription, scene.books[which], len(scene.published), scene.drain_seconds)
        scene.books[which].check_once(which, scene.published)
    if scene.topic.info().head != len(scene.published):
        raise Wrong(f"{scene.topic.info().head} messages, {len(scene.published)} published")
    scene.consumer.close()
    while (info := scene.queue.info()).ready or info.dead or info.claimed:
        if (message := scene.queue.get(0.05)) is None:
            scene.queue.retry_dead_letters()
            continue
        number = check_sample(message)
        try:
            message.accept()
        except hawser.Fenced:
            continue  # the queue has another leader
        scene.accepted.taken.append(number)
    scene.accepted.check_once("queue", scene.put)


def drain(subscription: hawser.Subscription[Value], book: Book, count: int, seconds: float) -> None:
    while len(book.taken) + len(book.errors) < count:
        try:
            values = subscription.take_values(100, seconds)
        except hawser.Corrupt as error:
            book.note(error)
            continue
        if not values:
            return
        book.taken += [value.n for value in values]


def end_for_good(scene: ClusterScene, xid: Xid) -> None:
    for step in (scene.bus.xa.end, scene.bus.xa.rollback):
        try:
            step(xid)
        except (XAError, hawser.UsageError):
            continue


def unused() -> set[str]:
    """The public methods that no use here is about."""
    found = set()
    for each in (hawser.Transaction, XA):
        public = {f"{each.__name__}.{name}" for name in dir(each) if not name.startswith("_")}
        found |= public - covered
    return found


def plant(scene: ClusterScene) -> None:
    """Let threads that take at the same time begin the same batch: they take its first message twice."""
    # Its batches would be cut at wrong places, which is another error than the one to be seen.
    USES[:] = [each for each in USES if each.__wrapped__ is not ask_subscription]  # type: ignore[attr-defined]
    scene.drain_seconds = 0.5
    for which in ("reliable", "lossy"):
        consumer = scene.subscriptions[which]._consumer  # type: ignore[attr-defined]
        consumer.next_sample = MethodType(take_unlocked, consumer)
        consumer._check_not_taking = lambda: None


def take_unlocked(self: Consumer) -> FetchedSample | None:
    """As `Consumer.next_sample`, but others may take while it begins a batch."""
    while True:
        chunk, records = self._chunk, self._records
        if chunk is not None and self._is_wanted(chunk):
            if records is None:
                records = iter(list(islice(chunk.batch.records(), chunk.skip, None)))
                self.lock.release()
                time.sleep(MEETING_SECONDS)
                self.lock.acquire()
                if self._chunk is chunk:
                    self._records = records
            record = next(records, None)
            if record is not None:
                return self._taken(chunk, record)
        if not self._open_next():
            return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted", action="store_true", help="threads begin a batch at once")
    arguments = parser.parse_args()
    logging.disable()
    sys.setswitchinterval(host.SWITCH_SECONDS)
    unraisable: list[str] = []
    sys.unraisablehook = lambda found: unraisable.append(f"{found.exc_value!r} in {found.object!r}")
    PUBLISHERS.add("")
    USES[:] = [each for each in USES if each.__wrapped__ not in LOCAL]  # type: ignore[attr-defined]
    if unused():
        print(f"no thread uses {unused()}", file=sys.stderr)
        return 1
    scene = ClusterScene(hawser.connect(arguments.url, name="sharer"))
    if arguments.planted:
        plant(scene)
    try:
        host.run_threads(scene, arguments.seconds, arguments.seed)
        if not scene.findings:
            count_up(scene)
            host.close_under_use(scene, arguments.seconds / 4, arguments.seed + 1)
    except Exception:
        scene.findings.append(traceback.format_exc())
    scene.findings += unraisable
    for finding in scene.findings[:3]:
        print(finding, file=sys.stderr)
    print(
        f"calls={sum(names.values())} published={len(scene.published)} put={len(scene.put)} "
        f"transactions={len(scene.all_works)}"
    )
    return 1 if scene.findings else 0


if __name__ == "__main__":
    sys.exit(main())
