"""Which leader's term gave out which offsets, so that a position of one log is told from one of another.

A term is named by a hash of its epoch and of the incarnation of the leader's process, both of which are in
the entry that a leader writes first. Epochs repeat when a cluster is restored from a backup; incarnations do
not, because the nodes were started again. A log has one sequence of terms: if two logs have the same term at
an offset, they have the same records up to there. So a position that names the term of the record before it
can be checked, however far another log has grown in the meantime.

Runs of terms that are trimmed are forgotten, and the term of an offset before the first run is not known.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import ClassVar, Self

import msgspec
from xxhash import xxh3_64_intdigest

from hawser.log.entry import Entry, Kind
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.results import Done, Result

__all__ = ["TermRuns", "Terms"]

_DONE = Done()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class TermRuns:
    """Runs of offsets, each from a first offset on, and the term of each run."""

    __slots__ = ("_firsts", "_terms")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._terms: list[int] = []
        for first, term in pairs:
            self.begin(first, term)

    def begin(self, first: int, term: int) -> None:
        """Offsets from `first` on are of this term, until a later one begins. What begins before the last one
        is known already, and changes nothing."""
        while self._firsts and self._firsts[-1] == first:
            self._firsts.pop()
            self._terms.pop()
        if not self._firsts or (self._firsts[-1] < first and self._terms[-1] != term):
            self._firsts.append(first)
            self._terms.append(term)

    def at(self, offset: int) -> int:
        """The term of an offset; 0 if it is not known."""
        place = bisect_right(self._firsts, offset) - 1
        return 0 if place < 0 else self._terms[place]

    def between(self, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """The runs of the offsets from `first` up to but not including `end`, cut to begin there."""
        place = max(0, bisect_right(self._firsts, first) - 1)
        runs = zip(self._firsts[place:], self._terms[place:], strict=True)
        return tuple((max(first, begin), term) for begin, term in runs if begin < end)

    def forget(self, before: int) -> None:
        """The runs that end before this offset."""
        gone = max(0, bisect_right(self._firsts, before) - 1)
        del self._firsts[:gone], self._terms[:gone]

    def clear(self) -> None:
        """Nothing is known any more."""
        self._firsts.clear()
        self._terms.clear()

    def first_difference(self, other: Self, end: int) -> int | None:
        """The first offset before `end` of which both know the term, and not the same one."""
        for offset in sorted({*self._firsts, *other._firsts}):
            mine, theirs = self.at(offset), other.at(offset)
            if offset < end and mine and theirs and mine != theirs:
                return offset
        return None

    @property
    def first(self) -> int:
        """The first offset of which the term is known; 0 if there is none."""
        return self._firsts[0] if self._firsts else 0


class Terms(Part):
    """The terms of a topic's partition."""

    name: ClassVar = "terms"
    kinds: ClassVar = {Kind.NOTHING: 1}

    def __init__(self) -> None:
        self.runs = TermRuns()

    def apply(self, entry: Entry, context: Context) -> Result:
        """A leader has begun, or goes on in a new epoch."""
        offsets = context.offsets
        name = entry.epoch.to_bytes(8, "little") + bytes(entry.payload)
        self.runs.begin(offsets.end, (xxh3_64_intdigest(name) >> 1) or 1)
        self.runs.forget(offsets.start - 1)
        return _DONE

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def digest(self) -> bytes:
        return _encode(self.runs.between(0, 1 << 63))

    def load(self, state: bytes) -> None:
        try:
            pairs = _decode(state)
        except msgspec.DecodeError as error:
            raise BadState(f"the saved terms cannot be read: {error}") from error
        if any(one[0] >= other[0] for one, other in pairwise(pairs)):
            raise BadState("the saved terms are not in order")
        self.runs = TermRuns(pairs)
