"""The segments of a log, in order: room, writes, marks, removal.

Room is made before it is needed, so that a write never finds the disk full. A batch lies in one segment.
Segments written since the last sync are dirty. The synced index is written as a mark into the active segment
after every few syncs, because each mark is a second page to write, and once more into the segment before it
when the active one is begun.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import takewhile

from hawser.log.entry import Entry
from hawser.log.epochs import Epochs
from hawser.log.journal.promise import Identity
from hawser.log.journal.reader import read_segment
from hawser.log.journal.segment import FRAMES_START, Segment
from hawser.log.journal.storage import Storage, StorageFull

__all__ = ["Segments"]


class Segments:
    """One or more segments; the last one is `active` and takes new entries."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        segment_bytes: int,
        syncs_a_mark: int,
        found: list[Segment],
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._segment_bytes = segment_bytes
        self._syncs_a_mark = syncs_a_mark
        self._syncs_since_mark = 0
        self._all = found
        self._dirty: dict[Segment, None] = {}
        self.active = found[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def first(self) -> int:
        """The first entry that is kept, or the next one."""
        return self._all[0].first

    def reserve(self, size: int) -> bool:
        """As Journal.reserve. It leaves a segment with too little room, and enlarges an empty one."""
        active = self.active
        if size <= active.room:
            return True
        room = max(size, self._segment_bytes)
        try:
            if active.last < active.first:
                active.grow(room)
                return True
            self.active = Segment.create(
                self._storage, self._identity, active.generation, active.last + 1, room
            )
        except StorageFull:
            return False
        # Its pending mark becomes durable with the next sync; then a mark for the new segment replaces it.
        self._dirty[active] = None
        self._all.append(self.active)
        return True

    def write(self, data: bytes, last: int) -> None:
        """Write the frames of the next entries, through `last`, into reserved room."""
        active = self.active
        self._storage.write(active.name, active.end, data)
        active.note_end(last, active.end + len(data))
        self._dirty[active] = None

    def take_dirty(self, with_marks: bool) -> tuple[Segment, ...]:
        """The dirty segments, the older first; they become clean."""
        if with_marks:
            self._dirty |= {segment: None for segment in self._all[-2:] if segment.mark_is_pending}
        dirty = tuple(self._dirty)
        self._dirty.clear()
        return dirty

    def sync_what_was_read(self) -> None:
        """After opening: sync data that may only be in the page cache, and pending marks."""
        mark = max(segment.mark for segment in self._all)
        for segment in self._all:
            if segment.last > mark or segment in self._all[-2:]:
                segment.sync()

    def note_synced(self, finished: tuple[Segment, ...], synced: int) -> None:
        """Note that the `finished` segments were synced and the log is on disk through `synced`. Writes a
        mark if it is its turn, or if a segment was begun."""
        if not finished:
            return
        for segment in finished:
            segment.mark_is_pending = False
        self._syncs_since_mark += 1
        if self._syncs_since_mark >= self._syncs_a_mark or finished != (self.active,):
            self.write_marks(synced, finished)

    def write_marks(self, synced: int, finished: tuple[Segment, ...] = ()) -> None:
        """Write marks for `synced`, durable with the next sync."""
        for segment in dict.fromkeys((*finished, *self._all[-2:])):
            if segment.is_removed or segment.mark_is_pending or segment.mark >= synced:
                continue
            if segment is self.active or segment.mark <= segment.last:
                segment.write_mark(synced)
                if segment is not self.active:
                    self._dirty[segment] = None
        if self.active.mark >= synced:
            self._syncs_since_mark = 0

    def read(self, first: int, last: int, max_bytes: int, epochs: Epochs) -> list[Entry]:
        """As Journal.read, from disk."""
        entries: list[Entry] = []
        for segment in self._all[bisect_right(self._all, first, key=_first_of) - 1 :]:
            upto = min(last, segment.last)
            some = read_segment(segment, first, upto, max_bytes, epochs)
            size = sum(len(entry.frame) for entry in some)
            if entries and size > max_bytes:
                break
            entries += some
            max_bytes -= size
            first = entries[-1].index + 1
            if first <= upto or first > last or max_bytes <= 0:
                break
        return entries

    def truncate(self, index: int) -> None:
        """Make entry `index` the last, durably; after a crash the log ends between it and the old last
        one."""
        # Also in the segments to remove: a mark may cover entries of later segments, which are removed first.
        for segment in self._all:
            if segment.mark > index:
                if segment.mark_is_pending:
                    segment.sync()
                segment.write_mark(index)
                segment.sync()
        keep = max(1, bisect_right(self._all, index, key=_first_of))
        while len(self._all) > keep:
            removed = self._all.pop()
            self._dirty.pop(removed, None)
            removed.remove()
        self.active = self._all[-1]
        if index < self.active.last:
            self.active.cut(index)

    def first_of_newest(self, size: int) -> int:
        """As Journal.first_of_newest."""
        for segment in reversed(self._all):
            size -= segment.end - FRAMES_START
            if size <= 0:
                return segment.first
        return self.first

    def bytes_behind(self, index: int) -> int:
        """As Journal.bytes_behind."""
        newest = takewhile(lambda segment: segment.first > index, reversed(self._all))
        return sum(segment.end - FRAMES_START for segment in newest)

    def bytes_before(self, index: int) -> int:
        """As Journal.bytes_before."""
        oldest = takewhile(lambda segment: segment.last < index, self._all[:-1])
        return sum(segment.end - FRAMES_START for segment in oldest)

    def take_unneeded(self, last: int) -> list[Segment]:
        """Remove from the list and give the segments without entries behind `last`."""
        unneeded = [segment for segment in self._all[:-1] if segment.last <= last]
        del self._all[: len(unneeded)]
        for segment in unneeded:
            self._dirty.pop(segment, None)
        return unneeded


def _first_of(segment: Segment) -> int:
    return segment.first
