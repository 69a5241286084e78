"""What an undamaged topic would answer, and every operation compared with it.

An operation on damaged memory may be refused with a HawserError. What it returns must be right.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hawser


class Wrong(Exception):
    """An answer that is neither right nor an error."""


class Message(NamedTuple):
    """All that a sample tells about a message."""

    payload: bytes
    key: bytes | None
    headers: dict[str, bytes]
    publisher: str


@dataclass
class Twin:
    """The messages of a topic by offset, and how far back they are kept."""

    ring: int
    settings: dict[str, Any]
    uuid: str
    messages: dict[int, Message] = field(default_factory=dict)
    refused: int = 0
    answered: int = 0

    @property
    def head(self) -> int:
        return len(self.messages)

    @property
    def oldest(self) -> int:
        return max(1, self.head - self.ring + 1)

    def attempt(self, operation: Callable[[], object]) -> None:
        """Run it; an error of Hawser's own is a right answer."""
        try:
            operation()
            self.answered += 1
        except hawser.HawserError:
            self.refused += 1

    def check(self, sample: hawser.Sample, offset: int) -> None:
        """That the sample is the one with this offset, to the last byte."""
        if sample.offset != offset:
            raise Wrong(f"offset {sample.offset} where {offset} is next")
        expected = self.messages[offset]
        found = Message(bytes(sample), sample.key, sample.headers, sample.publisher)
        if found != expected or len(sample) != len(expected.payload):
            raise Wrong(f"sample {offset} is {found}, {expected} was published")

    def publish(self, target: Any, message: Message) -> None:
        """Publish one message; the receipt must name the next offset."""
        receipt = target.publish(message.payload, key=message.key, headers=message.headers, timeout=0)
        self.add(receipt, [message])

    def publish_many(self, target: Any, messages: list[Message]) -> None:
        try:
            (receipt,) = target.publish_many([message.payload for message in messages], timeout=0)
        except hawser.HawserError as error:
            for message in messages[: error.published]:
                self.messages[self.head + 1] = message
            raise
        self.add(receipt, messages)

    def lend(self, target: Any, message: Message) -> None:
        loan = target.loan(len(message.payload), key=message.key, headers=message.headers, timeout=0)
        with loan as buffer:
            buffer[:] = message.payload
        self.add(loan.receipt, [message])

    def add(self, receipt: hawser.Receipt, messages: list[Message]) -> None:
        if (receipt.first_offset, receipt.count) != (self.head + 1, len(messages)):
            raise Wrong(f"{receipt} where offset {self.head + 1} is next")
        for message in messages:
            self.messages[self.head + 1] = message

    def read_oldest(self, topic: hawser.Topic[Any], count: int, after: int) -> None:
        result = topic.read_oldest(count, after)
        first = max(after + 1, self.oldest)
        self.compare(result, range(first, min(first + count, self.head + 1)), after)

    def read_newest(self, topic: hawser.Topic[Any], count: int, after: int) -> None:
        result = topic.read_newest(count, after)
        first = max(after + 1, self.oldest, self.head - count + 1)
        self.compare(result, range(first, self.head + 1), after)

    def compare(self, result: hawser.ReadResult, offsets: range, after: int) -> None:
        if len(result.samples) != len(offsets):
            raise Wrong(f"{len(result.samples)} samples read where {offsets} are there")
        for sample, offset in zip(result.samples, offsets, strict=True):
            self.check(sample, offset)
        last = offsets[-1] if offsets else max(after, self.oldest - 1)
        if (result.last, result.missed) != (last, last - after - len(offsets)):
            raise Wrong(f"read up to {result.last} with {result.missed} missed; last is {last}")

    def take_all(self, subscription: hawser.Subscription[Any]) -> None:
        """Everything there is, in order, the misses between counted exactly; each is another object."""
        last = None
        while True:
            position = subscription.position
            sample = subscription.take(timeout=0)
            if sample is not None and sample is last:
                raise Wrong(f"two takes after {position} return one object")
            last = sample
            expected = max(position + 1, self.oldest)
            if sample is None:
                if position < self.head:
                    raise Wrong(f"nothing after {position} where {self.head} is the newest")
                return
            with sample:
                self.check(sample, expected)
                if sample.lost_before != expected - position - 1:
                    raise Wrong(f"sample {expected} after {position} says {sample.lost_before} were lost")

    def take_values(self, subscription: hawser.Subscription[Any]) -> None:
        """As take_all, by copies that never refer to a slot."""
        while True:
            position, missed = subscription.position, subscription.missed
            value = subscription.take_value(timeout=0)
            if value is None:
                if position < self.head:
                    raise Wrong(f"no value after {position} where {self.head} is the newest")
                return
            expected = max(position + 1, self.oldest)
            if value != self.messages[expected].payload:
                raise Wrong(f"value {expected} is {value!r}, not {self.messages[expected].payload!r}")
            told = subscription.position, subscription.missed - missed
            if told != (expected, expected - position - 1):
                raise Wrong(f"position and misses {told} after {position}, {expected} is next")

    def look(self, topic: hawser.Topic[Any]) -> None:
        info = topic.info()
        # Whether it is traced is a word that anybody may set: no value of it is damage.
        told = (info.head, info.oldest, {**info.settings, "trace": self.settings["trace"]}, info.uuid)
        if told != (self.head, self.oldest, self.settings, self.uuid):
            raise Wrong(f"info says {told}, not {(self.head, self.oldest, self.settings, self.uuid)}")
