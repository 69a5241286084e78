"""A state machine with its log and its blocks in memory, and a short way to say what is to be applied."""

from collections.abc import Callable, Sequence

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import (
    AdvanceTime,
    ExpireProducers,
    GroupCommit,
    GroupDelete,
    GroupJoin,
    GroupLeave,
    Payload,
    TrimTo,
    encode_command,
)
from hawser.log.state.groups import Groups
from hawser.log.state.machine import Machine, Saved, topic_parts
from hawser.log.state.part import Part
from hawser.log.state.producers import Producers
from hawser.log.state.results import Result
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import NO_STAMP, Record, Stamp

PAGE_PLACES = 3
KINDS: dict[type[Payload], Kind] = {
    TrimTo: Kind.TRIM,
    ExpireProducers: Kind.EXPIRE_PRODUCERS,
    GroupJoin: Kind.GROUP_JOIN,
    GroupLeave: Kind.GROUP_LEAVE,
    GroupCommit: Kind.GROUP_COMMIT,
    GroupDelete: Kind.GROUP_DELETE,
    AdvanceTime: Kind.ADVANCE_TIME,
}


class MemoryBlocks:
    """Blocks that are never changed, and gone when a checkpoint does not list them."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.writes = 0
        self.reads = 0

    def write(self, name: str, data: bytes) -> None:
        assert self.kept.setdefault(name, data) == data, f"block {name} was changed"
        self.writes += 1

    def read(self, name: str) -> bytes:
        self.reads += 1
        return self.kept[name]

    def keep(self, names: Sequence[str]) -> None:
        """A checkpoint lists these."""
        self.kept = {name: self.kept[name] for name in names}


def parts_of_a_topic() -> Sequence[Part]:
    return topic_parts(PAGE_PLACES)


class Shard:
    """One machine, its log and its checkpoint."""

    def __init__(self, make_parts: Callable[[], Sequence[Part]] = parts_of_a_topic) -> None:
        self.blocks = MemoryBlocks()
        self.make_parts = make_parts
        self.machine = Machine(self.blocks, make_parts())
        self.log: list[Entry] = []
        self.saved: Saved | None = None

    @property
    def topic(self) -> Topic:
        return self.machine.part(Topic)

    @property
    def producers(self) -> Producers:
        return self.machine.part(Producers)

    @property
    def groups(self) -> Groups:
        return self.machine.part(Groups)

    def entry(self, kind: int, payload: bytes, version: int = 1, transaction: bytes = b"") -> Entry:
        index = self.machine.applied + 1
        return Entry.make(1 + index // 7, index, kind, payload, version=version, transaction=transaction)

    def put(self, kind: int, payload: bytes, version: int = 1, transaction: bytes = b"") -> Result:
        """Append an entry and apply it."""
        entry = self.entry(kind, payload, version, transaction)
        result = self.machine.apply(entry)
        self.log.append(entry)
        return result

    def do(self, command: Payload) -> Result:
        return self.put(KINDS[type(command)], encode_command(command))

    def publish(self, count: int = 1, stamp: Stamp = NO_STAMP, timestamp_ns: int = 0) -> Result:
        return self.put(Kind.BATCH, batch(count, stamp, timestamp_ns))

    def save(self) -> Saved:
        """Make a checkpoint."""
        self.saved = self.machine.save()
        self.blocks.keep(self.saved.blocks)
        return self.saved

    def restart(self) -> None:
        """Go on from the last checkpoint, or from nothing, and apply the log again."""
        self.machine = Machine(self.blocks, self.make_parts())
        if self.saved is not None:
            self.machine.load(self.saved.state)
        for entry in self.log[self.machine.applied :]:
            self.machine.apply(entry)


def batch(count: int = 1, stamp: Stamp = NO_STAMP, timestamp_ns: int = 0) -> bytes:
    return bytes(Batch.of([Record(b"value", None, {}, timestamp_ns)] * count, stamp).data)
