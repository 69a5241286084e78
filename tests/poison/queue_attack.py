"""Attacks on a queue. What it hands out must be what was put; what it keeps to itself must be refused, unless
the damage was to the slots: a claim that says that a message is done looks like any other."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hawser

from .attack import FILE, TOPIC, Attack, Template, message
from .scribble import parts_of
from .twin import Message, Wrong

SETTINGS: dict[str, Any] = {"slot_size": 128, "max_producers": 2, "max_consumers": 4, "max_held": 2}
LEFT = 4  # messages that wait when the damage is done, at the most


@dataclass
class QueueTwin:
    """Every message that was put, by offset, and those that are not done."""

    capacity: int
    messages: dict[int, Message] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    rejected: list[bytes] = field(default_factory=list)
    may_lose: bool = False
    refused: int = 0
    answered: int = 0

    def attempt(self, operation: Callable[[], object]) -> None:
        """Run it; an error of Hawser's own is a right answer."""
        try:
            operation()
            self.answered += 1
        except hawser.HawserError:
            self.refused += 1

    def check(self, sample: hawser.Sample) -> None:
        """That it is the one with its offset, to the last byte."""
        expected = self.messages.get(sample.offset)
        found = Message(bytes(sample), sample.key, sample.headers, sample.publisher)
        if found != expected or len(sample) != len(found.payload):
            raise Wrong(f"message {sample.offset} is {found}, {expected} was put")

    def put(self, queue: Any, message: Message) -> None:
        """The receipt must name the next offset; only a full queue may say that it is full."""
        receipt = queue.put(message.payload, key=message.key, headers=message.headers, timeout=0)
        self.add(receipt, [message])

    def put_many(self, queue: Any, messages: list[Message]) -> None:
        try:
            receipt = queue.put_many([message.payload for message in messages], timeout=0)
        except hawser.HawserError as error:
            for each in messages[: error.published]:
                self.note(each)
            raise
        self.add(receipt, messages)

    def add(self, receipt: hawser.Receipt, messages: list[Message]) -> None:
        if (receipt.first_offset, receipt.count) != (len(self.messages) + 1, len(messages)):
            raise Wrong(f"{receipt} where offset {len(self.messages) + 1} is next")
        for each in messages:
            self.note(each)

    def note(self, message: Message) -> None:
        offset = len(self.messages) + 1
        self.messages[offset] = message
        self.waiting.add(offset)

    def get_all(self, queue: Any, chance: random.Random) -> None:
        """Everything that waits, oldest first; now and then one is given back, and comes again."""
        last = 0
        before: hawser.Message | None = None
        for _ in range(3 * self.capacity):
            message = queue.get(timeout=0)
            if message is None:
                break
            if message is before:
                raise Wrong(f"two gets after message {last} return one object")
            before = message
            self.check(message)
            if message.offset not in self.waiting and not self.may_lose:
                raise Wrong(f"message {message.offset} was done, and is there again")
            if message.offset < last and not self.may_lose:
                raise Wrong(f"message {message.offset} after {last}")
            if chance.random() < 0.2:
                message.release()
                continue
            last = message.offset
            message.accept()
            self.waiting.discard(message.offset)
        else:
            raise Wrong("there is no end of messages")
        self.require_nothing()

    def get_values(self, queue: Any) -> None:
        """The same by copies."""
        payloads = {message.payload for message in self.messages.values()}
        while values := queue.get_values(2, timeout=0):
            for value in values:
                if value not in payloads:
                    raise Wrong(f"{value!r} was never put")
            values.accept()
            if not self.may_lose:
                self.waiting -= set(sorted(self.waiting)[: len(values)])
        self.require_nothing()

    def require_nothing(self) -> None:
        if self.waiting and not self.may_lose:
            raise Wrong(f"nothing is there, and {sorted(self.waiting)} wait")

    def get_one(self, queue: Any) -> Any:
        """The oldest there is, which is about to be settled; None if there is none."""
        message = queue.get(timeout=0)
        if message is not None:
            self.check(message)
            self.waiting.discard(message.offset)
        return message

    def reject_one(self, queue: Any) -> None:
        message = self.get_one(queue)
        if message is not None:
            self.rejected.append(bytes(message))
            message.reject()

    def peek_dead_letters(self, queue: Any) -> None:
        known = [each.payload for each in self.messages.values()] if self.may_lose else self.rejected
        for letter in queue.dead_letters().peek(self.capacity):
            if bytes(letter) not in known:
                raise Wrong(f"{bytes(letter)!r} is a dead letter, and nobody rejected it")

    def peek(self, queue: Any, count: int) -> None:
        for sample in queue.peek(count):
            self.check(sample)


class QueueAttack(Attack):
    """One seed on a queue."""

    twin: QueueTwin

    def poison(self) -> None:
        super().poison()
        self.twin.may_lose = "in slots" in self.damage

    def operate(self, bus: hawser.Bus, early: bool) -> None:
        queue = bus.queue(TOPIC, **self.settings)
        held = None
        if early:
            self.twin.put(queue, message(self.chance, bus.name))
            self.twin.get_one(queue).accept()
            held = queue.get(timeout=0)
            self.poison()
        del held
        for operation in self.queue_operations(queue, bus.name):
            self.twin.attempt(operation)
        self.twin.attempt(lambda: self.twin.get_values(queue))
        self.twin.attempt(lambda: queue.delete(force=self.chance.random() < 0.5))

    def queue_operations(self, queue: "hawser.Queue[Any]", name: str) -> list[Callable[[], object]]:
        twin, chance = self.twin, self.chance
        operations: list[Callable[[], object]] = [
            lambda: twin.put(queue, message(chance, name)),
            lambda: twin.put_many(queue, [message(chance, name, plain=True) for _ in range(3)]),
            lambda: twin.get_all(queue, chance),
            lambda: twin.peek(queue, chance.randrange(1, 9)),
            lambda: twin.reject_one(queue),
            queue.info,
            lambda: twin.peek_dead_letters(queue),
        ]
        chance.shuffle(operations)
        return operations


def make_queue_template(directory: Path, capacity: int, put: int) -> Template:
    """A queue of which some messages are done, some wait, and one was given back."""
    chance = random.Random(put)
    settings = {**SETTINGS, "capacity": capacity}
    domain = directory / f"queue-{capacity}-{put}"
    twin = QueueTwin(capacity)
    with hawser.connect(f"shm://{domain}", name="author") as bus:
        queue = bus.queue(TOPIC, **settings)
        for number in range(put):
            twin.put(queue, message(chance, "author"))
            if put - number > LEFT:
                twin.get_one(queue).accept()
        if put > LEFT:
            given_back = queue.get(timeout=0)
            assert given_back is not None
            given_back.release()
    laid_out = {
        "history": 0,
        "depth": capacity,
        "max_subscribers": settings["max_consumers"],
        "max_publishers": settings["max_producers"],
        "max_held": settings["max_held"],
        "max_loans": 1,
        "slot_size": settings["slot_size"],
    }
    data = (domain / FILE).read_bytes()
    return Template(QueueAttack, settings, parts_of(laid_out, is_queue=True), data, twin)
