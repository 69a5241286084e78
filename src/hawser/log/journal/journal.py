"""The journal: the log of one member of a shard on its disk. `recovery.py` describes how it survives a crash.

Contract. Entries are appended in order and are durable up to `synced`. One sync runs at a time, beside any
call but `destroy`: begin it, run it, then end it. All calls come from one thread; the last ones before the
program ends are `settle`, or the syncs of `settling`. `append` writes into reserved room only, so StorageFull
can come only from `append` without `reserve`, `write_block`, `save_checkpoint` and an installation, and
leaves the journal unchanged. After StorageFailed the state of unsynced data is unknown: stop and open the
journal again.

Invariants:

1. Entries `first` to `head.index` are in the segments, in order and without a gap.
2. Everything through `synced` is on disk; entries that a mark covers were synced before it was written.
3. `first` - 1 <= `checkpoint.index` <= `synced` <= `head.index`, with 0 for no checkpoint.
4. Behind the last frame of the last segment there are zeros, durably except for writes that a crash may undo.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from hawser.log.entry import HEADER_BYTES, Entry, EntryId
from hawser.log.epochs import Epochs
from hawser.log.journal import checkpoints, file_names, recovery
from hawser.log.journal.checkpoints import Blocks, Record
from hawser.log.journal.errors import Damaged
from hawser.log.journal.installation import Installation
from hawser.log.journal.promise import Identity, PromiseFile
from hawser.log.journal.reader import Tail
from hawser.log.journal.recovery import scan
from hawser.log.journal.segment import Segment
from hawser.log.journal.segment_list import Segments
from hawser.log.journal.snapshot import Snapshot
from hawser.log.journal.storage import Storage, StorageFull
from hawser.log.protocol.events import Promise

__all__ = ["Journal", "Settings", "Sync"]

_FIRST_GENERATION: Final = 1


class Settings(msgspec.Struct, frozen=True):
    """`segment_bytes` is the room for frames in a segment; a larger batch gets a segment of its own size. The
    newest `tail_bytes` of entries are kept in memory for readers. `ballast_bytes` of the disk are reserved
    for a checkpoint on a full disk. One sync in `syncs_a_mark` writes a mark; entries synced since the last
    mark and then lost by the disk look like a torn tail after a crash."""

    segment_bytes: int = 64 << 20
    tail_bytes: int = 8 << 20
    ballast_bytes: int = 256 << 10
    syncs_a_mark: int = 4

    def __post_init__(self) -> None:
        if self.segment_bytes < HEADER_BYTES or self.tail_bytes < 0 or self.syncs_a_mark < 1:
            raise ValueError(
                f"segment_bytes is at least {HEADER_BYTES}, tail_bytes at least 0 and syncs_a_mark at least "
                f"1, not {self}"
            )


class Sync:
    """One sync of everything written before it began."""

    __slots__ = ("index", "segments")

    def __init__(self, index: int, segments: tuple[Segment, ...]) -> None:
        self.index = index
        self.segments = segments

    @property
    def names(self) -> list[str]:
        """The files to sync, the older first."""
        return [segment.name for segment in self.segments]

    def run(self) -> None:
        """Sync the files."""
        for segment in self.segments:
            try:
                segment.storage.sync(segment.name)
            except FileNotFoundError:
                # A truncation may remove a segment meanwhile; its content then does not matter.
                if not segment.is_removed:
                    raise


class Journal:
    """The journal of one member; `format` and `open` make one."""

    def __init__(
        self, storage: Storage, settings: Settings, promises: PromiseFile, log: recovery.Log
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._promises = promises
        self._sync_under_way: Sync | None = None
        self._installation: Installation | None = None
        self._take_over(log)

    @classmethod
    def format(cls, storage: Storage, shard: str, member: str, settings: Settings | None = None) -> Self:
        """Create an empty journal, durably; FileExistsError if there is one."""
        identity = Identity(shard, member).check()
        if file_names.PROMISE in storage.names():
            raise FileExistsError("there is a journal here; open it, or destroy it first")
        recovery.check_unformatted(storage)
        recovery.remove_leftovers(storage, 0, None)
        settings = settings or Settings()
        segment = Segment.create(storage, identity, _FIRST_GENERATION, 1, settings.segment_bytes)
        promises = PromiseFile.create(storage, identity, _FIRST_GENERATION)
        return cls(storage, settings, promises, recovery.Log([segment], Epochs(), None))

    @classmethod
    def open(cls, storage: Storage, settings: Settings | None = None) -> Self:
        """Open a journal, repaired after a crash and synced.

        Raises NotFormatted, OtherVersion, or Damaged if something that was synced is lost."""
        promises = recovery.open_promise(storage)
        log = recovery.open_log(storage, promises)
        journal = cls(storage, settings or Settings(), promises, log)
        journal._segments.sync_what_was_read()
        journal._segments.write_marks(journal.synced)
        return journal

    def _take_over(self, log: recovery.Log) -> None:
        self._segments = Segments(
            self._storage,
            self._promises.identity,
            self._settings.segment_bytes,
            self._settings.syncs_a_mark,
            log.segments,
        )
        self._record = log.record
        self._blocks = Blocks(self._storage, self._promises.generation, log.record)
        self._tail = Tail(self._settings.tail_bytes, log.epochs.head.index + 1)
        self.epochs = log.epochs
        self.checkpoint = log.record.checkpoint if log.record else None
        self.synced = log.epochs.head.index

    @property
    def shard(self) -> str:
        return self._promises.identity.shard

    @property
    def member(self) -> str:
        return self._promises.identity.member

    @property
    def promise(self) -> Promise:
        return self._promises.promise

    @property
    def head(self) -> EntryId:
        return self.epochs.head

    @property
    def first(self) -> int:
        """The first entry that is kept; head.index + 1 without one."""
        return self._segments.first

    def save_promise(self, promise: Promise) -> None:
        """Store the promise, durably; works on a full disk."""
        assert promise.epoch >= self.promise.epoch, "a promise is never taken back"
        self._promises.save(promise=promise)

    def reserve(self, size: int) -> bool:
        """Reserve room for frames of this size in all; False without room, and then nothing has changed. The
        room stays reserved until frames are appended or truncated."""
        return self._segments.reserve(size)

    @property
    def room_bytes(self) -> int:
        """The bytes of frames that still fit into the active segment."""
        return self._segments.active.room

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries that follow the head, without a sync; StorageFull writes none."""
        if not entries:
            return
        data = b"".join([entry.frame for entry in entries])
        if not self.reserve(len(data)):
            raise StorageFull(f"no room for {len(data)} bytes of entries of shard {self.shard}")
        self._note(entries)
        self._segments.write(data, self.epochs.head.index)
        self._tail.add(entries, len(data))

    def _note(self, entries: Sequence[Entry]) -> None:
        """Check that the entries follow the head, and note their epochs and places. The journal's hot
        loop."""
        active = self._segments.active
        start = active.end
        next_place = active.next_place
        epoch, index = self.epochs.head
        for entry in entries:
            if entry.epoch != epoch:
                if index > self.epochs.head.index:
                    self.epochs.extend_through(epoch, index)
                assert entry.epoch > epoch, f"{entry.id} cannot follow {epoch}:{index}"
                epoch = entry.epoch
            index += 1
            assert entry.index == index, f"{entry.id} is not at index {index}"
            if start >= next_place:
                active.note_place(index, start)
                next_place = active.next_place
            start += len(entry.frame)
        self.epochs.extend_through(epoch, index)

    def begin_sync(self, with_marks: bool = False) -> Sync:
        """Begin a sync of all appended entries, and optionally of written marks. Call its `run`, then
        `end_sync`."""
        assert self._sync_under_way is None, "one sync at a time"
        self._sync_under_way = sync = Sync(self.head.index, self._segments.take_dirty(with_marks))
        return sync

    def end_sync(self, sync: Sync) -> int:
        """Note that `sync.run` has returned; gives the new `synced`."""
        assert self._sync_under_way is sync
        self._sync_under_way = None
        self.synced = max(self.synced, sync.index)
        self._segments.note_synced(sync.segments, self.synced)
        return self.synced

    def sync(self, with_marks: bool = False) -> int:
        """Sync everything appended; gives the new `synced`."""
        sync = self.begin_sync(with_marks)
        sync.run()
        return self.end_sync(sync)

    def mark(self) -> None:
        """Write marks with the synced index now, before their turn."""
        self._segments.write_marks(self.synced)

    def settle(self) -> None:
        """Sync the entries and then a mark that covers them; for an idle journal."""
        for sync in self.settling():
            sync.run()

    def settling(self) -> Iterator[Sync]:
        """As `settle`, as a series of syncs; run each before the next is requested."""
        for with_marks in (False, True):
            sync = self.begin_sync(with_marks)
            yield sync
            self.end_sync(sync)
            if not with_marks:
                self.mark()

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Entries `first` to `last` as far as they fit into `max_bytes`, at least one. Damaged names the
        first entry that is not whole."""
        assert self.first <= first <= last <= self.head.index
        if first >= self._tail.first:
            return self._tail.read(first, last, max_bytes)
        return self._segments.read(first, last, max_bytes, self.epochs)

    def truncate(self, index: int) -> None:
        """Make entry `index` the head, durably. Entries that a checkpoint covers cannot be cut."""
        assert index >= max(self.first - 1, self.checkpoint.index if self.checkpoint else 0)
        if index >= self.head.index:
            return
        self._segments.truncate(index)
        self.epochs.cut(index)
        self._tail.cut(index)
        self.synced = min(self.synced, index)
        if self._sync_under_way is not None:
            self._sync_under_way.index = min(self._sync_under_way.index, index)

    def retain(self, first: int) -> int:
        """Remove segments that the checkpoint covers and that have no entry from `first` on; gives the new
        `first`."""
        covered = self.checkpoint.index if self.checkpoint else 0
        unneeded = self._segments.take_unneeded(min(first - 1, covered))
        if unneeded:
            self._promises.save(first=self.first)
            for segment in unneeded:
                segment.remove()
        return self.first

    def first_of_newest(self, size: int) -> int:
        """The first entry of the newest segments with at least `size` bytes of entries; `first` if all
        segments have less."""
        return self._segments.first_of_newest(size)

    def bytes_behind(self, index: int) -> int:
        """The bytes of entries in segments that begin behind `index`."""
        return self._segments.bytes_behind(index)

    def bytes_before(self, index: int) -> int:
        """The bytes of entries in segments that end before `index`, without the active segment."""
        return self._segments.bytes_before(index)

    def hold_ballast(self) -> bool:
        """Reserve room for a checkpoint on a full disk; False without room."""
        if file_names.BALLAST in self._storage.names():
            return True
        try:
            self._storage.create(file_names.BALLAST, self._settings.ballast_bytes)
        except StorageFull:
            return False
        return True

    def drop_ballast(self) -> None:
        """Free the reserved room."""
        if file_names.BALLAST in self._storage.names():
            self._storage.remove(file_names.BALLAST)

    def write_block(self, name: str, data: bytes) -> None:
        """Write a block of state; it becomes durable with the next checkpoint that lists it."""
        self._blocks.write(name, data)

    def read_block(self, name: str) -> bytes:
        """Read a block; Damaged if it is not whole."""
        return self._blocks.read(name)

    def save_checkpoint(self, index: int, state: bytes, blocks: Sequence[str]) -> None:
        """Replace the last checkpoint, atomically and durably; removes blocks that it does not list."""
        assert self.first - 1 <= index <= self.synced
        assert self.checkpoint is None or index >= self.checkpoint.index
        listed = self._blocks.listing(blocks)
        epochs = self.epochs.copy()
        epochs.cut(index)
        sequence = self._record.sequence + 1 if self._record else 1
        record = Record(self.shard, sequence, index, tuple(epochs.pairs()), listed, state)
        self._blocks.sync(blocks)
        checkpoints.save(self._storage, self._promises.generation, record)
        self._record = record
        self.checkpoint = record.checkpoint
        self._blocks.keep(record)

    def snapshot(self) -> Snapshot:
        """A snapshot of the last checkpoint, which must exist, and the kept entries."""
        assert self._record is not None, "a snapshot needs a checkpoint"
        record, first = self._record, self.first
        owner = f"{self.shard} {self.member}"
        return Snapshot(
            owner,
            list(self._segments),
            record,
            self._blocks,
            lambda: self._record is record and self.first == first,
        )

    def begin_install(self) -> Installation:
        """Begin to install a snapshot, instead of an earlier installation; the log is unchanged until
        `finish`."""
        if self._installation is not None:
            self._installation.drop()
        self._installation = Installation(
            self._storage,
            self._promises.identity,
            self._promises.generation + 1,
            self._settings.segment_bytes,
            self._switch,
        )
        return self._installation

    def _switch(self, installation: Installation, promise: Promise, log: recovery.Log) -> None:
        """Make the installed snapshot the log."""
        assert installation is self._installation and promise.epoch >= self.promise.epoch
        self._promises.save(promise=promise, generation=installation.generation, first=log.segments[0].first)
        self._installation = None
        if self._sync_under_way is not None:
            self._sync_under_way.index = 0
        for segment in self._segments:
            segment.is_removed = True
        self._take_over(log)
        recovery.remove_leftovers(self._storage, installation.generation, log.record)

    def verify(self) -> Iterator[str]:
        """Check all files; yields the name of each one that is whole. Damaged names the first that is not."""
        PromiseFile.open(self._storage)
        yield file_names.PROMISE
        pairs = self._pairs_before_first()
        for segment in list(self._segments):
            copy = Segment.open(self._storage, self._promises.identity, segment.generation, segment.first)
            stop = scan(copy, segment.last, pairs)
            if stop is not None:
                raise Damaged(copy.name, stop.byte, stop.index, stop.reason)
            yield segment.name
        for block in self.checkpoint.blocks if self.checkpoint else ():
            self._blocks.read(block)
            yield file_names.block_name(self._promises.generation, block)
        if checkpoints.load(self._storage, self._promises.generation, self.shard) is not None:
            yield file_names.checkpoint_name(self._promises.generation)

    def _pairs_before_first(self) -> list[tuple[int, int]]:
        epochs = self.epochs.copy()
        epochs.cut(self.first - 1)
        return epochs.pairs()

    def destroy(self) -> None:
        """Remove all files, durably; the object is unusable afterwards."""
        self._promises.save(generation=0)
        recovery.remove_leftovers(self._storage, 0, None)
        self.drop_ballast()
        self._storage.remove(file_names.PROMISE)
        self._storage.sync_names()
