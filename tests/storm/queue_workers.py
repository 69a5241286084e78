"""The processes of a storm over queues. Some messages are poison: nobody ever accepts them."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any

import hawser
from hawser import aio

from .journal import Journal, Kind, make_payload, message_of
from .workers import PATIENCE_SECONDS, PUBLISH_SECONDS, ROLES, Job, Phase

MAX_HELD = 4
LOOK_SECONDS = 0.02
POISON_EVERY = 23


class Outcome(IntEnum):
    """What a consumer does with a message."""

    ACCEPT = 0
    RELEASE = 1
    REJECT = 2


def is_poison(message: int) -> bool:
    return (message & 0xFFFFFFFF) % POISON_EVERY == 0


def put(job: Job) -> None:
    journal, chance = Journal(job.journal), random.Random(job.run)
    number = 1
    with hawser.connect(job.url, name=job.name) as bus:
        queue = bus.queue(job.topic, **job.options)
        while job.now() == Phase.STORM:
            count = chance.choice((1, 1, 1, 1, 5))
            messages = [make_payload(job.run, number + i, chance.randrange(0, 200, 4)) for i in range(count)]
            journal.write(Kind.PUBLISHING, count, number, 0)
            try:
                if count == 1:
                    receipt = queue.put(messages[0], timeout=PUBLISH_SECONDS)
                else:
                    receipt = queue.put_many(messages, timeout=PUBLISH_SECONDS)
                journal.write(Kind.PUBLISHED, count, number, receipt.first_offset)
                number += count
            except hawser.Full as error:
                journal.write(Kind.REFUSED, count, number, error.published)
                number += error.published
            time.sleep(chance.random() * job.pause_seconds)


class Consuming:
    """One consumer: gets some, looks at them, settles them, and writes down each step before and after."""

    def __init__(self, job: Job, queue: Any) -> None:
        self.job = job
        self.queue = queue
        self.journal = Journal(job.journal)
        self.chance = random.Random(job.run)

    def step(self, patience_seconds: float) -> bool:
        """Whether there was something."""
        # Of copies nobody learns which ones were taken away when a lease was over.
        way = self.chance.randrange(2 if "lease" in self.job.options else 3)
        if way == 0:
            message = self.queue.get(timeout=patience_seconds)
            messages = [] if message is None else [message]
        elif way == 1:
            messages = list(self.queue.get_many(self.chance.randint(1, MAX_HELD), timeout=patience_seconds))
        else:
            return self.step_with_copies(patience_seconds)
        told = [(message, self.told(message)) for message in messages]
        messages.clear()
        self.pause()
        for message, number in told:
            self.settle(message, number)
        return bool(told)

    def told(self, message: Any) -> int:
        """Which one it is."""
        number = message_of(bytes(message))
        # What was got ahead and given back counts as no delivery.
        assert message.redelivered or message.delivery_count == 1, message
        self.journal.write(Kind.GOT, message.delivery_count, message.offset, number)
        return number

    def step_with_copies(self, patience_seconds: float) -> bool:
        values = self.queue.get_values(self.chance.randint(1, MAX_HELD), timeout=patience_seconds)
        numbers = [message_of(value) for value in values]
        for number in numbers:
            self.journal.write(Kind.GOT, 0, 0, number)
        self.pause()
        accepts = bool(numbers) and not any(map(self.refuses, numbers))
        outcome = Outcome.ACCEPT if accepts and self.chance.random() < 0.8 else Outcome.RELEASE
        for number in numbers:
            self.journal.write(Kind.SETTLING, outcome, 0, number)
        (values.accept if outcome == Outcome.ACCEPT else values.release)()
        for number in numbers:
            self.journal.write(Kind.SETTLED, outcome, 0, number)
        return bool(numbers)

    def next_value(self, values: Iterator[bytes], last: int | None) -> bytes | None:
        """The next one of a loop, which accepts the last one by that; None when the loop is over."""
        found: list[bytes | None] = []  # nothing if the last one was taken away
        if last is not None:
            with self.settling(Outcome.ACCEPT, 0, last):
                found.append(next(values, None))
        return found[0] if found else next(values, None)

    def refuses(self, number: int) -> bool:
        return is_poison(number) and "max_deliveries" in self.job.options

    def settle(self, message: hawser.Message, number: int) -> None:
        outcome = self.choose(number)
        if outcome is None:
            return  # dropped without a word, and so released
        with self.settling(outcome, message.offset, number):
            (message.accept, message.release, message.reject)[outcome]()

    @contextmanager
    def settling(self, outcome: Outcome, offset: int, number: int) -> Iterator[None]:
        """Written down before and after."""
        self.journal.write(Kind.SETTLING, outcome, offset, number)
        try:
            yield
            self.journal.write(Kind.SETTLED, outcome, offset, number)
        except hawser.Fenced:
            self.journal.write(Kind.FENCED, outcome, offset, number)

    def choose(self, number: int) -> Outcome | None:
        drawn = self.chance.random()
        if self.refuses(number):
            return Outcome.REJECT if drawn < 0.1 else Outcome.RELEASE if drawn < 0.8 else None
        if self.job.now() >= Phase.DRAIN or drawn < 0.85:
            return Outcome.ACCEPT
        return Outcome.RELEASE if drawn < 0.95 else None

    def pause(self) -> None:
        if self.job.now() == Phase.STORM:
            time.sleep(self.chance.random() * self.job.pause_seconds)


def consume(job: Job) -> None:
    """Until there is nothing more: for letters, until nobody makes some."""
    last = Phase.DRAIN_LETTERS if job.role == "undertake" else Phase.DRAIN
    with hawser.connect(job.url, name=job.name) as bus:
        consuming = Consuming(job, open_queue(bus, job))
        while True:
            is_last = job.now() >= last
            found = False
            # A place whose dead holder somebody else is just recovering is asked for again.
            with suppress(hawser.Full):
                found = consuming.step(PATIENCE_SECONDS)
            if is_last and not found:
                return


def iterate(job: Job) -> None:
    """Get some ahead, as long as messages are put; what is left then is for others."""
    with hawser.connect(job.url, name=job.name) as bus:
        queue = open_queue(bus, job)
        consuming = Consuming(job, queue)
        with enter(job, queue) as consumer:
            threading.Thread(target=close_at_the_end, args=(job, consumer), daemon=True).start()
            for message in consumer:
                number = consuming.told(message)
                consuming.pause()
                consuming.settle(message, number)


def iterate_values(job: Job) -> None:
    """As `iterate`. What is not to be accepted ends a loop, and another one begins."""
    with hawser.connect(job.url, name=job.name) as bus:
        queue = open_queue(bus, job)
        consuming, last = Consuming(job, queue), None
        with enter(job, queue) as consumer:
            threading.Thread(target=close_at_the_end, args=(job, consumer), daemon=True).start()
            values = consumer.values()
            while (value := consuming.next_value(values, last)) is not None:
                number = message_of(value)
                consuming.journal.write(Kind.GOT, 0, 0, number)
                consuming.pause()
                last = number if consuming.choose(number) == Outcome.ACCEPT else None
                if last is None:
                    values = consumer.values()


def enter(job: Job, queue: Any) -> Any:
    """A consumer; a place whose dead holder somebody else is just recovering is asked for again."""
    while True:
        with suppress(hawser.Full):
            return queue.consume(prefetch=job.run % MAX_HELD)
        time.sleep(LOOK_SECONDS)


def close_at_the_end(job: Job, consumer: "hawser.Consumer[Any]") -> None:
    while job.now() == Phase.STORM:
        time.sleep(LOOK_SECONDS)
    consumer.close()


def iterate_in_a_loop(job: Job) -> None:
    """As `iterate`."""
    asyncio.run(_iterate_in_a_loop(job))


async def _iterate_in_a_loop(job: Job) -> None:
    async with aio.connect(job.url, name=job.name) as bus:
        queue: aio.AsyncQueue[Any] = bus.queue(job.topic, **job.options)
        consuming = Consuming(job, queue)
        async with enter(job, queue) as consumer:
            closing = asyncio.create_task(_close_at_the_end(job, consumer))
            async for message in consumer:
                number = consuming.told(message)
                await asyncio.sleep(consuming.chance.random() * job.pause_seconds)
                outcome = consuming.choose(number)
                if outcome is not None:
                    with consuming.settling(outcome, message.offset, number):
                        await (message.accept, message.release, message.reject)[outcome]()
            await closing


async def _close_at_the_end(job: Job, consumer: "aio.AsyncConsumer[Any]") -> None:
    while job.now() == Phase.STORM:
        await asyncio.sleep(LOOK_SECONDS)
    await consumer.close()


def open_queue(bus: hawser.Bus, job: Job) -> "hawser.Queue[Any]":
    if job.role == "undertake":
        return bus.queue(job.options["of"], **job.options["settings"]).dead_letters()
    return bus.queue(job.topic, **job.options)


ROLES["put"] = put
ROLES["consume"] = consume
ROLES["iterate"] = iterate
ROLES["iterate values"] = iterate_values
ROLES["iterate in a loop"] = iterate_in_a_loop
ROLES["undertake"] = consume
