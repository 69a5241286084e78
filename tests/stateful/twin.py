"""What a topic should do, written without any regard for speed, processes or memory."""

from dataclasses import dataclass, field
from typing import NamedTuple

import hawser

SLOT_SIZE = 64
HISTORY = 4
DEPTH = 3
RING = HISTORY + DEPTH
MAX_HELD = 3
MAX_LOANS = 1
MAX_SUBSCRIBERS = 5
MAX_PUBLISHERS = 4


class Message(NamedTuple):
    """What a sample shows."""

    payload: bytes
    key: bytes | None
    publisher: str


@dataclass
class Position:
    """A position kept under a name."""

    mark: int
    durable: bool = False
    max_lag: int = 0
    held: bool = False


@dataclass
class Subscriber:
    """A subscription: where it is, and what it has not released yet."""

    cursor: int
    max_held: int
    reliable: bool
    position: Position | None
    commits: bool
    missed: int = 0
    received: int = 0
    lost_before: int = 0
    committed: int = 0
    pending: dict[int, bool] = field(default_factory=dict)
    held: int = 0
    closed: bool = False

    @property
    def mark(self) -> int:
        if self.commits:
            return self.committed
        return min(self.pending, default=self.cursor + 1) - 1

    def keep(self) -> None:
        """Write the mark into the kept position, when there is one."""
        if self.position is not None:
            self.position.mark = self.mark

    def release(self, offset: int) -> None:
        self.held -= 1
        if self.position is not None and not self.commits:
            self.pending[offset] = True
            while self.pending and self.pending[min(self.pending)]:
                del self.pending[min(self.pending)]
        self.keep()
        self.leave_if_done()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.reliable = False
        self.leave_if_done()

    def leave_if_done(self) -> None:
        if self.left and self.position is not None:
            self.position.held = False

    @property
    def left(self) -> bool:
        return self.closed and self.held == 0

    @property
    def waited_for(self) -> int:
        """What publishers may not overwrite beyond."""
        return self.cursor if self.position is None else self.mark


@dataclass
class Topic:
    """The messages in order and everybody who reads them."""

    messages: list[Message] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    publishers: set[str] = field(default_factory=set)
    loans: dict[str, int] = field(default_factory=dict)
    dead: int = 0

    @property
    def head(self) -> int:
        return len(self.messages)

    @property
    def oldest(self) -> int:
        return max(1, self.head - RING + 1)

    @property
    def blocked(self) -> bool:
        """Whether somebody still needs what the next message would overwrite."""
        evicted = self.head + 1 - RING
        if evicted < 1:
            return False
        return any(each.reliable and each.waited_for < evicted for each in self.subscribers) or any(
            kept.durable
            and kept.mark < evicted
            and (kept.max_lag == 0 or self.head - kept.mark < kept.max_lag)
            for kept in self.positions.values()
        )

    @property
    def joined(self) -> list[Subscriber]:
        return [each for each in self.subscribers if not each.left]

    def publish(self, message: Message) -> None:
        if self.blocked:
            raise hawser.Full
        self.messages.append(message)

    def subscribe(
        self,
        *,
        history: int = 0,
        start: int = 0,
        reliable: bool = False,
        durable: bool = False,
        name: str = "",
        commits: bool = False,
        max_lag: int = 0,
        max_held: int = MAX_HELD,
    ) -> Subscriber:
        """`name` is that of a kept position; "" keeps none."""
        self.dead = 0
        position = self.positions.get(name)
        if position is not None and position.held:
            raise hawser.UsageError
        cursor = self._start(position, history, start)
        if len(self.joined) >= MAX_SUBSCRIBERS:
            raise hawser.Full
        missed = 0
        if reliable:
            waited = position is not None and self._waited(position)
            safe = max(0, self.head + (0 if waited else 1) - RING)
            if safe > cursor:
                missed = safe - cursor if position is not None else 0
                cursor = safe
        if name:
            position = self.positions.setdefault(name, Position(cursor))
            position.durable, position.held = durable, True
            position.max_lag = max_lag if durable else 0
        made = Subscriber(cursor, max_held, reliable, position, commits, missed, lost_before=missed)
        made.committed = cursor
        made.keep()
        self.subscribers.append(made)
        return made

    def _waited(self, position: Position) -> bool:
        return position.durable and position.max_lag == 0

    def _start(self, position: Position | None, history: int, start: int) -> int:
        if position is not None:
            return position.mark
        if start == 0:
            return self.head - min(history, self.head, HISTORY)
        if not self.oldest <= start <= self.head + 1:
            raise hawser.OffsetOutOfRange
        return start - 1

    def take(self, subscriber: Subscriber) -> tuple[int, int] | None:
        """Offset and lost_before of the next sample."""
        if not subscriber.closed and subscriber.held >= subscriber.max_held:
            raise hawser.Full
        taken = self._advance(subscriber)
        if taken is not None:
            subscriber.held += 1
            if subscriber.position is not None and not subscriber.commits:
                subscriber.pending[taken[0]] = False
        subscriber.keep()
        return taken

    def take_values(self, subscriber: Subscriber, count: int) -> list[bytes]:
        """Copies, which hold nothing."""
        taken = [self._advance(subscriber) for _ in range(count)]
        subscriber.keep()
        return [self.messages[each[0] - 1].payload for each in taken if each is not None]

    def _advance(self, subscriber: Subscriber) -> tuple[int, int] | None:
        if subscriber.closed:
            raise hawser.Closed
        offset = max(subscriber.cursor + 1, self.oldest)
        if offset > self.head:
            return None
        lost = offset - subscriber.cursor - 1
        subscriber.missed += lost
        lost_before = subscriber.lost_before + lost
        subscriber.lost_before = 0
        subscriber.cursor = offset
        subscriber.received += 1
        return offset, lost_before

    def read_oldest(self, count: int, after: int) -> tuple[range, int, int]:
        """Offsets, last and missed."""
        first = max(after + 1, self.oldest)
        offsets = range(first, min(first + count, self.head + 1))
        missed = first - after - 1
        return offsets, offsets[-1] if offsets else after + missed, missed

    def read_newest(self, count: int, after: int) -> tuple[range, int, int]:
        first = max(after + 1, self.oldest, self.head - count + 1)
        return range(first, self.head + 1), self.head, first - after - 1
