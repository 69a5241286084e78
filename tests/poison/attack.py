"""Attacks on a topic: a fresh copy of a sound one, damage, and every operation."""

import copy
import mmap
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hawser

from .scribble import Parts, lose_references, parts_of, scribble
from .twin import Message, Twin

SETTINGS: dict[str, Any] = {
    "slot_size": 128,
    "history": 6,
    "max_publishers": 2,
    "max_subscribers": 4,
    "max_held": 2,
    "max_loans": 1,
}
DEPTHS = (6, 10)  # the ring a power of two, and not
PUBLISHED = (0, 5, 12, 100)  # before, at and after the first lap
LOST_REFERENCES = 0.1  # of the seeds: one place among thousands is never hit by chance
TOPIC = "poisoned"
FILE = "poisoned.topic"


@dataclass
class Template:
    """A sound topic or queue as a file, what it holds, and how it is attacked."""

    attack: "type[Attack]"
    settings: dict[str, Any]
    parts: Parts
    data: bytes
    twin: Any


def message(chance: random.Random, publisher: str, *, plain: bool = False) -> Message:
    payload = chance.randbytes(chance.randrange(64))
    if plain or chance.random() < 0.5:
        return Message(payload, None, {}, publisher)
    return Message(payload, chance.randbytes(4), {"colour": chance.randbytes(3)}, publisher)


def make_template(directory: Path, depth: int, published: int) -> Template:
    """A topic with a history, a kept position, and a participant of each kind that has left."""
    chance = random.Random(published)
    settings = {**SETTINGS, "depth": depth}
    domain = directory / f"template-{depth}-{published}"
    with hawser.connect(f"shm://{domain}", name="author") as bus:
        topic = bus.topic(TOPIC, **settings)
        info = topic.info()
        twin = Twin(info.ring, info.settings, info.uuid)
        with topic.subscribe(resume=True) as reader:
            for _ in range(published):
                twin.publish(topic, message(chance, "author"))
            twin.take_all(reader)
    return Template(Attack, settings, parts_of(settings), (domain / FILE).read_bytes(), twin)


class Attack:
    """One seed: a fresh copy, damage, and every operation."""

    def __init__(self, directory: Path, template: Template, seed: int) -> None:
        self.domain = directory / "domain"
        self.path = self.domain / FILE
        self.settings = template.settings
        self.parts = template.parts
        self.chance = random.Random(seed)
        self.twin = copy.deepcopy(template.twin)
        self.damage = ""
        self.loses_references = random.Random(f"references {seed}").random() < LOST_REFERENCES
        self.domain.mkdir(mode=0o700, exist_ok=True)
        for left in self.domain.glob("*.topic"):
            left.unlink()
        self.path.write_bytes(template.data)
        self.path.chmod(0o600)

    def run(self) -> None:
        early = self.chance.random() < 0.5
        if not early:
            self.poison()
        with hawser.connect(f"shm://{self.domain}") as bus:
            self.twin.attempt(lambda: self.operate(bus, early))
            self.twin.attempt(bus.participants)
            self.twin.attempt(bus.recover)

    def poison(self) -> None:
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), self.parts.control_bytes) as memory:
            self.damage = scribble(memory, self.parts, self.chance)
            if self.loses_references:
                self.damage += ", " + lose_references(memory, self.parts)

    def operate(self, bus: hawser.Bus, early: bool) -> None:
        """With `early` everybody has joined before the damage is done."""
        topic = bus.topic(TOPIC, **self.settings)
        publisher = subscription = held = None
        if early:
            publisher = topic.publisher()
            subscription = topic.subscribe(history=self.chance.randrange(6))
            held = subscription.take(timeout=0)
            self.poison()
        del held
        for operation in self.operations(topic, bus.name):
            self.twin.attempt(operation)
        if subscription is not None and publisher is not None:
            for operation in self.joined_operations(publisher, subscription, bus.name):
                self.twin.attempt(operation)
        self.twin.attempt(lambda: self.subscribe_anew(topic))
        self.twin.attempt(lambda: topic.delete(force=self.chance.random() < 0.5))

    def operations(self, topic: hawser.Topic[Any], name: str) -> list[Callable[[], object]]:
        twin, chance = self.twin, self.chance
        operations: list[Callable[[], object]] = [
            lambda: twin.read_oldest(topic, chance.randrange(1, 20), chance.randrange(twin.head + 1)),
            lambda: twin.read_newest(topic, chance.randrange(1, 20), chance.randrange(twin.head + 1)),
            lambda: twin.look(topic),
            lambda: self.subscribe_anew(topic),
            lambda: twin.publish(topic, message(chance, name)),
            lambda: topic.forget("author"),
        ]
        chance.shuffle(operations)
        return operations

    def joined_operations(
        self, publisher: hawser.Publisher[Any], subscription: hawser.Subscription[Any], name: str
    ) -> list[Callable[[], object]]:
        twin, chance = self.twin, self.chance
        operations: list[Callable[[], object]] = [
            lambda: twin.take_all(subscription),
            lambda: twin.publish(publisher, message(chance, name)),
            lambda: twin.publish_many(publisher, [message(chance, name, plain=True) for _ in range(3)]),
            lambda: twin.lend(publisher, message(chance, name)),
        ]
        chance.shuffle(operations)
        return [*operations, lambda: twin.take_values(subscription)]

    def subscribe_anew(self, topic: hawser.Topic[Any]) -> None:
        options: dict[str, Any] = self.chance.choice(
            ({"history": 6}, {"reliable": True, "history": 3}, {"start": self.twin.head or 1}, {"group": "g"})
        )
        with topic.subscribe(**options) as subscription:
            (self.twin.take_all if self.chance.random() < 0.5 else self.twin.take_values)(subscription)
