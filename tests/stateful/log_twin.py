"""What a shard's state is supposed to be, said as plainly as can be: a list of records, and dictionaries."""

from dataclasses import dataclass, field

from hawser.log.state.results import (
    Accepted,
    Advanced,
    Committed,
    Deleted,
    Expired,
    Joined,
    Left,
    OutOfRange,
    Place,
    Reason,
    Rejected,
    Repeated,
    Result,
    Trimmed,
)
from hawser.record.record import Stamp

KEPT_RECEIPTS = 64


@dataclass
class Kept:
    """One record: in which entry it is, its time, and the latest time up to the end of its batch."""

    index: int
    first_offset: int
    count: int
    latest_ns: int


@dataclass
class Producer:
    incarnation: int
    receipts: list[Accepted] = field(default_factory=list)


@dataclass
class Group:
    generation: int
    position: int
    members: set[str] = field(default_factory=set)

    @property
    def leader(self) -> str | None:
        return min(self.members, default=None)

    @property
    def sorted(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))


class Twin:
    """Record n lies at n - 1 of the list, trimmed or not."""

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.start = 1
        self.latest_ns = -(1 << 63)
        self.producers: dict[bytes, Producer] = {}
        self.groups: dict[str, Group] = {}
        self.generation = 0
        # The time of the log, and where the topic ended at each.
        self.now_ns = 0
        self.ends: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return len(self.records) + 1

    def publish(self, index: int, count: int, stamp: Stamp, timestamp_ns: int) -> Result:
        if not stamp.producer:
            return self.append(index, count, timestamp_ns)
        producer = self.producers.get(stamp.producer)
        if producer is None or producer.incarnation < stamp.incarnation:
            if stamp.sequence > 1:
                return Rejected(Reason.UNKNOWN_PRODUCER, 0, stamp.sequence)
            producer = self.producers[stamp.producer] = Producer(stamp.incarnation)
        if stamp.incarnation < producer.incarnation:
            return Rejected(Reason.FENCED, producer.incarnation, stamp.incarnation)
        last = len(producer.receipts)
        if stamp.sequence > last + 1:
            return Rejected(Reason.GAP, last + 1, stamp.sequence)
        if stamp.sequence == last + 1:
            producer.receipts.append(self.append(index, count, timestamp_ns))
            return producer.receipts[-1]
        if stamp.sequence <= last - KEPT_RECEIPTS:
            return Rejected(Reason.TOO_OLD, last, stamp.sequence)
        receipt = producer.receipts[stamp.sequence - 1]
        return Repeated(receipt.first_offset, receipt.count)

    def append(self, index: int, count: int, timestamp_ns: int) -> Accepted:
        first = self.end
        self.latest_ns = max(self.latest_ns, timestamp_ns)
        self.records += [Kept(index, first, count, self.latest_ns)] * count
        return Accepted(first, count)

    def expire(self, named: list[tuple[bytes, int, int]]) -> Result:
        count = 0
        for name, incarnation, last in named:
            producer = self.producers.get(name)
            if producer and (producer.incarnation, len(producer.receipts)) == (incarnation, last):
                del self.producers[name]
                count += 1
        return Expired(count)

    def trim(self, offset: int, floor: int) -> Result:
        wanted = max(self.start, min(offset, self.end))
        positions = sorted((group.position, name) for name, group in self.groups.items())
        held_by = None
        start = wanted
        if positions and positions[0][0] < wanted:
            start = max(self.start, positions[0][0], min(floor, wanted))
            held_by = positions[0][1] if start < wanted else None
        self.start = start
        return Trimmed(start, self.end, held_by)

    def advance(self, before_ns: int, after_ns: int) -> Result:
        if after_ns < before_ns:
            return Rejected(Reason.BAD_PAYLOAD)
        if before_ns != self.now_ns:
            return Rejected(Reason.OTHER_TIME, self.now_ns, before_ns)
        self.now_ns = after_ns
        self.ends.append((after_ns, self.end))
        return Advanced(after_ns)

    def end_at(self, time_ns: int) -> int:
        """Every record below it was there then."""
        return max((end for ended_ns, end in self.ends if ended_ns <= time_ns), default=1)

    def join(self, name: str, member: str, position: int) -> Result:
        group = self.groups.get(name)
        if group is None:
            begin = sorted([self.start, position, self.end])[1]
            group = self.groups[name] = Group(0, begin)
        if member not in group.members:
            group.members.add(member)
            self.generation += 1
            group.generation = self.generation
        return Joined(group.generation, group.sorted[0], group.sorted, group.position)

    def leave(self, name: str, member: str) -> Result:
        group = self.groups.get(name)
        if group is None:
            return Rejected(Reason.NO_GROUP)
        if member in group.members:
            group.members.remove(member)
            self.generation += 1
            group.generation = self.generation
        return Left(group.generation, group.leader, group.sorted)

    def commit(self, name: str, member: str, generation: int, before: int, after: int) -> Result:
        group = self.groups.get(name)
        if group is None:
            return Rejected(Reason.NO_GROUP)
        if member not in group.members:
            return Rejected(Reason.NOT_MEMBER)
        if generation != group.generation:
            return Rejected(Reason.OTHER_GENERATION, group.generation, generation)
        if before != group.position:
            return Rejected(Reason.MOVED, group.position, before)
        if after < before:
            return Rejected(Reason.BACKWARD, before, after)
        if after > self.end:
            return Rejected(Reason.BEYOND_END, self.end, after)
        group.position = after
        return Committed(after)

    def delete(self, name: str) -> Result:
        return Deleted(self.groups.pop(name, None) is not None)

    # Reading

    def needed(self, applied: int) -> int:
        return min((kept.index for kept in self.records[self.start - 1 :]), default=applied + 1)

    def locate(self, offset: int) -> Place | OutOfRange:
        if not self.start <= offset < self.end:
            return OutOfRange(self.start, self.end)
        kept = self.records[offset - 1]
        return Place(kept.index, kept.first_offset, kept.count)

    def at_time(self, timestamp_ns: int) -> int:
        """A batch is as late as the latest before it: none is skipped, and the search has one answer."""
        for kept in self.records:
            if kept.latest_ns >= timestamp_ns and kept.first_offset + kept.count > self.start:
                return max(kept.first_offset, self.start)
        return self.end
