"""A subqueue: messages in the order of their arrival, each kept until it is done.

The messages stay in the log; the index knows the entry of each. One number differs from message to message,
kept as ranges of equal ones: its ended deliveries, DONE, or LOCKED. When the first messages are done, `start`
moves on and the log before it is no longer needed.

Room is counted from `start` on, done messages included, because that is what the log keeps. It is counted in
*rungs*, one for every `step_bytes`, so it costs little memory and is too high by at most one rung. An empty
subqueue uses no bytes.

A transaction *locks* the messages that it accepts: until it ends they are not delivered and keep their
offsets.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import msgspec

from hawser.log.state.offset_index import Index
from hawser.log.state.part import BadState, Blocks
from hawser.log.state.range_map import RangeMap
from hawser.log.state.results import OutOfRange, Place

__all__ = ["DONE", "LOCKED", "Subqueue"]

# Values of messages that cannot be delivered; other values are numbers of ended deliveries.
DONE: Final = -1
LOCKED: Final = -2


class _State(msgspec.Struct, frozen=True, array_like=True):
    index: bytes
    runs: list[tuple[int, int, int]]
    rung_firsts: list[int]
    rung_bytes: list[int]
    total_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Subqueue:
    """Messages from `start` up to but not including `end`; `count` of them are not done. `on_return` tells
    the leader which messages a transaction unlocked: (first, count)."""

    __slots__ = (
        "_index", "_rung_bytes", "_rung_firsts", "_runs", "_step_bytes", "_total_bytes", "count", "on_return",
    )  # fmt: skip

    def __init__(self, blocks: Blocks, prefix: str, page_places: int, step_bytes: int) -> None:
        self._index = Index(blocks, prefix, page_places)
        self._runs = RangeMap()
        self.count = 0
        self.on_return: Callable[[int, int], None] | None = None
        # By rung: its first offset, and the bytes of all messages before it.
        self._rung_firsts = array("Q")
        self._rung_bytes = array("Q")
        self._step_bytes = step_bytes
        self._total_bytes = 0

    @property
    def start(self) -> int:
        """The first message that is not done, or `end`."""
        return self._index.start

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self._index.end

    @property
    def used_bytes(self) -> int:
        """The bytes that the log keeps for this subqueue, at most one rung too many."""
        if self.start == self.end:
            return 0
        return self._total_bytes - self._rung_bytes[bisect_right(self._rung_firsts, self.start) - 1]

    @property
    def needed(self) -> int | None:
        """The lowest index of an entry with a message from `start` on; None without messages."""
        return self._index.lowest

    def deliveries(self, offset: int) -> int | None:
        """The number of ended deliveries of this message; None if it is done, locked or not there yet."""
        if not self.start <= offset < self.end:
            return None
        value = self._runs.get(offset)
        return None if value < 0 else value

    def is_locked(self, offset: int) -> bool:
        """Whether a transaction has locked this message."""
        return self._runs.get(offset) == LOCKED

    def are_there(self, first: int, count: int, deliveries: int) -> bool:
        """Whether all these messages are deliverable and have this number of ended deliveries."""
        end = first + count
        return self.start <= first and end <= self.end and self._runs.are_all(first, end, deliveries)

    def first_other(self, first: int, deliveries: int) -> int:
        """The first offset from `first` on for which `are_there` would be False."""
        if not self.start <= first < self.end:
            return first
        end, value = self._runs.stretch(first, self.end)
        return end if value == deliveries else first

    def next_from(self, offset: int) -> int:
        """The first message from `offset` on that is neither done nor locked, or `end`."""
        offset = max(offset, self.start)
        while self._runs.get(offset) < 0:
            offset = self._runs.end_of(offset)
        return offset

    def alike_from(self, offset: int) -> tuple[int, int]:
        """(end, deliveries) of the range of messages that begins at this deliverable one and has its number
        of ended deliveries."""
        end, deliveries = self._runs.stretch(offset, self.end)
        assert self.start <= offset < end and deliveries >= 0
        return end, deliveries

    def locate(self, offset: int) -> Place | OutOfRange:
        """The place of the batch with this message."""
        if self.start <= offset < self.end:
            return self._index.locate(offset)
        return OutOfRange(self.start, self.end)

    def append(self, index: int, count: int, latest_ns: int, size_bytes: int) -> int:
        """Add the messages of entry `index`; gives the first offset."""
        first = self._index.append(index, count, latest_ns)
        if not self._rung_firsts or self._total_bytes - self._rung_bytes[-1] >= self._step_bytes:
            self._rung_firsts.append(first)
            self._rung_bytes.append(self._total_bytes)
        self._total_bytes += size_bytes
        self.count += count
        return first

    def give_back(self, first: int, count: int, deliveries: int) -> None:
        """Return these messages: one more delivery of each has ended."""
        assert self.are_there(first, count, deliveries)
        self._runs.put(first, first + count, deliveries + 1)

    def lock(self, first: int, count: int, deliveries: int) -> None:
        """Lock these deliverable messages for a transaction, until `settle` or `unlock`."""
        assert self.are_there(first, count, deliveries)
        self._runs.put(first, first + count, LOCKED)

    def unlock(self, first: int, count: int, deliveries: int) -> None:
        """Unlock these messages: one more delivery of each has ended."""
        assert self._runs.are_all(first, first + count, LOCKED)
        self._runs.put(first, first + count, deliveries + 1)
        if self.on_return is not None:
            self.on_return(first, count)

    def settle(self, first: int, count: int) -> None:
        """Mark these messages as done."""
        self._runs.put(first, first + count, DONE)
        self.count -= count
        if first > self.start:
            return
        start = self._runs.end_of(first)
        self._index.trim(start)
        self._runs.forget_below(start)
        gone = len(self._rung_firsts) if start == self.end else bisect_right(self._rung_firsts, start) - 1
        del self._rung_firsts[:gone], self._rung_bytes[:gone]

    def save(self) -> tuple[bytes, list[str]]:
        """(state, names of all blocks); writes new blocks."""
        index, names = self._index.save()
        rungs = list(self._rung_firsts), list(self._rung_bytes)
        return _encode(_State(index, self._runs.save(), *rungs, self._total_bytes)), names

    def load(self, data: bytes) -> None:
        """Load a saved state; BadState if it is invalid."""
        try:
            state = _decode(data)
            self._rung_firsts, self._rung_bytes = array("Q", state.rung_firsts), array("Q", state.rung_bytes)
        except (msgspec.DecodeError, OverflowError) as error:
            raise BadState(f"the saved subqueue cannot be read: {error}") from error
        self._index.load(state.index)
        self._runs.load(state.runs)
        self._total_bytes = state.total_bytes
        done = sum(end - first for first, end, value in self._runs if value == DONE)
        self.count = self.end - self.start - done
        begins = bool(self._rung_firsts) and self._rung_firsts[0] <= self.start
        outside = any(first < self.start or end > self.end for first, end, _ in self._runs)
        if len(self._rung_firsts) != len(self._rung_bytes) or begins != (self.start < self.end) or outside:
            raise BadState("the saved subqueue contradicts itself")

    def observe(self) -> tuple[object, ...]:
        """Everything observable, for the digest."""
        rungs = list(zip(self._rung_firsts, self._rung_bytes, strict=True))
        places = list(self._index.places())
        return (self.start, self.end, self.count, self.used_bytes, self._runs.save(), rungs, places)
