"""The processes of a storm. Each does one job until it is killed or the storm calms down."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from mmap import mmap
from pathlib import Path
from typing import Any

import hawser

from .journal import Journal, Kind, make_payload, message_of

MAX_HELD = 3
MAX_LOANS = 2
SETTINGS: dict[str, Any] = {
    "slot_size": 256,
    "history": 8,
    "depth": 8,
    "max_publishers": 6,
    "max_subscribers": 16,
    "max_held": MAX_HELD,
    "max_loans": MAX_LOANS,
}
PATIENCE_SECONDS = 0.3
PUBLISH_SECONDS = 0.05


class Phase(IntEnum):
    """Told to all workers through one shared byte."""

    STORM = 0
    NO_MORE_MESSAGES = 1
    DRAIN = 2
    DRAIN_LETTERS = 3


@dataclass
class Job:
    """What a worker needs to know. `options` are those of subscribe(), or of a queue."""

    url: str
    topic: str
    role: str
    name: str
    run: int
    journal: Path
    phase: mmap
    options: dict[str, Any] = field(default_factory=dict)
    pause_seconds: float = 0.0
    killable: bool = True

    def now(self) -> Phase:
        return Phase(self.phase[0])


def work(job: Job) -> None:
    """Do the job of this role to its end."""
    ROLES[job.role](job)


@contextmanager
def opened(job: Job) -> Iterator[hawser.Topic[Any]]:
    with hawser.connect(job.url, name=job.name) as bus:
        yield bus.topic(job.topic, **SETTINGS)


def publish(job: Job) -> None:
    journal, chance = Journal(job.journal), random.Random(job.run)
    number = 1
    with opened(job) as topic, topic.publisher() as publisher:
        while job.now() == Phase.STORM:
            count = chance.choice((1, 1, 1, 1, 5))
            messages = [make_payload(job.run, number + i, chance.randrange(0, 240, 4)) for i in range(count)]
            journal.write(Kind.PUBLISHING, count, number, 0)
            try:
                receipt = publish_somehow(publisher, messages, chance)
                journal.write(Kind.PUBLISHED, count, number, receipt.first_offset)
                number += count
            except hawser.Full as error:
                journal.write(Kind.REFUSED, count, number, error.published)
                number += error.published
            if chance.random() < 0.05:
                lend_too_much(publisher)
            time.sleep(chance.random() * job.pause_seconds)


def publish_somehow(
    publisher: hawser.Publisher[Any], messages: list[bytes], chance: random.Random
) -> hawser.Receipt:
    """One of the ways of publishing, at random."""
    if len(messages) > 1:
        return publisher.publish_many(messages, timeout=PUBLISH_SECONDS)[0]
    if chance.random() < 0.5:
        return publisher.publish(messages[0], timeout=PUBLISH_SECONDS)
    with suppress(ZeroDivisionError), publisher.loan(100) as dropped:
        dropped[:] = b"\xee" * 100
        raise ZeroDivisionError
    loan = publisher.loan(len(messages[0]), timeout=PUBLISH_SECONDS)
    with loan as buffer:
        buffer[:] = messages[0]
    receipt: hawser.Receipt | None = loan.receipt
    assert receipt is not None
    return receipt


def lend_too_much(publisher: hawser.Publisher[Any]) -> None:
    """One loan more than allowed is refused, and the rest stay usable."""
    loans = [publisher.loan(8) for _ in range(MAX_LOANS)]
    try:
        publisher.loan(8)
        raise AssertionError("a loan beyond max_loans was given")
    except hawser.Full:
        del loans


def subscribe(job: Job) -> None:
    journal = Journal(job.journal)
    with opened(job) as topic:
        before = topic.info().head
        subscription = join(topic, job.options)
        journal.write(Kind.STARTED, subscription.missed, subscription.position, before)
        take_all(job, subscription, journal)
        journal.write(Kind.ENDED, subscription.missed, subscription.position, subscription.received)
        subscription.close()


def join(topic: hawser.Topic[Any], options: dict[str, Any]) -> hawser.Subscription[Any]:
    """Subscribe; a place or a name whose dead holder somebody else is just recovering is tried again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return topic.subscribe(**options)
        except (hawser.Full, hawser.UsageError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def take_all(job: Job, subscription: hawser.Subscription[Any], journal: Journal) -> None:
    chance = random.Random(job.run)
    held: deque[tuple[hawser.Sample, bytes]] = deque()
    while True:
        phase = job.now()
        if len(held) == MAX_HELD:
            refuse_one_more(subscription)
            release(held, journal, chance)
        if not keeps_position(job) and chance.random() < 0.3:
            take_a_copy(subscription, journal)
        samples = take_some(subscription, chance)
        for sample in samples:
            payload = bytes(sample)
            message = message_of(payload)
            assert sample.publisher == f"publisher-{(message >> 32) % 3}", sample.publisher
            journal.write(Kind.TAKEN, sample.lost_before, sample.offset, message)
            held.append((sample, payload))
        if phase == Phase.DRAIN and not samples:
            break
        while held and (len(held) > 1 or chance.random() < 0.8):
            release(held, journal, chance)
        if phase == Phase.STORM:
            time.sleep(chance.random() * job.pause_seconds)
    while held:
        release(held, journal, chance)


def keeps_position(job: Job) -> bool:
    """Then a copy that was taken but not written down could not be told from a lost sample."""
    return bool(job.options.get("resume") or job.options.get("reliable") == "durable")


def take_a_copy(subscription: hawser.Subscription[Any], journal: Journal) -> None:
    missed = subscription.missed
    value = subscription.take_value(timeout=0)
    if value is not None:
        journal.write(Kind.TAKEN, subscription.missed - missed, subscription.position, message_of(value))


def take_some(subscription: hawser.Subscription[Any], chance: random.Random) -> list[hawser.Sample]:
    if chance.random() < 0.5:
        return subscription.take_many(MAX_HELD, timeout=PATIENCE_SECONDS)
    sample = subscription.take(timeout=PATIENCE_SECONDS)
    return [] if sample is None else [sample]


def refuse_one_more(subscription: hawser.Subscription[Any]) -> None:
    try:
        subscription.take(timeout=0)
        raise AssertionError("a sample beyond max_held was given")
    except hawser.Full:
        pass


def release(held: deque[tuple[hawser.Sample, bytes]], journal: Journal, chance: random.Random) -> None:
    """Let go of a held sample, the oldest or not, after making sure that it has not changed meanwhile."""
    place = chance.randrange(len(held))
    sample, payload = held[place]
    assert bytes(sample) == payload, f"sample {sample.offset} changed while it was held"
    journal.write(Kind.RELEASING, 0, sample.offset, 0)
    sample.release()
    journal.write(Kind.RELEASED, 0, sample.offset, 0)
    del held[place]


def reap(job: Job) -> None:
    """Recover the dead as fast as possible, to be killed while doing so."""
    with hawser.connect(job.url) as bus:
        while job.now() < Phase.DRAIN:
            bus.recover()
            time.sleep(job.pause_seconds)


ROLES: dict[str, Callable[[Job], None]] = {"publish": publish, "subscribe": subscribe, "reap": reap}
