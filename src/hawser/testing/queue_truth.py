"""The reference model of the queue in a simulated cluster, and the checks of the answers to clients.

Two lists have the messages and the dead letters, each with its delivery count and its outcome. Each committed
entry is applied to them, and its result must be the same as in the state machine. Each answer to a client is
compared with the lists, and with all answers that any client had before the request.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.queue.claims import Token
from hawser.log.queue.dispatcher import Delivery, Settlement, batch_of, consumer_id
from hawser.log.replica import Replica
from hawser.log.state.commands import QueueLimit, QueueSettle, Run, decoder
from hawser.log.state.queue import CAPACITY_BYTES, DEAD_LETTERS, MESSAGE_BYTES, MESSAGES, Queue
from hawser.log.state.results import Accepted, Limited, Place, Reason, Rejected, Repeated, Result, Settled
from hawser.record.batch import Batch
from hawser.record.record import Stamp
from hawser.testing.checks import Violation

__all__ = ["STEP_BYTES", "Message", "QueueTruth", "those", "values_of"]

# The precision of the byte count of simulated queues.
STEP_BYTES = 512

_read_settle = decoder(QueueSettle)
_read_limit = decoder(QueueLimit)


class Message(msgspec.Struct):
    """A message of a subqueue, and the bytes of the batch it came with, of which it is the `place`th;
    `locked` if a transaction has it."""

    value: bytes
    batch_bytes: int
    place: int
    deliveries: int = 0
    done: bool = False
    locked: bool = False


class Told(msgspec.Struct):
    """The knowledge of clients about a message: the time of its first delivery, its highest delivery count,
    and the time and token of its acknowledged settlement."""

    first_given: int | None = None
    deliveries: int = 0
    deliveries_since: int = 0
    done_since: int | None = None
    winner: Token | None = None


class QueueTruth:
    """The queue as committed. `subqueues[s][o - 1]` is message o of subqueue s."""

    def __init__(self) -> None:
        self.subqueues: tuple[list[Message], list[Message]] = ([], [])
        self.capacity_bytes = CAPACITY_BYTES
        # The messages that prepared transactions will put.
        self.reserved_bytes = 0
        # The values put by producers and those accepted by consumers; transactions only move values.
        self.brought: Counter[bytes] = Counter()
        self.taken: Counter[bytes] = Counter()
        self.receipts: dict[Stamp, Result] = {}
        # Settlements that were reported as never to be done.
        self.void: set[Stamp] = set()
        # The dead letters that were delivered to another queue.
        self.elsewhere: list[bytes] | None = None
        # What each session was lent, whether it has heard so or not.
        self.delivered: set[tuple[str, Token]] = set()
        self._told: dict[tuple[int, int], Told] = {}

    def left(self, subqueue: int) -> Iterator[tuple[int, bytes]]:
        """The offset and value of each unsettled message."""
        for offset, message in enumerate(self.subqueues[subqueue], 1):
            if not message.done:
                yield offset, message.value

    @property
    def is_empty(self) -> bool:
        return all(message.done for subqueue in self.subqueues for message in subqueue)

    # Entries.

    def extend(self, entry: Entry, is_next: bool, result: Result) -> bool:
        """Apply a committed entry, compare its result, and return whether it took effect. `is_next` if its
        stamp is new and in sequence."""
        if entry.kind == Kind.QUEUE_LIMIT:
            command = _read_limit(entry)
            assert command is not None
            self.capacity_bytes = command.capacity_bytes
            took = isinstance(result, Limited)
        elif entry.kind == Kind.QUEUE_PUT:
            took = self._put(entry, is_next, result)
        else:
            took = self._settle(entry, is_next, result)
        return took

    def _put(self, entry: Entry, is_next: bool, result: Result) -> bool:
        batch = Batch.read(entry.payload)
        size_bytes = len(entry.frame) + MESSAGE_BYTES * batch.count
        is_full = isinstance(result, Rejected) and result.reason is Reason.QUEUE_FULL
        took = is_next and not is_full
        expected = Accepted(len(self.subqueues[MESSAGES]) + 1, batch.count) if took else None
        if is_next:
            self.judge_room(size_bytes, is_full)
        if (expected is not None and result != expected) or isinstance(result, Accepted) != took:
            raise Violation(0, f"{batch.stamp} of {entry.id} was to be put: {took}; it was: {result}")
        if took:
            values = [record.value for record in batch.records()]
            self.append(MESSAGES, values, size_bytes)
            self.brought.update(values)
            self.receipts[batch.stamp] = result
        return took

    def judge_room(self, size_bytes: int, is_full: bool) -> None:
        """Bytes are counted from the first message on, at most so much too high."""
        kept_bytes = self.reserved_bytes + sum(self._kept_bytes(subqueue) for subqueue in self.subqueues)
        largest_bytes = max((each.batch_bytes for subqueue in self.subqueues for each in subqueue), default=0)
        slack_bytes = 2 * (STEP_BYTES + largest_bytes)
        fits = not kept_bytes or kept_bytes + size_bytes <= self.capacity_bytes
        may_fit = fits and (not kept_bytes or kept_bytes + size_bytes + slack_bytes <= self.capacity_bytes)
        if (is_full and may_fit) or (not is_full and not fits):
            raise Violation(
                0,
                f"{size_bytes} bytes beside {kept_bytes} of {self.capacity_bytes}: called full: {is_full}",
            )

    @staticmethod
    def _kept_bytes(subqueue: list[Message]) -> int:
        """The bytes of the batches from the first unsettled message on."""
        first = next((place for place, each in enumerate(subqueue) if not each.done), None)
        if first is None:
            return 0
        begin = first - subqueue[first].place
        return sum(message.batch_bytes for message in subqueue[begin:] if not message.place)

    def append(self, subqueue: int, values: Sequence[bytes], size_bytes: int) -> None:
        self.subqueues[subqueue].extend(
            Message(value, size_bytes, place) for place, value in enumerate(values)
        )

    def _settle(self, entry: Entry, is_next: bool, result: Result) -> bool:
        command = _read_settle(entry)
        assert command is not None
        subqueue = self.subqueues[command.subqueue]
        stamp = Stamp(command.consumer, command.incarnation, command.sequence)
        took = (is_next or not command.consumer) and all(
            not each.done and not each.locked and each.deliveries == run[2]
            for run in command.runs
            for each in those(subqueue, run)
        )
        if took != isinstance(result, Settled):
            raise Violation(0, f"{command} of {entry.id} was to take effect: {took}; it had {result}")
        if not isinstance(result, Settled):
            return False
        if stamp in self.void:
            raise Violation(0, f"{stamp} took effect, and somebody was told that it would not")
        for run in (*command.accepted, *command.moved):
            for each in those(subqueue, run):
                each.done = True
        self.taken.update(each.value for run in command.accepted for each in those(subqueue, run))
        for run in command.returned:
            for each in those(subqueue, run):
                each.deliveries += 1
        self._move(command, entry, result)
        self.receipts[stamp] = result
        return True

    def _judge_sent(self, command: QueueSettle) -> None:
        """Letters leave when they have arrived."""
        assert self.elsewhere is not None
        sent = [each.value for run in command.accepted for each in those(self.subqueues[DEAD_LETTERS], run)]
        if command.runs != command.accepted or not set(sent) <= set(self.elsewhere):
            raise Violation(0, f"{command} ends letters that are nowhere else")

    def _move(self, command: QueueSettle, entry: Entry, result: Settled) -> None:
        subqueue = self.subqueues[command.subqueue]
        values = [each.value for run in command.moved for each in those(subqueue, run)]
        carried = [record.value for record in batch_of(entry).records()] if command.batch else []
        if values != carried:
            raise Violation(0, f"{command} of {entry.id} moves {values} and carries {carried}")
        first = len(self.subqueues[1 - command.subqueue]) + 1 if values else 0
        if result.first_offset != first:
            raise Violation(0, f"{command} of {entry.id} moves {values} to {first}, not as {result}")
        size_bytes = len(entry.frame) + MESSAGE_BYTES * len(values)
        self.append(1 - command.subqueue, values, size_bytes)

    # Answers to clients.

    def acknowledge(self, stamp: Stamp, outcome: Accepted | Repeated) -> None:
        """Check that the acknowledged batch of a producer is in the queue once, at its place."""
        receipt = self.receipts.get(stamp)
        if not isinstance(receipt, Accepted) or tuple(_fields(receipt)) != tuple(_fields(outcome)):
            raise Violation(0, f"{stamp} was put as {receipt}, and acknowledged as {outcome}")

    def give(self, subqueue: int, delivery: Delivery, asked: int, now: int) -> None:
        """A consumer that asked at `asked` was given a message."""
        offset = delivery.offset
        messages = self.subqueues[subqueue]
        told = self._told.setdefault((subqueue, offset), Told())
        if offset > len(messages) or messages[offset - 1].value != delivery.record.value:
            raise Violation(0, f"message {offset} was delivered as {delivery}, which was never put")
        if told.done_since is not None and told.done_since < asked:
            raise Violation(0, f"message {offset} was delivered to somebody who asked after it was done")
        if told.first_given is not None and told.first_given < asked and not delivery.redelivered:
            raise Violation(0, f"message {offset} was delivered before, and is not called redelivered")
        if delivery.delivery_count < told.deliveries and told.deliveries_since < asked:
            raise Violation(
                0, f"message {offset} was delivered {told.deliveries} times, now {delivery.delivery_count}"
            )
        if told.first_given is None:
            told.first_given = now
        if delivery.delivery_count > told.deliveries:
            told.deliveries, told.deliveries_since = delivery.delivery_count, now

    def settled(self, subqueue: int, wanted: Settlement, offsets: dict[Token, int], now: int) -> None:
        """A consumer was told that all of this is done; `offsets` are those of its messages."""
        stamp = Stamp(consumer_id(wanted.session), wanted.incarnation, wanted.sequence)
        receipt = self.receipts.get(stamp)
        counts = (len(wanted.accepted), len(wanted.accepted) + len(wanted.released) + len(wanted.rejected))
        done = (
            isinstance(receipt, Settled)
            and (
                receipt.accepted,
                receipt.accepted + receipt.returned + receipt.moved,
            )
            == counts
        )
        if not done or stamp in self.void:
            raise Violation(0, f"{wanted} was said to be done, and {receipt} was")
        for token in wanted.accepted:
            self.accepted(subqueue, offsets[token], token, now)

    def accepted(self, subqueue: int, offset: int, token: Token, now: int) -> None:
        """Whoever held it by this token was told that it is done."""
        told = self._told[subqueue, offset]
        if not self.subqueues[subqueue][offset - 1].done:
            raise Violation(0, f"message {offset} was said to be accepted, and is not done")
        if told.winner not in (None, token):
            raise Violation(0, f"message {offset} was accepted by {told.winner} and by {token}")
        told.winner = token
        if told.done_since is None:
            told.done_since = now

    def turned(self, wanted: Settlement) -> None:
        """A consumer was told that nothing of this is done, nor will be."""
        stamp = Stamp(consumer_id(wanted.session), wanted.incarnation, wanted.sequence)
        if stamp in self.receipts:
            raise Violation(0, f"{wanted} was said not to be done, and {self.receipts[stamp]} was")
        self.void.add(stamp)

    def compare(self, replica: Replica) -> None:
        """A member that has applied everything: all that is left can be read there, byte for byte, and what
        went to another queue is there once, in order."""
        dead_letters = [message.value for message in self.subqueues[DEAD_LETTERS] if message.done]
        if self.elsewhere is not None and dead_letters != self.elsewhere:
            raise Violation(
                0, f"the letters are {dead_letters}, and {self.elsewhere} came to the other queue"
            )
        for subqueue in (MESSAGES, DEAD_LETTERS):
            here, expected = values_of(replica, subqueue), dict(self.left(subqueue))
            if here != expected:
                raise Violation(0, f"{replica.member} holds {here} in subqueue {subqueue}, not {expected}")


def values_of(replica: Replica, subqueue: int) -> dict[int, bytes]:
    """The messages in a subqueue of a member, by offset, as they lie in its journal."""
    found: dict[int, bytes] = {}
    part = replica.machine.part(Queue).subqueues[subqueue]
    for offset in range(part.start, part.end):
        if part.deliveries(offset) is None:
            continue
        place = part.locate(offset)
        assert isinstance(place, Place)
        records = list(batch_of(replica.journal.read(place.index, place.index, 1)[0]).records())
        found[offset] = records[offset - place.first_offset].value
    return found


def those(subqueue: list[Message], run: Run) -> list[Message]:
    """The messages of a run."""
    first, count, _ = run
    return subqueue[first - 1 : first - 1 + count]


def _fields(receipt: Accepted | Repeated) -> tuple[int, int]:
    return receipt.first_offset, receipt.count
