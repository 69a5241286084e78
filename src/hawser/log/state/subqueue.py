"""A shelf of a queue: messages in the order in which they came, each there until it is done.

The messages themselves stay in the log; the index knows in which entry each lies. What differs from message
to message is one number, kept in runs: how many deliveries of it have ended, or that it is done. Once all
that come before a message are done it is the first one, and the log before it is not needed any more.

Room is counted from the first message on, done or not, because that is what the log keeps. It is counted by
*rungs*: one for each stretch of at least so many bytes, so that it costs little memory and is too high by one
stretch at the most. An empty shelf has no bytes.

A transaction *locks* the messages that it accepts: until it ends they are nobody's, but stay where they are.
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

# Numbers of messages that cannot be delivered; those of the others are deliveries.
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
    """Messages from `start` up to but not including `end`; `count` of them are not done. Whoever lends them
    is told by `on_return` which ones a transaction gave back: (first, how many)."""

    __slots__ = (
        "_index", "_rung_bytes", "_rung_firsts", "_runs", "_step_bytes", "_total_bytes", "count", "on_return",
    )  # fmt: skip

    def __init__(self, blocks: Blocks, prefix: str, page_places: int, step_bytes: int) -> None:
        self._index = Index(blocks, prefix, page_places)
        self._runs = RangeMap()
        self.count = 0
        self.on_return: Callable[[int, int], None] | None = None
        # Of each rung its first offset, and the bytes of all that came before it.
        self._rung_firsts = array("Q")
        self._rung_bytes = array("Q")
        self._step_bytes = step_bytes
        self._total_bytes = 0

    @property
    def start(self) -> int:
        """The first message that is not done; `end` if there is none."""
        return self._index.start

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        return self._index.end

    @property
    def used_bytes(self) -> int:
        """What the log keeps for the sake of this shelf, or a little more."""
        if self.start == self.end:
            return 0
        return self._total_bytes - self._rung_bytes[bisect_right(self._rung_firsts, self.start) - 1]

    @property
    def needed(self) -> int | None:
        """The lowest index of an entry with a message at `start` or behind it; None if there is none."""
        return self._index.lowest

    def deliveries(self, offset: int) -> int | None:
        """How many deliveries of this message have ended; None if it is done, locked, or not there yet."""
        if not self.start <= offset < self.end:
            return None
        value = self._runs.get(offset)
        return None if value < 0 else value

    def is_locked(self, offset: int) -> bool:
        """Whether a transaction has this message."""
        return self._runs.get(offset) == LOCKED

    def are_there(self, first: int, count: int, deliveries: int) -> bool:
        """Whether these messages are not done, and so many deliveries of each have ended."""
        end = first + count
        return self.start <= first and end <= self.end and self._runs.are_all(first, end, deliveries)

    def first_other(self, first: int, deliveries: int) -> int:
        """The first message from this one on that is done, or of which not so many deliveries have ended, or
        that is not there yet."""
        if not self.start <= first < self.end:
            return first
        end, value = self._runs.stretch(first, self.end)
        return end if value == deliveries else first

    def next_from(self, offset: int) -> int:
        """The first message at `offset` or behind it that is neither done nor locked; `end` if there is
        none."""
        offset = max(offset, self.start)
        while self._runs.get(offset) < 0:
            offset = self._runs.end_of(offset)
        return offset

    def alike_from(self, offset: int) -> tuple[int, int]:
        """(where they end, deliveries): the messages from this one on, which is there, of which as many
        deliveries have ended."""
        end, deliveries = self._runs.stretch(offset, self.end)
        assert self.start <= offset < end and deliveries >= 0
        return end, deliveries

    def locate(self, offset: int) -> Place | OutOfRange:
        """Where the batch with this message is."""
        if self.start <= offset < self.end:
            return self._index.locate(offset)
        return OutOfRange(self.start, self.end)

    def append(self, index: int, count: int, latest_ns: int, size_bytes: int) -> int:
        """A batch of this size came with entry `index`; its first offset."""
        first = self._index.append(index, count, latest_ns)
        if not self._rung_firsts or self._total_bytes - self._rung_bytes[-1] >= self._step_bytes:
            self._rung_firsts.append(first)
            self._rung_bytes.append(self._total_bytes)
        self._total_bytes += size_bytes
        self.count += count
        return first

    def give_back(self, first: int, count: int, deliveries: int) -> None:
        """One more delivery of each has ended."""
        assert self.are_there(first, count, deliveries)
        self._runs.put(first, first + count, deliveries + 1)

    def lock(self, first: int, count: int, deliveries: int) -> None:
        """A transaction has these, which are there, until it settles or unlocks them."""
        assert self.are_there(first, count, deliveries)
        self._runs.put(first, first + count, LOCKED)

    def unlock(self, first: int, count: int, deliveries: int) -> None:
        """The transaction gives them back: one more delivery of each has ended."""
        assert self._runs.are_all(first, first + count, LOCKED)
        self._runs.put(first, first + count, deliveries + 1)
        if self.on_return is not None:
            self.on_return(first, count)

    def settle(self, first: int, count: int) -> None:
        """These are done."""
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
        """(state, names of all blocks), the blocks written."""
        index, names = self._index.save()
        rungs = list(self._rung_firsts), list(self._rung_bytes)
        return _encode(_State(index, self._runs.save(), *rungs, self._total_bytes)), names

    def load(self, data: bytes) -> None:
        """Become what was saved; BadState if it cannot be."""
        try:
            state = _decode(data)
            self._rung_firsts, self._rung_bytes = array("Q", state.rung_firsts), array("Q", state.rung_bytes)
        except (msgspec.DecodeError, OverflowError) as error:
            raise BadState(f"the saved shelf of a queue cannot be read: {error}") from error
        self._index.load(state.index)
        self._runs.load(state.runs)
        self._total_bytes = state.total_bytes
        done = sum(end - first for first, end, value in self._runs if value == DONE)
        self.count = self.end - self.start - done
        begins = bool(self._rung_firsts) and self._rung_firsts[0] <= self.start
        outside = any(first < self.start or end > self.end for first, end, _ in self._runs)
        if len(self._rung_firsts) != len(self._rung_bytes) or begins != (self.start < self.end) or outside:
            raise BadState("the saved shelf of a queue contradicts itself")

    def observe(self) -> tuple[object, ...]:
        """All that can be observed of it."""
        rungs = list(zip(self._rung_firsts, self._rung_bytes, strict=True))
        places = list(self._index.places())
        return (self.start, self.end, self.count, self.used_bytes, self._runs.save(), rungs, places)
