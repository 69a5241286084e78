"""What a queue is supposed to be, said as plainly as can be: two lists of messages, and a dictionary."""

from dataclasses import dataclass, field

from hawser.log.state.commands import QueueSettle
from hawser.log.state.results import Accepted, Limited, Reason, Rejected, Repeated, Result, Settled
from hawser.record.record import Stamp

KEPT_RECEIPTS = 64


@dataclass
class Message:
    """One message: in which entry it came, and what became of it."""

    index: int
    deliveries: int = 0
    done: bool = False


@dataclass
class Subqueue:
    """Message n lies at n - 1. A rung is (first offset, bytes), and as many batches as it takes."""

    messages: list[Message] = field(default_factory=list)
    rungs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def start(self) -> int:
        left = (offset for offset, message in enumerate(self.messages, 1) if not message.done)
        return next(left, len(self.messages) + 1)

    @property
    def used_bytes(self) -> int:
        start = self.start
        if start > len(self.messages):
            return 0
        begin = max(place for place, (first, _) in enumerate(self.rungs) if first <= start)
        return sum(size for _, size in self.rungs[begin:])

    def append(self, index: int, count: int, size: int, step: int) -> int:
        first = len(self.messages) + 1
        if self.start == first:
            self.rungs = []
        if not self.rungs or self.rungs[-1][1] >= step:
            self.rungs.append((first, 0))
        self.rungs[-1] = (self.rungs[-1][0], self.rungs[-1][1] + size)
        self.messages += [Message(index) for _ in range(count)]
        return first

    def those(self, first: int, count: int) -> list[Message]:
        """Fewer than asked for if they are not all there."""
        return self.messages[max(0, first - 1) : max(0, first - 1 + count)]


class QueueTwin:
    """One queue, and the producers and consumers it knows."""

    def __init__(self, step: int, message_bytes: int) -> None:
        self.subqueues = (Subqueue(), Subqueue())
        self.step = step
        self.message_bytes = message_bytes
        self.capacity = 1 << 30
        self.known: dict[bytes, tuple[int, list[Repeated]]] = {}

    @property
    def used_bytes(self) -> int:
        return sum(subqueue.used_bytes for subqueue in self.subqueues)

    def needed(self, applied: int) -> int:
        kept = [
            message.index
            for subqueue in self.subqueues
            for message in subqueue.messages[subqueue.start - 1 :]
        ]
        return min(kept, default=applied + 1)

    def _judge(self, stamp: Stamp) -> Result | None:
        if not stamp.producer:
            return None
        incarnation, receipts = self.known.get(stamp.producer, (0, []))
        if stamp.incarnation > incarnation:
            return None if stamp.sequence == 1 else Rejected(Reason.UNKNOWN_PRODUCER, 0, stamp.sequence)
        if stamp.incarnation < incarnation:
            return Rejected(Reason.FENCED, incarnation, stamp.incarnation)
        last = len(receipts)
        if stamp.sequence > last:
            return None if stamp.sequence == last + 1 else Rejected(Reason.GAP, last + 1, stamp.sequence)
        if stamp.sequence <= last - KEPT_RECEIPTS:
            return Rejected(Reason.TOO_OLD, last, stamp.sequence)
        return receipts[stamp.sequence - 1]

    def _note(self, stamp: Stamp, first: int, count: int) -> None:
        if stamp.producer:
            incarnation, receipts = self.known.get(stamp.producer, (0, []))
            if stamp.incarnation > incarnation:
                receipts = []
            self.known[stamp.producer] = (stamp.incarnation, [*receipts, Repeated(first, count)])

    def put(self, index: int, count: int, frame: int, stamp: Stamp) -> Result:
        verdict = self._judge(stamp)
        if verdict is not None:
            return verdict
        size, used = frame + self.message_bytes * count, self.used_bytes
        if used and used + size > self.capacity:
            return Rejected(Reason.QUEUE_FULL, used, size)
        first = self.subqueues[0].append(index, count, size, self.step)
        self._note(stamp, first, count)
        return Accepted(first, count)

    def settle(self, index: int, command: QueueSettle, frame: int) -> Result:
        stamp = Stamp(command.consumer, command.incarnation, command.sequence)
        verdict = self._judge(stamp)
        if verdict is not None:
            return verdict
        subqueue = self.subqueues[command.subqueue]
        for first, count, deliveries in sorted(command.runs):
            those = subqueue.those(first, count)
            right = [not each.done and each.deliveries == deliveries for each in those]
            if first < 1:
                return Rejected(Reason.NOT_HELD, 0, first)
            if len(those) < count or not all(right):
                return Rejected(Reason.NOT_HELD, 0, first + [*right, False].index(False))
        counts = []
        for runs, is_done in ((command.accepted, True), (command.returned, False), (command.moved, True)):
            those = [each for first, count, _ in runs for each in subqueue.those(first, count)]
            for each in those:
                each.done = is_done
                each.deliveries += not is_done
            counts.append(len(those))
        moved_to = 0
        if counts[2]:
            size = frame + self.message_bytes * counts[2]
            moved_to = self.subqueues[1 - command.subqueue].append(index, counts[2], size, self.step)
        self._note(stamp, min(command.runs)[0], sum(counts))
        return Settled(counts[0], counts[1], counts[2], moved_to)

    def limit(self, capacity: int) -> Result:
        self.capacity = capacity
        return Limited(capacity, self.used_bytes)
