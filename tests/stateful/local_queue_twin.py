"""What a queue on one host is supposed to be, as plainly as can be: a list of messages, and who has them."""

from dataclasses import dataclass, field

import hawser

CAPACITY = 4
MAX_HELD = 3
MAX_DELIVERIES = 3


@dataclass
class Message:
    """Ready while nobody has it and it is neither over nor dying: to become a dead letter."""

    offset: int
    data: bytes
    key: bytes | None
    producer: str
    deliveries: int = 0
    holder: "Consumer | None" = None
    dying: bool = False
    over: bool = False
    unclaimed: bool = False

    @property
    def ready(self) -> bool:
        return self.holder is None and not self.over and not self.dying

    @property
    def came_back(self) -> bool:
        return self.deliveries > 1 or self.unclaimed


@dataclass
class Consumer:
    """`kept` counts the messages whose memory it keeps: held ones, and those it still views."""

    kept: int = 0


@dataclass
class Queue:
    """Message n lies at n - 1; dead letters are (data, key), in no order."""

    messages: list[Message] = field(default_factory=list)
    dead_letters: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    @property
    def head(self) -> int:
        return len(self.messages)

    @property
    def full(self) -> bool:
        """The next message would have the place of one that is ready."""
        before = self.head - CAPACITY
        return before >= 0 and self.messages[before].ready

    def put(self, data: bytes, key: bytes | None, producer: str) -> Message:
        if self.full:
            raise hawser.Full("the twin is full")
        message = Message(self.head + 1, data, key, producer)
        self.messages.append(message)
        return message

    def get(self, consumer: Consumer) -> Message | None:
        if consumer.kept >= MAX_HELD:
            raise hawser.Full("the twin holds enough")
        message = next((each for each in self.messages if each.ready), None)
        if message is not None:
            message.deliveries += 1
            message.holder = consumer
            consumer.kept += 1
        return message

    def get_many(self, consumer: Consumer, count: int) -> list[Message]:
        first = self.get(consumer)
        found = [] if first is None else [first]
        while found and len(found) < count and consumer.kept < MAX_HELD:
            more = self.get(consumer)
            if more is None:
                break
            found.append(more)
        return found

    def settle(self, message: Message, verdict: str) -> None:
        message.holder = None
        message.unclaimed |= verdict == "unclaim"
        message.deliveries -= verdict == "unclaim"
        message.over = verdict == "accept"
        message.dying = verdict == "reject" or (verdict == "release" and message.deliveries >= MAX_DELIVERIES)

    def bury(self) -> None:
        """Sooner or later somebody does."""
        for message in self.messages:
            if message.dying:
                message.dying, message.over = False, True
                self.dead_letters.append((message.data, message.key))

    def retry(self, count: int, producer: str) -> int:
        """How many letters there is room for, but not none; which is for the caller to find out."""
        if self.dead_letters and count and self.full:
            raise hawser.Full("the twin is full")
        moved = 0
        while self.dead_letters and moved < count and not self.full:
            self.put(*self.dead_letters.pop(0), producer)
            moved += 1
        return moved

    def counts(self) -> tuple[int, int, int]:
        ready = sum(each.ready for each in self.messages)
        claimed = sum(each.holder is not None for each in self.messages)
        return ready, claimed, len(self.dead_letters) + sum(each.dying for each in self.messages)
