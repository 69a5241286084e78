"""Decides whether an unseen message would have been seen.

The trace and the log are read in the order in which they were written, and every place of theirs is either
read or lost. A message between two others by number lies between their places, too: if no place between these
is lost, the message did not exist there.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from typing import Final

from hawser.spark.pipelines.auditing.lines import Run, by
from hawser.spark.pipelines.ranges import Piece, Range, holes, merged, without

__all__ = ["Neighbours", "Witness"]

_END: Final = 1 << 62


class Witness:
    """The places of each carrier, a trace or a log, that were `read`, and some that are known to be lost."""

    def __init__(self, read: Iterable[Run], lost: Iterable[Run], carrier: Callable[[Run], Hashable]) -> None:
        found: defaultdict[Hashable, list[Range]] = defaultdict(list)
        for run in read:
            found[carrier(run)].append(Range(run.at_first, run.at_last))
        self._read = {each: merged(ranges) for each, ranges in found.items()}
        self._ends = {each: ranges[-1].last for each, ranges in self._read.items()}
        for run in lost:
            self._ends[carrier(run)] = max(self._ends.get(carrier(run), 0), run.at_last)

    def interrupted(self, runs: Iterable[Run], carrier: Callable[[Run], Hashable]) -> "Witness":
        """The same witness, with the places of these runs lost."""
        places = by(runs, carrier)
        if not places:
            return self
        other = copy(self)
        other._read = {
            each: without(ranges, merged(Range(run.at_first, run.at_last) for run in places.get(each, ())))
            for each, ranges in self._read.items()
        }
        return other

    def read_all(self, carrier: Hashable, first: int, last: int | None = None) -> bool:
        """Whether each place from `first` to `last` was read, or to the end there is."""
        ranges = self._read.get(carrier, [])
        last = self._ends.get(carrier, 0) if last is None else last
        place = bisect_right(ranges, (first, _END)) - 1
        return place >= 0 and ranges[place].last >= last

    @property
    def losses(self) -> dict[Hashable, list[Range]]:
        """The places of each carrier that were not read, from its first one on."""
        return {
            each: holes([*self._read.get(each, []), Range(end + 1, end + 1)], 1)
            for each, end in self._ends.items()
        }


class Neighbours:
    """The messages of a line, as neighbours of those that it lacks."""

    def __init__(
        self, runs: Iterable[Run], witness: Witness, carrier: Callable[[Run], Hashable], start: int | None
    ) -> None:
        """`start` is the place at which a carrier begins, if what comes first by number comes first in it."""
        self._runs = sorted(runs, key=lambda run: (run.first, run.last))
        self._firsts = [run.first for run in self._runs]
        self._witness = witness
        self._carrier = carrier
        self._start = start

    def would_know(self, piece: Piece) -> bool:
        """Whether nothing was lost where messages of this piece, which is between two runs, would be."""
        place = bisect_left(self._firsts, piece.first)
        if place == len(self._runs):
            return False
        after = self._runs[place]
        if place == 0:
            return self._start is not None and self._read_between(after, self._start, after.at_first)
        before = self._runs[place - 1]
        if self._carrier(before) != self._carrier(after):
            return False
        if before.at_last > after.at_first:
            # The neighbours are not in order, so the messages may be anywhere.
            return self._read_between(after, 1, None)
        return self._read_between(after, before.at_last, after.at_first)

    def _read_between(self, run: Run, first: int, last: int | None) -> bool:
        return self._witness.read_all(self._carrier(run), first, last)
