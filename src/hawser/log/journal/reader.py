"""Readers of entries: the newest from memory, the others checked from their segment."""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from hawser.log.entry import HEADER_BYTES, BadFrame, Entry
from hawser.log.epochs import Epochs
from hawser.log.journal.errors import Damaged
from hawser.log.journal.segment import Segment
from hawser.log.journal.storage import StorageFailed

__all__ = ["SequentialReader", "Tail", "read_segment"]

_LENGTH_AND_INDEX: Final = struct.Struct("<4xI8xQ")
_CHUNK_BYTES: Final = 32 << 10
_MOST_RUN_BYTES: Final = 1 << 20
# An entry this close behind the last one continues a sequential read; the entries between are of other kinds.
_NEAR: Final = 16


class Tail:
    """The newest `limit` bytes of entries; followers and readers are rarely further behind."""

    __slots__ = ("first", "_bytes", "_entries", "_limit")

    def __init__(self, limit: int, first: int) -> None:
        self.first = first
        self._limit = limit
        self._bytes = 0
        self._entries: list[Entry] = []

    def add(self, entries: Sequence[Entry], size: int) -> None:
        """Add the next entries, whose frames have `size` bytes."""
        self._entries.extend(entries)
        self._bytes += size
        if self._bytes > self._limit:
            self._shrink()

    def _shrink(self) -> None:
        # Shrinks to half the limit, so that the list is moved once for many entries.
        dropped = 0
        while self._bytes > self._limit // 2:
            self._bytes -= len(self._entries[dropped].frame)
            dropped += 1
        del self._entries[:dropped]
        self.first += dropped

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        """As Journal.read; `first` is not below `self.first`."""
        chosen = self._entries[first - self.first : last - self.first + 1]
        size = 0
        for count, entry in enumerate(chosen):
            size += len(entry.frame)
            if size > max_bytes and count:
                return chosen[:count]
        return chosen

    def cut(self, index: int) -> None:
        """Make entry `index` the last one."""
        if index < self.first:
            self._entries.clear()
            self._bytes = 0
            self.first = index + 1
            return
        removed = self._entries[index - self.first + 1 :]
        self._bytes -= sum(len(entry.frame) for entry in removed)
        del self._entries[index - self.first + 1 :]


class SequentialReader:
    """Reads single entries by index. While indices go up without large gaps, it reads more and more entries
    at once. `count` is the number of entries read, used or not."""

    __slots__ = ("_read", "_run", "_size", "count")

    def __init__(self, read: Callable[[int, int, int], list[Entry]]) -> None:
        self._read = read
        self._run: list[Entry] = []
        self._size = 1
        self.count = 0

    def holds(self, index: int) -> bool:
        """Whether entry `index` was read ahead."""
        return bool(self._run) and self._run[0].index <= index <= self._run[-1].index

    def entry(self, index: int, last: int) -> Entry:
        """Entry `index`; reads ahead up to entry `last`."""
        run = self._run
        if not self.holds(index):
            is_near = bool(run) and 0 < index - run[-1].index <= _NEAR
            self._size = min(max(2 * self._size, _CHUNK_BYTES), _MOST_RUN_BYTES) if is_near else 1
            run = self._run = self._read_run(index, last)
            self.count += len(run)
        return run[index - run[0].index]

    def _read_run(self, index: int, last: int) -> list[Entry]:
        try:
            return self._read(index, last if self._size > 1 else index, self._size)
        except (Damaged, StorageFailed):
            if self._size == 1:
                raise
            # An entry read ahead may be the damaged one.
            self._size = 1
            return self._read(index, index, 1)


def read_segment(segment: Segment, first: int, last: int, max_bytes: int, epochs: Epochs) -> list[Entry]:
    """Entries `first` to `last` of a segment as far as they fit into `max_bytes`, at least one; Damaged if
    one is incomplete or another one than was written."""
    entries: list[Entry] = []
    size = 0
    index, start = segment.place_before(first)
    limit = segment.end_of_place(last)
    epoch_end = 0
    data = b""
    at = 0
    while index <= last:
        end = at + HEADER_BYTES
        if end <= len(data):
            length, found = _LENGTH_AND_INDEX.unpack_from(data, at)
            end += length
            if found != index or start + end > segment.end:
                raise Damaged(segment.name, start + at, index, "the header of the frame is not this entry's")
        if end > len(data):
            start += at
            data = _more(segment, index, start, max(end - at, min(max_bytes, limit - start)))
            at = 0
            continue
        if index >= first:
            if entries and size + end - at > max_bytes:
                break
            entry = _checked(segment, data, at, start)
            if index > epoch_end:
                epoch = epochs.epoch_of(index)
                epoch_end = epochs.highest_up_to(epoch).index
            if entry.epoch != epoch:
                raise Damaged(segment.name, start + at, index, f"it is {entry.id}, of another epoch")
            entries.append(entry)
            size += end - at
        index += 1
        at = end
    return entries


def _more(segment: Segment, index: int, start: int, wanted: int) -> bytes:
    """The bytes of the segment from `start` on: a chunk, or `wanted` bytes."""
    size = min(max(wanted, _CHUNK_BYTES), segment.end - start)
    data = segment.storage.read(segment.name, start, size)
    if len(data) < size or size < HEADER_BYTES:
        raise Damaged(segment.name, start, index, "the file ends before its last entry")
    return data


def _checked(segment: Segment, data: bytes, at: int, start: int) -> Entry:
    try:
        return Entry.read(data, at)
    except BadFrame as reason:
        index = _LENGTH_AND_INDEX.unpack_from(data, at)[1]
        raise Damaged(segment.name, start + at, index, str(reason)) from reason
