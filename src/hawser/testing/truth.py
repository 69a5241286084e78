"""The truth of a simulated cluster: the committed log and its state.

The first member that commits an index defines its entry; another entry at that index is a violation. A state
machine applies each committed entry, so that the state of each member can be compared at each index. An
independent twin of a few lines counts records and keeps receipts, which checks the state machine itself.
"""

from typing import Final

from hawser.log.entry import NO_ENTRY, Entry, EntryId, Kind
from hawser.log.protocol.messages import Member
from hawser.log.state.commands import QueueSettle, decoder
from hawser.log.state.machine import Machine, topic_parts
from hawser.log.state.part import Part
from hawser.log.state.queue import Queue
from hawser.log.state.results import Accepted, Place, Result, Trimmed
from hawser.log.state.topic import PAGE_PLACES
from hawser.record.batch import Batch
from hawser.record.record import NO_STAMP, Stamp
from hawser.testing.checks import Violation
from hawser.testing.clients import View
from hawser.testing.queue_truth import STEP_BYTES, QueueTruth
from hawser.testing.transaction_truth import Book, TransactionTruth
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.participant.branches import Branches

__all__ = ["Blocks", "Truth", "shard_parts"]

_QUEUE_KINDS: Final = (Kind.QUEUE_PUT, Kind.QUEUE_SETTLE, Kind.QUEUE_LIMIT)
_read_settle: Final = decoder(QueueSettle)


def shard_parts(page_places: int) -> tuple[Part, ...]:
    """The parts of a simulated shard: a topic, a queue, transactions."""
    return (*topic_parts(page_places), Queue(page_places, STEP_BYTES), Branches(), Decisions())


class Blocks(dict[str, bytes]):
    """The blocks of a state machine, in memory."""

    write = dict.__setitem__
    read = dict.__getitem__


class Truth:
    """The committed log. `values[i - 1]` is the value of the record at offset i, trimmed or not."""

    def __init__(self, shard: str = "shard", book: Book | None = None) -> None:
        self.entries: list[Entry] = []
        self.epochs: list[int] = []
        self.values: list[bytes] = []
        self.places: dict[Stamp, Place] = {}
        self.queue: Final = QueueTruth()
        self.transactions: Final = TransactionTruth(self, shard, book or Book())
        self.machine: Final = Machine(Blocks(), shard_parts(PAGE_PLACES))
        self._hashes = [self.machine.hash]
        self._bounds = [(1, 1)]
        self._latest: dict[bytes, tuple[int, int]] = {}
        self.zombies = 0
        # The first offset and the offset after the last, as reported to clients.
        self.told = (1, 1)

    @property
    def last(self) -> int:
        """The index of the last committed entry."""
        return len(self.entries)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self.values) + 1

    def id_at(self, index: int) -> EntryId:
        return EntryId(self.epochs[index - 1], index) if index else NO_ENTRY

    def extend(self, entry: Entry) -> None:
        """Add a committed entry with a new index."""
        assert entry.index == self.last + 1
        self.entries.append(entry)
        self.epochs.append(entry.epoch)
        result = self.machine.apply(entry)
        self._hashes.append(self.machine.hash)
        if entry.transaction_size:
            self.transactions.extend(entry, result)
        elif entry.kind == Kind.BATCH:
            self._extend_twin(entry, result)
        elif entry.kind in _QUEUE_KINDS:
            self._extend_queue(entry, result)
        elif entry.kind in Decisions.kinds:
            self.transactions.extend_coordinator(entry, result, self.machine.part(Decisions))
        start = result.start if isinstance(result, Trimmed) else self._bounds[-1][0]
        self._bounds.append((start, self.end))

    def bounds_at(self, index: int) -> tuple[int, int]:
        """The first offset and the offset after the last, when entries up to `index` are applied."""
        if index > self.last:
            raise Violation(8, f"somebody applied {index}, but only {self.last} entries are committed")
        return self._bounds[index]

    def compare_state(self, member: Member, applied: int, state_hash: int) -> None:
        """Compare the state of a member that has applied entries up to `applied`."""
        if applied > self.last:
            raise Violation(8, f"{member} applied {applied}, but only {self.last} entries are committed")
        if self._hashes[applied] != state_hash:
            raise Violation(0, f"the state of {member} at {applied} is not the one of the committed log")

    def compare_whole(self, member: Member, machine: Machine, view: View) -> None:
        """Compare a member that has applied all entries, including the records that it serves."""
        if machine.digest() != self.machine.digest():
            raise Violation(0, f"the state of {member} is not the one of the committed log, its hash is")
        if view.end != self.end or list(view.values) != self.values[view.start - 1 :]:
            raise Violation(0, f"{member} serves {view.start} to {view.end}, which is not what was published")

    def acknowledge(self, stamp: Stamp, first_offset: int, count: int) -> Place:
        """Check that the acknowledged batch of a producer is in the log once, at its place."""
        place = self.places.get(stamp)
        if place is None or (place.first_offset, place.count) != (first_offset, count):
            raise Violation(
                0, f"batch {stamp} was acknowledged at {first_offset}, {count} records; it is at {place}"
            )
        self.tell(1, first_offset + count)
        return place

    def tell(self, start: int, end: int) -> None:
        """Note that a client knows the topic up to this offset; later reads must include it."""
        self.told = (max(self.told[0], start), max(self.told[1], end))

    def _extend_twin(self, entry: Entry, result: Result) -> None:
        batch = Batch.read(entry.payload)
        stamp = batch.stamp
        taken = self._takes(stamp)
        if taken:
            self._latest[stamp.producer] = (stamp.incarnation, stamp.sequence)
            self.places[stamp] = Place(entry.index, self.end, batch.count)
            self.values.extend(record.value for record in batch.records())
        accepted = isinstance(result, Accepted)
        if taken != accepted or (
            isinstance(result, Accepted) and result.first_offset != self.places[stamp].first_offset
        ):
            raise Violation(
                0, f"batch {stamp} of entry {entry.id} was to be taken: {taken}; it was: {result}"
            )

    def _extend_queue(self, entry: Entry, result: Result) -> None:
        stamp = NO_STAMP
        if entry.kind == Kind.QUEUE_PUT:
            stamp = Batch.read(entry.payload).stamp
        elif (command := _read_settle(entry)) is not None and entry.kind == Kind.QUEUE_SETTLE:
            stamp = Stamp(command.consumer, command.incarnation, command.sequence)
        is_next = bool(stamp.producer) and self._takes(stamp)
        if self.queue.extend(entry, is_next, result) and stamp.producer:
            self._latest[stamp.producer] = (stamp.incarnation, stamp.sequence)

    def _takes(self, stamp: Stamp) -> bool:
        """Whether a batch is new and in sequence; each batch counts once."""
        incarnation, sequence = self._latest.get(stamp.producer, (0, 0))
        if stamp.incarnation > incarnation:
            return stamp.sequence == 1
        self.zombies += stamp.incarnation < incarnation
        return stamp.incarnation == incarnation and stamp.sequence == sequence + 1
