"""A segment: one file of consecutive entries.

    0      header: sealed [shard, member, generation, first index]
    4096   first slot of the sync mark
    8192   second slot
    12288  frames back to back, then zeros to the end of the file

A slot of the sync mark:

    0   crc32c of everything after it     u32
    4   zero                              u32
    8   generation                        u64
    16  first index of the segment        u64
    24  sequence number of the mark       u64
    32  index                             u64

The mark says that everything through `index` was on disk when it was written. It is written after every few
syncs and becomes durable with the next sync of this file. The slots alternate, and one is not written before
the other is durable, so power loss damages at most one.

The header and both slots are durable before the first frame is written, and everything behind the last frame
is durably zero: bytes that are not zero there come from a write that was never synced.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Self

import msgspec
from crc32c import crc32c

from hawser.log.entry import HEADER_BYTES
from hawser.log.journal import file_names
from hawser.log.journal.errors import Damaged
from hawser.log.journal.promise import Identity
from hawser.log.journal.sealed import Broken, Magic, seal, unseal
from hawser.log.journal.storage import Storage

__all__ = ["FRAMES_START", "Segment"]

FRAMES_START: Final = 12288

_PAGE_BYTES: Final = 4096
_MARK: Final = struct.Struct("<IQQQQ")  # behind the checksum
_CRC: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<IIQQ")  # checksum, length of the body, epoch, index
_ZERO_CHUNK: Final = bytes(1 << 20)
# The distance of remembered places, which bounds the bytes read to find an entry.
_PLACE_SPACING_BYTES: Final = 16 << 10


class _Header(msgspec.Struct, frozen=True, array_like=True):
    identity: Identity
    generation: int
    first: int


_decode: Final = msgspec.msgpack.Decoder(_Header).decode


class Segment:
    """A segment file. `last` is its last entry, `end` the byte behind that."""

    __slots__ = (
        "storage", "name", "generation", "first", "size", "last", "end", "mark", "mark_is_pending",
        "is_removed", "next_place", "_mark_sequence", "_place_indices", "_place_starts",
    )  # fmt: skip

    def __init__(self, storage: Storage, generation: int, first: int, size: int) -> None:
        self.storage = storage
        self.name = file_names.segment_name(generation, first)
        self.generation = generation
        self.first = first
        self.size = size
        self.last = first - 1
        self.end = FRAMES_START
        self.mark = 0
        self.mark_is_pending = False
        self.is_removed = False
        self._mark_sequence = 1
        self._place_indices = array("Q")
        self._place_starts = array("Q")
        self.next_place = FRAMES_START

    @classmethod
    def create(cls, storage: Storage, identity: Identity, generation: int, first: int, room: int) -> Self:
        """Create a segment with room for this many bytes of frames, durably; StorageFull leaves no file."""
        segment = cls(storage, generation, first, FRAMES_START + room)
        storage.create(segment.name, segment.size)
        header = seal(Magic.SEGMENT, msgspec.msgpack.encode(_Header(identity, generation, first)))
        assert len(header) <= _PAGE_BYTES
        slots = [segment._packed_mark(sequence).ljust(_PAGE_BYTES, b"\0") for sequence in (0, 1)]
        storage.write(segment.name, 0, b"".join((header.ljust(_PAGE_BYTES, b"\0"), *slots)))
        storage.sync(segment.name)
        storage.sync_names()
        return segment

    @classmethod
    def open(cls, storage: Storage, identity: Identity, generation: int, first: int) -> Self:
        """Open a segment without its entries (see `scan`); Damaged if its header or marks are invalid."""
        name = file_names.segment_name(generation, first)
        segment = cls(storage, generation, first, storage.size(name))
        if segment.size < FRAMES_START:
            raise Damaged(name, segment.size, first, "the file ends within its header")
        pages = storage.read(name, 0, FRAMES_START)
        try:
            header = _decode(unseal(Magic.SEGMENT, pages[:_PAGE_BYTES]))
        except (Broken, msgspec.MsgspecError) as reason:
            raise Damaged(name, 0, first, f"bad header of a segment, {reason}") from reason
        if header != _Header(identity, generation, first):
            owner = f"{header.identity.member} of shard {header.identity.shard}"
            raise Damaged(name, 0, first, f"it belongs to {owner}, generation {header.generation}")
        marks = [segment._unpacked_mark(pages, slot) for slot in (0, 1)]
        known = [mark for mark in marks if mark is not None]
        if not known:
            raise Damaged(name, _PAGE_BYTES, first, "both slots of the sync mark are bad")
        segment._mark_sequence, segment.mark = max(known)
        # It may come from a page that is not on disk yet.
        segment.mark_is_pending = True
        return segment

    @property
    def room(self) -> int:
        """The bytes of frames that still fit."""
        return self.size - self.end

    def grow(self, room: int) -> None:
        """Make room for this many bytes of frames; StorageFull changes nothing."""
        self.storage.truncate(self.name, self.end + room)
        self.size = self.end + room

    def sync(self) -> None:
        """Sync everything in it, the mark included."""
        self.storage.sync(self.name)
        self.mark_is_pending = False

    def write_mark(self, index: int) -> None:
        """Write a mark, durable with the next sync. Not while another is pending."""
        assert not self.mark_is_pending
        self._mark_sequence += 1
        self.mark = index
        self.mark_is_pending = True
        slot = self._mark_sequence % 2
        self.storage.write(self.name, (1 + slot) * _PAGE_BYTES, self._packed_mark(self._mark_sequence))

    def _packed_mark(self, sequence: int) -> bytes:
        rest = _MARK.pack(0, self.generation, self.first, sequence, self.mark)
        return _CRC.pack(crc32c(rest)) + rest

    def _unpacked_mark(self, pages: bytes, slot: int) -> tuple[int, int] | None:
        start = (1 + slot) * _PAGE_BYTES
        data = pages[start : start + 4 + _MARK.size]
        if len(data) < 4 + _MARK.size or crc32c(data[4:]) != _CRC.unpack_from(data)[0]:
            return None
        zero, generation, first, sequence, index = _MARK.unpack_from(data, 4)
        is_own = zero == 0 and (generation, first) == (self.generation, self.first) and sequence % 2 == slot
        return (sequence, index) if is_own else None

    def note_place(self, index: int, start: int) -> None:
        """Remember that the frame of entry `index` begins at byte `start`. The caller checks that `start` is
        at least `next_place`, because it does so for every entry."""
        assert start >= self.next_place
        self._place_indices.append(index)
        self._place_starts.append(start)
        self.next_place = start + _PLACE_SPACING_BYTES

    def note_end(self, last: int, end: int) -> None:
        """Note that the frames end with this entry, before this byte."""
        assert self.first - 1 <= last and FRAMES_START <= end <= self.size
        self.last = last
        self.end = end

    def place_before(self, index: int) -> tuple[int, int]:
        """The index and first byte of the nearest remembered frame at or before that of `index`."""
        place = bisect_right(self._place_indices, index) - 1
        return self._place_indices[place], self._place_starts[place]

    def end_of_place(self, index: int) -> int:
        """The first byte of the nearest remembered frame behind that of `index`, or the end."""
        place = bisect_right(self._place_indices, index)
        return self._place_starts[place] if place < len(self._place_starts) else self.end

    def place_before_byte(self, start: int) -> tuple[int, int]:
        """The index and first byte of the nearest remembered frame at or before byte `start`."""
        place = bisect_right(self._place_starts, start) - 1
        return self._place_indices[place], self._place_starts[place]

    def start_of(self, index: int) -> int:
        """The first byte of the frame of this entry, or of the next one to write."""
        assert self.first <= index <= self.last + 1
        if index == self.last + 1:
            return self.end
        known, start = self.place_before(index)
        while known < index:
            start += HEADER_BYTES + self._body_length(known, start)
            known += 1
        return start

    def frame_at(self, byte: int) -> tuple[int, int]:
        """The index and first byte of the frame that holds this byte of the file."""
        assert FRAMES_START <= byte < self.end
        known, start = self.place_before_byte(byte)
        while (end := start + HEADER_BYTES + self._body_length(known, start)) <= byte:
            start = end
            known += 1
        return known, start

    def _body_length(self, index: int, start: int) -> int:
        _, length, _, found = _FRAME.unpack(self.storage.read(self.name, start, _FRAME.size))
        if found != index or start + HEADER_BYTES + length > self.end:
            raise Damaged(self.name, start, index, "the header of the frame is not this entry's")
        return int(length)

    def cut(self, last: int) -> None:
        """Make entry `last` the last one, durably. The mark must not cover later entries."""
        assert self.mark <= last
        end = self.start_of(last + 1)
        self.clear(end, self.end)
        self.sync()
        while self._place_indices and self._place_indices[-1] > last:
            self._place_indices.pop()
            self._place_starts.pop()
        self.next_place = (
            self._place_starts[-1] + _PLACE_SPACING_BYTES if self._place_starts else FRAMES_START
        )
        self.note_end(last, end)

    def clear(self, start: int, end: int) -> None:
        """Write zeros over these bytes, without a sync."""
        for begin in range(start, end, len(_ZERO_CHUNK)):
            self.storage.write(self.name, begin, _ZERO_CHUNK[: min(len(_ZERO_CHUNK), end - begin)])

    def clear_rest(self) -> None:
        """Write zeros behind the last frame, without a sync."""
        for start, data in self._stained(self.end):
            self.clear(start, start + len(data))

    def is_clear(self, start: int) -> bool:
        """Whether everything from byte `start` on is zero."""
        return next(self._stained(start), None) is None

    def _stained(self, start: int) -> Iterator[tuple[int, bytes]]:
        """The chunks from byte `start` on that are not zero."""
        for begin in range(start, self.size, len(_ZERO_CHUNK)):
            data = self.storage.read(self.name, begin, len(_ZERO_CHUNK))
            if data != _ZERO_CHUNK[: len(data)]:
                yield begin, data

    def remove(self) -> None:
        """Remove the file durably, so that removals happen in order on disk."""
        self.is_removed = True
        self.storage.remove(self.name)
        self.storage.sync_names()
