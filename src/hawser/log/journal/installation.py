"""Installation of a snapshot: the files of a new generation are written and synced beside the old ones, then
one write of the promise makes them the log. A crash before that write leaves the old log, a crash after it
the new one."""

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from hawser.log.entry import HEADER_BYTES, MAX_BODY_BYTES, BadFrame, Entry
from hawser.log.epochs import Epochs
from hawser.log.journal import checkpoints, file_names
from hawser.log.journal.checkpoints import Blocks, Record, check_block
from hawser.log.journal.errors import BadSnapshot
from hawser.log.journal.promise import Identity
from hawser.log.journal.recovery import Log
from hawser.log.journal.sealed import Broken, Magic, unseal
from hawser.log.journal.segment import Segment
from hawser.log.journal.snapshot import FIRST_BLOCK_PART, Manifest
from hawser.log.journal.storage import Storage
from hawser.log.protocol.events import Promise

__all__ = ["Installation"]

_LENGTH: Final = struct.Struct("<4xI")
_decode_manifest: Final = msgspec.msgpack.Decoder(Manifest).decode


class Installation:
    """Pass the pieces to `put`, in order, then call `finish` or `drop`. After BadSnapshot or StorageFull,
    call `drop`."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        generation: int,
        segment_bytes: int,
        switch: Callable[["Installation", Promise, Log], None],
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._segment_bytes = segment_bytes
        self._switch = switch
        self._manifest: Manifest | None = None
        self._record: Record | None = None
        self._epochs = Epochs()
        self._blocks = Blocks(storage, generation)
        self._segments: list[Segment] = []
        self._part = 0
        self._position = 0
        self._pending = bytearray()
        self._is_done = False
        self.generation = generation
        self.is_over = False

    @property
    def index(self) -> int | None:
        """The index at which the snapshot ends; None while it is not known."""
        return None if self._manifest is None else self._manifest.index

    def put(self, part: int, position: int, data: bytes, last: bool, done: bool) -> None:
        """Take the next piece; `last` ends its part, `done` the snapshot."""
        assert not self.is_over
        if self._is_done or (part, position) != (self._part, self._position):
            at = f"part {part} at {position}"
            raise BadSnapshot(f"expected part {self._part} at {self._position}, got {at}; begin again")
        self._pending += data
        self._position += len(data)
        is_entries = self._record is not None and part == FIRST_BLOCK_PART + len(self._record.blocks)
        if is_entries:
            self._take_entries()
        if done and not (is_entries and last and not self._pending):
            raise BadSnapshot(f"the snapshot ended within part {part}; begin again")
        if not last:
            return
        if not is_entries:
            self._take_part(part, bytes(self._pending))
        self._pending.clear()
        self._part += 1
        self._position = 0
        self._is_done = done

    def finish(self, promise: Promise) -> None:
        """Make the snapshot the log and this the promise, atomically and durably."""
        assert not self.is_over
        record = self._record
        if not self._is_done or record is None or self._next_index() != record.index + 1:
            raise BadSnapshot("the snapshot is not complete; begin again")
        if not self._segments:
            self._add_segment(record.index + 1, 0)
        for segment in self._segments:
            segment.sync()
        self._blocks.sync(record.blocks)
        checkpoints.save(self._storage, self.generation, record)
        self.is_over = True
        self._switch(self, promise, Log(self._segments, record.epochs(), record))

    def drop(self) -> None:
        """Remove the pieces; the log is unchanged."""
        if self.is_over:
            return
        self.is_over = True
        for name in self._storage.names():
            parsed = file_names.parse(name)
            if parsed is not None and parsed.generation == self.generation:
                self._storage.remove(name)

    def _take_part(self, part: int, data: bytes) -> None:
        try:
            if part == 0:
                self._manifest = _decode_manifest(unseal(Magic.MANIFEST, data))
            elif part == 1:
                self._record = Record.unpacked(data)
                self._check_manifest()
            else:
                assert self._record is not None
                name, checksum = self._record.listed[part - FIRST_BLOCK_PART]
                check_block(data, checksum)
                self._blocks.write_sealed(name, data)
        except (Broken, msgspec.MsgspecError) as reason:
            raise BadSnapshot(f"part {part} of the snapshot is bad, {reason}; begin again") from reason

    def _check_manifest(self) -> None:
        assert self._manifest is not None and self._record is not None
        shard, first, index = self._manifest.shard, self._manifest.first, self._manifest.index
        if shard != self._identity.shard or self._record.shard != shard:
            raise BadSnapshot(f"it is a snapshot of shard {shard}, not of {self._identity.shard}")
        if index != self._record.index or not 1 <= first <= index + 1:
            raise BadSnapshot("its manifest and its checkpoint do not agree; begin again")
        self._epochs = self._record.epochs()

    def _next_index(self) -> int:
        assert self._manifest is not None
        return self._segments[-1].last + 1 if self._segments else self._manifest.first

    def _take_entries(self) -> None:
        """Write the frames that have arrived completely."""
        assert self._record is not None
        start = 0
        index = self._next_index()
        entries: list[Entry] = []
        while len(self._pending) - start >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(self._pending, start)
            if len(self._pending) - start < HEADER_BYTES + min(length, MAX_BODY_BYTES):
                break
            try:
                entry = Entry.read(self._pending, start)
            except BadFrame as reason:
                raise BadSnapshot(f"entry {index} of the snapshot is bad, {reason}; begin again") from reason
            if entry.index != index or index > self._record.index or entry.id not in self._epochs:
                raise BadSnapshot(f"the snapshot has {entry.id} where entry {index} belongs; begin again")
            entries.append(entry)
            start += len(entry.frame)
            index += 1
        if entries:
            self._write(entries, bytes(self._pending[:start]))
            del self._pending[:start]

    def _write(self, entries: list[Entry], data: bytes) -> None:
        if not self._segments or self._segments[-1].room < len(data):
            self._add_segment(entries[0].index, len(data))
        segment = self._segments[-1]
        start = segment.end
        self._storage.write(segment.name, start, data)
        for entry in entries:
            if start >= segment.next_place:
                segment.note_place(entry.index, start)
            start += len(entry.frame)
        segment.note_end(entries[-1].index, start)

    def _add_segment(self, first: int, size: int) -> None:
        room = max(size, self._segment_bytes)
        self._segments.append(Segment.create(self._storage, self._identity, self.generation, first, room))
