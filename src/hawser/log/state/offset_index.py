"""The offset index: which log entry holds which offsets, in the order of commits.

A *place* is one batch: its first offset, the index of its entry, and the latest timestamp up to and including
it. Places are dense: each begins where the one before it ends. Their entries need not be in order, because a
transaction stages its batches before it commits.

Places are kept in pages. The last page, the tail, grows; a full page is sealed, and becomes a block when the
index is saved. Memory holds four numbers of each sealed page: its first offset, its latest timestamp, its
lowest and its highest entry index. A lookup by offset or time is two binary searches and reads at most one
block. Entry indices are not sorted, so a lookup by index scans the highest index of each page.

The content of a page depends only on what was committed, not on saves or trims: blocks of one name have equal
bytes on all members with the same page length.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from hawser.log.state.part import BadState, Blocks
from hawser.log.state.results import Place

__all__ = ["Index"]

CACHED_PAGES: Final = 8
BLOCK_VERSION: Final = 1

_HEADER: Final = struct.Struct("<IIQ")  # version, places, end
_LOWEST_TIMESTAMP: Final = -(1 << 63)


class _Run:
    """A page: places in order, as columns. `latests` never falls: it is the latest timestamp so far."""

    __slots__ = ("end", "firsts", "indices", "latests")

    def __init__(self, end: int) -> None:
        self.firsts = array("Q")
        self.indices = array("Q")
        self.latests = array("q")
        self.end = end

    def place(self, offset: int) -> int:
        """The position of the place with this offset."""
        return bisect_right(self.firsts, offset) - 1

    def encode(self) -> bytes:
        count = len(self.firsts)
        columns = struct.pack(f"<{2 * count}Q{count}q", *self.firsts, *self.indices, *self.latests)
        return _HEADER.pack(BLOCK_VERSION, count, self.end) + columns

    @classmethod
    def decode(cls, data: bytes) -> "_Run":
        """Raises BadState unless the bytes are an encoded page."""
        if len(data) < _HEADER.size:
            raise BadState("a block of the index is cut off within its header")
        version, count, end = _HEADER.unpack_from(data)
        if version != BLOCK_VERSION or len(data) != _HEADER.size + 24 * count:
            raise BadState(
                f"a block of the index has the unknown version {version}, or a wrong size: {len(data)} bytes"
            )
        run = cls(end)
        numbers = struct.unpack_from(f"<{2 * count}Q{count}q", data, _HEADER.size)
        run.firsts.extend(numbers[:count])
        run.indices.extend(numbers[count : 2 * count])
        run.latests.extend(numbers[2 * count :])
        return run


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A saved index: the numbers of the sealed pages, and the tail itself."""

    start: int
    end: int
    latest_ns: int
    first_run: int
    firsts: list[int]
    latests: list[int]
    lowests: list[int]
    tail: bytes
    highests: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Index:
    """The places of offsets from `start` up to but not including `end`; both begin at 1. `latest_ns` is the
    latest timestamp ever added."""

    __slots__ = (
        "start", "end", "latest_ns", "_page_places", "_prefix", "_blocks", "_tail", "_first_run", "_firsts",
        "_latests", "_lowests", "_highests", "_unsaved", "_cache", "_lowest",
    )  # fmt: skip

    def __init__(self, blocks: Blocks, prefix: str, page_places: int) -> None:
        assert page_places > 0
        self._blocks = blocks
        self._prefix = prefix
        self._page_places = page_places
        self.start = self.end = 1
        self.latest_ns = _LOWEST_TIMESTAMP
        self._tail = _Run(1)
        # The sealed pages: the number of the first; by page its first offset, last `latests`, lowest and
        # highest entry index.
        self._first_run = 0
        self._firsts: list[int] = []
        self._latests: list[int] = []
        self._lowests: list[int] = []
        self._highests: list[int] = []
        self._unsaved: dict[int, _Run] = {}
        self._cache: dict[int, _Run] = {}
        # 0 if not known; computed on demand.
        self._lowest = 0

    def append(self, index: int, count: int, latest_ns: int) -> int:
        """Add a committed batch; gives its first offset."""
        first = self.end
        self.latest_ns = latest = max(self.latest_ns, latest_ns)
        tail = self._tail
        tail.firsts.append(first)
        tail.indices.append(index)
        tail.latests.append(latest)
        self.end = tail.end = first + count
        self._lowest = min(self._lowest, index)
        if len(tail.firsts) >= self._page_places:
            self._seal()
        return first

    def _seal(self) -> None:
        tail = self._tail
        self._unsaved[self._first_run + len(self._firsts)] = tail
        self._firsts.append(tail.firsts[0])
        self._latests.append(tail.latests[-1])
        self._lowests.append(min(tail.indices))
        self._highests.append(max(tail.indices))
        self._tail = _Run(tail.end)

    def trim(self, start: int) -> None:
        """Remove the offsets below `start`, and the pages without others."""
        assert self.start <= start <= self.end
        self.start = start
        self._lowest = 0
        firsts = self._firsts
        gone = bisect_right(firsts, start) - 1
        if firsts and self._tail_first() <= start:
            gone = len(firsts)
        if gone > 0:
            for number in range(self._first_run, self._first_run + gone):
                self._unsaved.pop(number, None)
                self._cache.pop(number, None)
            self._first_run += gone
            for numbers in (self._firsts, self._latests, self._lowests, self._highests):
                del numbers[:gone]

    def _tail_first(self) -> int:
        """The first offset of the tail, or of the next place if it is empty."""
        return self._tail.firsts[0] if self._tail.firsts else self.end

    def locate(self, offset: int) -> Place:
        """The place of the batch with this offset, which must be retained."""
        assert self.start <= offset < self.end
        run = self._tail
        if offset < self._tail_first():
            run = self._run(bisect_right(self._firsts, offset) - 1)
        place = run.place(offset)
        first = run.firsts[place]
        end = run.firsts[place + 1] if place + 1 < len(run.firsts) else run.end
        assert first <= offset < end
        return Place(run.indices[place], first, end - first)

    def at_time(self, timestamp_ns: int) -> int:
        """The highest known offset before which no record has this timestamp or a later one, at most
        `end`."""
        number = bisect_left(self._latests, timestamp_ns)
        run = self._run(number) if number < len(self._latests) else self._tail
        place = bisect_left(run.latests, timestamp_ns)
        offset = run.firsts[place] if place < len(run.firsts) else self.end
        return max(offset, self.start)

    def at_entry(self, index: int) -> int:
        """The first offset whose batch is in entry `index` or a later one; `end` without one."""
        for position in range(len(self._firsts)):
            if self._highests[position] >= index:
                offset = self._first_from(self._run(position), index)
                if offset is not None:
                    return offset
        offset = self._first_from(self._tail, index)
        return self.end if offset is None else offset

    def _first_from(self, run: _Run, index: int) -> int | None:
        """The first retained offset in this page whose entry is `index` or a later one, or None."""
        for place in range(max(run.place(self.start), 0), len(run.firsts)):
            if run.indices[place] >= index:
                return max(run.firsts[place], self.start)
        return None

    @property
    def lowest(self) -> int | None:
        """The lowest entry index with a retained record; None without records."""
        if self.start == self.end:
            return None
        if not self._lowest:
            self._lowest = min(self._retained_indices())
        return self._lowest

    def _retained_indices(self) -> Iterator[int]:
        """Entry indices among which is the lowest retained one."""
        if self._firsts:
            run = self._run(0)
            yield from run.indices[run.place(self.start) :]
            yield from self._lowests[1:]
            yield from self._tail.indices
        else:
            yield from self._tail.indices[self._tail.place(self.start) :]

    def _run(self, position: int) -> _Run:
        """The sealed page at this position of the lists, from the cache or its block."""
        number = self._first_run + position
        run = self._unsaved.get(number) or self._cache.pop(number, None)
        if run is None:
            run = _Run.decode(self._blocks.read(self._name(number)))
            if not run.firsts or run.firsts[0] != self._firsts[position]:
                raise BadState(f"block {self._name(number)} is not the one that was saved")
        if number not in self._unsaved:
            self._remember(number, run)
        return run

    def _remember(self, number: int, run: _Run) -> None:
        """Cache the page instead of the least recently used one."""
        self._cache[number] = run
        if len(self._cache) > CACHED_PAGES:
            del self._cache[next(iter(self._cache))]

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def save(self) -> tuple[bytes, list[str]]:
        """(state, names of all blocks); writes sealed pages first, each once."""
        for number in list(self._unsaved):
            run = self._unsaved[number]
            self._blocks.write(self._name(number), run.encode())
            del self._unsaved[number]
            self._remember(number, run)
        names = [self._name(number) for number in range(self._first_run, self._first_run + len(self._firsts))]
        state = _State(
            self.start,
            self.end,
            self.latest_ns,
            self._first_run,
            self._firsts,
            self._latests,
            self._lowests,
            self._tail.encode(),
            self._highests,
        )
        return _encode(state), names

    def load(self, data: bytes) -> None:
        """Load a saved state; BadState if it is invalid."""
        try:
            state = _decode(data)
        except msgspec.DecodeError as error:
            raise BadState(f"the saved index cannot be read: {error}") from error
        tail = _Run.decode(state.tail)
        lengths = {len(state.firsts), len(state.latests), len(state.lowests), len(state.highests)}
        if len(lengths) != 1 or not 1 <= state.start <= state.end or tail.end != state.end:
            raise BadState("the saved index contradicts itself")
        self.start, self.end = state.start, state.end
        self._first_run = state.first_run
        self._firsts, self._latests = state.firsts, state.latests
        self._lowests, self._highests = state.lowests, state.highests
        self._tail = tail
        self.latest_ns = state.latest_ns
        self._unsaved, self._cache, self._lowest = {}, {}, 0

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(first offset, entry index, latest timestamp up to it) of every batch with a retained record."""
        for position in range(len(self._firsts)):
            yield from self._retained(self._run(position))
        yield from self._retained(self._tail)

    def _retained(self, run: _Run) -> Iterator[tuple[int, int, int]]:
        if run.end > self.start:
            begin = max(run.place(self.start), 0)
            yield from zip(run.firsts[begin:], run.indices[begin:], run.latests[begin:], strict=True)
