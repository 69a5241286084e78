"""A shelf of a queue: messages in the order in which they came, each there until it is done.

The messages themselves stay in the log; the index knows in which entry each lies. What differs from message
to message is one number, kept in runs: how many deliveries of it have ended, or that it is done. Once all
that come before a message are done it is the first one, and the log before it is not needed any more.

Room is counted from the first message on, done or not, because that is what the log keeps. It is counted by
*rungs*: one for each stretch of at least so many bytes, so that it costs little memory and is too high by one
stretch at the most. An empty shelf has no bytes.
"""

from array import array
from bisect import bisect_right
from typing import Final

import msgspec

from hawser.log.state.index import Index
from hawser.log.state.part import BadState, Blocks
from hawser.log.state.queue_runs import Runs
from hawser.log.state.results import OutOfRange, Place

__all__ = ["DONE", "Shelf"]

DONE: Final = -1


class _State(msgspec.Struct, frozen=True, array_like=True):
    index: bytes
    runs: list[tuple[int, int, int]]
    rung_firsts: list[int]
    rung_bytes: list[int]
    total_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Shelf:
    """Messages from `start` up to but not including `end`; `count` of them are not done."""

    __slots__ = ("_index", "_rung_bytes", "_rung_firsts", "_runs", "_step_bytes", "_total_bytes", "count")

    def __init__(self, blocks: Blocks, prefix: str, run_places: int, step_bytes: int) -> None:
        self._index = Index(blocks, prefix, run_places)
        self._runs = Runs()
        self.count = 0
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
        """How many deliveries of this message have ended; None if it is done, or not there yet."""
        if not self.start <= offset < self.end:
            return None
        value = self._runs.get(offset)
        return None if value == DONE else value

    def are_there(self, first: int, count: int, deliveries: int) -> bool:
        """Whether these messages are not done, and so many deliveries of each have ended."""
        end = first + count
        return self.start <= first and end <= self.end and self._runs.are_all(first, end, deliveries)

    def next_from(self, offset: int) -> int:
        """The first message at `offset` or behind it that is not done; `end` if there is none."""
        offset = max(offset, self.start)
        return self._runs.end_of(offset) if self._runs.get(offset) == DONE else offset

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
