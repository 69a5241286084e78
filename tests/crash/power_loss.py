"""A journal on a simulated disk, with a record of what it has promised so far.

A scenario does things to a `Witness`, which does them to a journal and notes before and after each what may
be on the disk if the power goes now. The power then goes before every single operation of the disk; each
outcome that the disk can have is opened and held against the note.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from hawser.log.entry import Entry
from hawser.log.journal import Checkpoint, Damaged, Installation, Journal, NotFormatted, Settings, Snapshot
from hawser.log.protocol.events import Promise
from hawser.testing.disk import PowerLoss, SimDisk

# Some syncs are followed by a mark and some are not.
SETTINGS = Settings(segment_bytes=400, tail_bytes=300, syncs_a_mark=2)
PAYLOAD_BYTES = 40


class Violation(Exception):
    """A promise of the journal was broken."""


@dataclass(frozen=True)
class World:
    """What may be found: these entries, at least through `floor` and from one of `firsts` on, one of these
    vows, one of these checkpoints."""

    frames: tuple[bytes, ...] = ()
    floor: int = 0
    firsts: tuple[int, int] = (1, 1)
    promises: tuple[Promise, ...] = (Promise(),)
    checkpoints: tuple[Checkpoint | None, ...] = (None,)
    blocks: dict[str, bytes] = field(default_factory=dict)

    def fault(self, journal: Journal) -> str | None:
        """What is in the journal and should not be, or the other way round."""
        head, first = journal.head.index, journal.first
        if not self.floor <= head <= len(self.frames):
            return f"head {head}, not from {self.floor} to {len(self.frames)}"
        if not self.firsts[0] <= first <= self.firsts[1]:
            return f"first {first}, not from {self.firsts[0]} to {self.firsts[1]}"
        if journal.promise not in self.promises:
            return f"{journal.promise}, not one of {self.promises}"
        if journal.checkpoint not in self.checkpoints:
            return f"{journal.checkpoint}, not one of {self.checkpoints}"
        found = [entry.frame for entry in journal.read(first, head, 1 << 30)] if first <= head else []
        if found != list(self.frames[first - 1 : head]):
            return "another entry than the one that was appended"
        if journal.synced != head:
            return f"synced through {journal.synced}, not through the head {head}"
        for block in journal.checkpoint.blocks if journal.checkpoint else ():
            if journal.read_block(block) != self.blocks[block]:
                return f"another block {block}"
        return None


class Witness:
    """Does things to a journal and knows what they promise. `allowed` without a world: no journal at all."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.allowed: list[World | None] = [None]
        self._epoch = 1

    @property
    def world(self) -> World:
        (world,) = self.allowed
        assert world is not None
        return world

    def format(self) -> None:
        self.allowed = [None, World()]
        self.journal = Journal.format(self.disk, "shard", "node.disk", SETTINGS)
        self.allowed = [World()]

    def open(self) -> None:
        self.journal = Journal.open(self.disk, SETTINGS)
        self.allowed = [replace(self.world, floor=self.journal.head.index)]

    def next_epoch(self) -> None:
        self._epoch += 1

    def append(self, count: int, size: int = PAYLOAD_BYTES) -> None:
        world = self.world
        start = len(world.frames) + 1
        entries = [
            Entry.make(self._epoch, index, 1, bytes([self._epoch, index % 256]) * (size // 2))
            for index in range(start, start + count)
        ]
        self.allowed = [replace(world, frames=(*world.frames, *(entry.frame for entry in entries)))]
        self.journal.append(entries)

    def reserve(self, size: int) -> None:
        assert self.journal.reserve(size)

    def sync(self) -> None:
        synced = self.journal.sync()
        self.allowed = [replace(self.world, floor=synced)]

    def sync_beside(self, act: Callable[[], None]) -> None:
        """A sync that runs while something else is done: what came after its beginning does not count."""
        sync = self.journal.begin_sync()
        act()
        sync.run()
        self.allowed = [replace(self.world, floor=self.journal.end_sync(sync))]

    def settle(self) -> None:
        self.journal.settle()
        self.allowed = [replace(self.world, floor=self.journal.head.index)]

    def save_promise(self, promise: Promise) -> None:
        self.allowed = [replace(self.world, promises=(self.journal.promise, promise))]
        self.journal.save_promise(promise)
        self.allowed = [replace(self.world, promises=(promise,))]

    def truncate(self, index: int) -> None:
        world = self.world
        self.allowed = [replace(world, floor=min(world.floor, index))]
        self.journal.truncate(index)
        self.allowed = [replace(self.world, frames=world.frames[:index])]

    def save_checkpoint(self, index: int, state: bytes, blocks: dict[str, bytes]) -> None:
        world = self.world
        for name, data in blocks.items():
            if name not in world.blocks:
                self.journal.write_block(name, data)
        new = Checkpoint(index, state, tuple(blocks))
        both = world.blocks | blocks
        self.allowed = [replace(world, checkpoints=(*world.checkpoints, new), blocks=both)]
        self.journal.save_checkpoint(index, state, list(blocks))
        self.allowed = [replace(world, checkpoints=(new,), blocks=dict(blocks))]

    def retain(self, first: int) -> None:
        world = self.world
        self.allowed = [replace(world, firsts=(world.firsts[0], first))]
        found = self.journal.retain(first)
        self.allowed = [replace(world, firsts=(found, found))]

    def install(self, source: "Witness", promise: Promise) -> None:
        """Everything of another member, instead of what is here."""
        old = self.world
        snapshot = source.journal.snapshot()
        theirs = source.world
        index = snapshot_index(source)
        new = World(
            theirs.frames[:index], index, theirs.firsts, (promise,), theirs.checkpoints, theirs.blocks
        )
        self.allowed = [old, new]
        installation = self.journal.begin_install()
        transfer(snapshot, installation)
        installation.finish(promise)
        self.allowed = [new]
        self._epoch = max(self._epoch, source._epoch)

    def destroy(self) -> None:
        self.allowed = [self.world, None]
        self.journal.destroy()
        self.allowed = [None]


def snapshot_index(source: Witness) -> int:
    assert source.journal.checkpoint is not None
    return source.journal.checkpoint.index


def transfer(snapshot: Snapshot, installation: Installation, max_bytes: int = 100) -> None:
    """All pieces, one after the other."""
    part, position, done = 0, 0, False
    while not done:
        data, last, done = snapshot.piece(part, position, max_bytes)
        installation.put(part, position, data, last, done)
        part, position = (part + 1, 0) if last else (part, position + len(data))


def examine(disk: SimDisk, allowed: list[World | None]) -> None:
    """Open what a crash has left: it is one of the allowed worlds, and goes on working."""
    try:
        journal = Journal.open(disk, SETTINGS)
    except NotFormatted:
        if None not in allowed:
            raise Violation("there is no journal any more") from None
        journal = Journal.format(disk, "shard", "node.disk", SETTINGS)
        allowed = [World()]
    except Damaged as damaged:
        raise Violation(f"taken for damaged: {damaged}") from damaged
    faults = [world.fault(journal) if world else "no journal" for world in allowed]
    if None not in faults:
        raise Violation("; ".join(fault for fault in faults if fault))
    go_on(disk, journal)


def go_on(disk: SimDisk, journal: Journal) -> None:
    """Append, sync and open again: nothing old comes back, nothing is lost."""
    head = journal.head
    entries = [Entry.make(head.epoch + 100, head.index + 1, 1, b"after" * 60)]
    before = journal.read(journal.first, head.index, 1 << 30) if journal.first <= head.index else []
    journal.append(entries)
    journal.sync()
    again = Journal.open(disk, SETTINGS)
    if again.read(again.first, again.head.index, 1 << 30) != before + entries:
        raise Violation("after a further append the log is another one")


Scenario = Callable[[Witness], None]


def points(scenario: Scenario) -> Iterator[Witness]:
    """The witness of a scenario as it was when the power went, before each operation and after the last."""
    whole = Witness(SimDisk())
    scenario(whole)
    for operation in range(whole.disk.operations):
        witness = Witness(SimDisk())
        witness.disk.power_lost_before = operation
        try:
            scenario(witness)
        except PowerLoss:
            yield witness
    yield whole


@dataclass
class Figures:
    """What an attack has tried."""

    points: int = 0
    outcomes: int = 0
    most_pending: int = 0


def attack(scenario: Scenario, random: Random, most: int = 10, samples: int = 100) -> Figures:
    """Every point, every outcome; the first Violation ends it."""
    figures = Figures()
    for witness in points(scenario):
        figures.points += 1
        figures.most_pending = max(figures.most_pending, witness.disk.pending())
        for disk in witness.disk.outcomes(random, most, samples):
            figures.outcomes += 1
            examine(disk, witness.allowed)
    return figures


def attack_opening(scenario: Scenario, random: Random, outcomes_a_point: int) -> Figures:
    """The power goes again while the journal is opened: before each operation of that, too."""
    figures = Figures()
    for witness in points(scenario):
        for disk in sampled(witness.disk, random, outcomes_a_point):
            for half_open in interrupted_openings(disk):
                figures.points += 1
                figures.most_pending = max(figures.most_pending, half_open.pending())
                for again in sampled(half_open, random, outcomes_a_point):
                    figures.outcomes += 1
                    examine(again, witness.allowed)
    return figures


def sampled(disk: SimDisk, random: Random, count: int) -> Iterator[SimDisk]:
    """Some of the outcomes of a crash now."""
    for _ in range(count):
        copy = disk.copy()
        copy.crash(random)
        yield copy


def interrupted_openings(disk: SimDisk) -> Iterable[SimDisk]:
    """The disk as it was before each operation of its opening."""
    done = False
    extra = 0
    while not done:
        copy = disk.copy()
        copy.power_lost_before = copy.operations + extra
        try:
            Journal.open(copy, SETTINGS)
            done = True
        except NotFormatted:
            done = True
        except PowerLoss:
            extra += 1
            yield copy
