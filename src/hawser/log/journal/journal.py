"""The log of one member of a shard on its disk: `hawser.log.journal.recovery` says how it survives a crash.

The caller's contract. Entries are appended in order, and count as durable up to `synced` and no further. One
sync is under way at a time, beside anything but `destroy`: whoever begins it has its files synced, and says
when that is done. Every call comes from one thread; the last before the program ends is `settle`, or the
syncs of `settling`. `append` writes only where room is reserved, so of all calls only `append` without
`reserve`, `write_block`, `save_checkpoint` and installing can raise StorageFull, and leave the journal as it
was. After StorageFailed nothing can be said of what was not synced: stop, and open it again.

Invariants:

1. Entries `first` to `head.index` are in the segments, in order and without a gap.
2. Everything through `synced` is on disk; what a mark on disk covers was synced before it was written.
3. `first` - 1 <= `checkpoint.index` <= `synced` <= `head.index`, with 0 for no checkpoint.
4. Behind the last frame of the last segment there are zeros, and durably so but for what a crash may undo.
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
    """`segment_bytes` is the room for frames in a segment; a batch that is larger gets one of its own size.
    `tail_bytes` of the newest entries are kept in memory for reading; `ballast_bytes` of the disk are kept
    for a checkpoint when it is full. One sync in `syncs_a_mark` is noted on disk; what was synced since then
    and lost by the disk is, after a crash, taken for a torn tail."""

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
    """One sync of everything that was written before it was begun."""

    __slots__ = ("index", "segments")

    def __init__(self, index: int, segments: tuple[Segment, ...]) -> None:
        self.index = index
        self.segments = segments

    @property
    def names(self) -> list[str]:
        """The files that are to be synced, the older first: by `run`, or while other calls go on."""
        return [segment.name for segment in self.segments]

    def run(self) -> None:
        """Return when it is on disk."""
        for segment in self.segments:
            try:
                segment.storage.sync(segment.name)
            except FileNotFoundError:
                # A truncation may remove a segment under way; then nothing in it counts.
                if not segment.is_removed:
                    raise


class Journal:
    """See the top of the file; made by `format` and `open`."""

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
        """An empty journal, durable when this returns; FileExistsError if the storage holds one."""
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
        """What is there, mended after a crash, and on disk when this returns.

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
        """The first entry that is still there; head.index + 1 if none is."""
        return self._segments.first

    def save_promise(self, promise: Promise) -> None:
        """Durable when it returns; a full disk cannot stop it."""
        assert promise.epoch >= self.promise.epoch, "a vow is never taken back"
        self._promises.save(promise=promise)

    def reserve(self, size: int) -> bool:
        """Whether there is room for frames of so many bytes in all. If so, it is this journal's until they
        are appended or truncated; if not, nothing has changed."""
        return self._segments.reserve(size)

    @property
    def room_bytes(self) -> int:
        """As many bytes of frames fit into the segment that is being written."""
        return self._segments.active.room

    def append(self, entries: Sequence[Entry]) -> None:
        """Written, not synced. They follow the head; StorageFull if there is no room, and none is written."""
        if not entries:
            return
        data = b"".join([entry.frame for entry in entries])
        if not self.reserve(len(data)):
            raise StorageFull(f"no room for {len(data)} bytes of entries of shard {self.shard}")
        self._note(entries)
        self._segments.write(data, self.epochs.head.index)
        self._tail.add(entries, len(data))

    def _note(self, entries: Sequence[Entry]) -> None:
        """Check that they follow the head, and keep their epochs and places: the hot loop of a journal."""
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
        """A sync of everything appended so far, and if wanted of the marks that were written: call its `run`,
        then `end_sync`. Nothing is written here."""
        assert self._sync_under_way is None, "one sync at a time"
        self._sync_under_way = sync = Sync(self.head.index, self._segments.take_dirty(with_marks))
        return sync

    def end_sync(self, sync: Sync) -> int:
        """`sync.run` has returned; the new `synced`."""
        assert self._sync_under_way is sync
        self._sync_under_way = None
        self.synced = max(self.synced, sync.index)
        self._segments.note_synced(sync.segments, self.synced)
        return self.synced

    def sync(self, with_marks: bool = False) -> int:
        """Everything appended is on disk when this returns; the new `synced`."""
        sync = self.begin_sync(with_marks)
        sync.run()
        return self.end_sync(sync)

    def mark(self) -> None:
        """Write marks that say how far the log is on disk, and do not wait for their turn."""
        self._segments.write_marks(self.synced)

    def settle(self) -> None:
        """Sync, and make the mark that says so durable too. For when there is nothing else to do."""
        for sync in self.settling():
            sync.run()

    def settling(self) -> Iterator[Sync]:
        """As `settle`: syncs that have to be run one behind the other, each before the next is asked for."""
        for with_marks in (False, True):
            sync = self.begin_sync(with_marks)
            yield sync
            self.end_sync(sync)
            if not with_marks:
                self.mark()

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Entries `first` to `last`, or the first of them that fit into `max_bytes`, but one at least.

        Each is checked; Damaged names the first that is not whole."""
        assert self.first <= first <= last <= self.head.index
        if first >= self._tail.first:
            return self._tail.read(first, last, max_bytes)
        return self._segments.read(first, last, max_bytes, self.epochs)

    def truncate(self, index: int) -> None:
        """Entry `index` is the head, durably when this returns. What a checkpoint covers cannot be cut."""
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
        """Remove the segments that hold nothing from `first` on and that the checkpoint covers; the new
        `first`."""
        covered = self.checkpoint.index if self.checkpoint else 0
        unneeded = self._segments.take_unneeded(min(first - 1, covered))
        if unneeded:
            self._promises.save(first=self.first)
            for segment in unneeded:
                segment.remove()
        return self.first

    def first_of_newest(self, size: int) -> int:
        """Where the newest segments begin that hold at least so many bytes of entries; `first` if all of them
        do not hold more."""
        return self._segments.first_of_newest(size)

    def bytes_behind(self, index: int) -> int:
        """Bytes of entries in the segments that begin behind `index`."""
        return self._segments.bytes_behind(index)

    def bytes_before(self, index: int) -> int:
        """Bytes of entries in the segments that end before `index`, without the segment being written."""
        return self._segments.bytes_before(index)

    def hold_ballast(self) -> bool:
        """Keep some room for a checkpoint on a full disk; whether it is kept."""
        if file_names.BALLAST in self._storage.names():
            return True
        try:
            self._storage.create(file_names.BALLAST, self._settings.ballast_bytes)
        except StorageFull:
            return False
        return True

    def drop_ballast(self) -> None:
        """Give that room back to the disk."""
        if file_names.BALLAST in self._storage.names():
            self._storage.remove(file_names.BALLAST)

    def write_block(self, name: str, data: bytes) -> None:
        """A piece of state beside the next checkpoint, and durable with it if that lists it."""
        self._blocks.write(name, data)

    def read_block(self, name: str) -> bytes:
        """Checked; Damaged if it is not whole."""
        return self._blocks.read(name)

    def save_checkpoint(self, index: int, state: bytes, blocks: Sequence[str]) -> None:
        """In place of the last one, as a whole, durable when this returns. Blocks it does not list go."""
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
        """Of the last checkpoint, which there must be, with the entries that are kept."""
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
        """Takes the pieces of a snapshot; the log is not touched before `finish`. Ends an earlier one."""
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
        """A snapshot is on disk: make it the log."""
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
        """Check every byte that is kept, file by file; yields each file's name once it is found whole.

        Damaged names the first that is not."""
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
        """Remove everything, durably; this object is of no use any more."""
        self._promises.save(generation=0)
        recovery.remove_leftovers(self._storage, 0, None)
        self.drop_ballast()
        self._storage.remove(file_names.PROMISE)
        self._storage.sync_names()
