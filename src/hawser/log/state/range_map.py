"""A map from offsets to numbers, kept as ranges of equal numbers.

Ranges are in order, do not overlap, do not hold 0, and adjacent ones have different numbers. So a stretch of
equal numbers is one range, and the size of the map depends on how often the numbers change, not on how many
offsets it covers.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from hawser.log.state.part import BadState

__all__ = ["RangeMap"]


class RangeMap:
    """Every offset has the number 0 until `put` gives it another."""

    __slots__ = ("_ends", "_firsts", "_values")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")
        self._values = array("q")

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(first offset, end, number) of each range."""
        return zip(self._firsts, self._ends, self._values, strict=True)

    def get(self, offset: int) -> int:
        """The number of this offset."""
        place = bisect_right(self._ends, offset)
        return self._values[place] if place < len(self._firsts) and self._firsts[place] <= offset else 0

    def end_of(self, offset: int) -> int:
        """The end of the range with this offset; `offset` itself if its number is 0."""
        place = bisect_right(self._ends, offset)
        held = place < len(self._firsts) and self._firsts[place] <= offset
        return self._ends[place] if held else offset

    def stretch(self, offset: int, end: int) -> tuple[int, int]:
        """(end, number) of the offsets from this one on that have its number, at most up to `end`."""
        place = bisect_right(self._ends, offset)
        if place == len(self._firsts):
            return end, 0
        if self._firsts[place] > offset:
            return min(end, self._firsts[place]), 0
        return min(end, self._ends[place]), self._values[place]

    def are_all(self, first: int, end: int, value: int) -> bool:
        """Whether every offset from `first` up to but not including `end` has this number."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if not value or high - low != 1:
            return not value and low == high
        return self._values[low] == value and self._firsts[low] <= first and end <= self._ends[low]

    def put(self, first: int, end: int, value: int) -> None:
        """Give this number to every offset from `first` up to but not including `end`."""
        assert first < end
        firsts, ends, values = self._firsts, self._ends, self._values
        # The ranges that overlap, and what is left of the outer ones.
        low, high = bisect_right(ends, first), bisect_left(firsts, end)
        pieces = [(first, end, value)] if value else []
        if low < high and firsts[low] < first:
            pieces.insert(0, (firsts[low], first, values[low]))
        elif value and low and ends[low - 1] == first:
            low -= 1
            pieces.insert(0, (firsts[low], first, values[low]))
        if low < high and ends[high - 1] > end:
            pieces.append((end, ends[high - 1], values[high - 1]))
        elif value and high < len(firsts) and firsts[high] == end:
            pieces.append((end, ends[high], values[high]))
            high += 1
        merged = _merge(pieces)
        firsts[low:high] = array("Q", [piece[0] for piece in merged])
        ends[low:high] = array("Q", [piece[1] for piece in merged])
        values[low:high] = array("q", [piece[2] for piece in merged])

    def forget_below(self, offset: int) -> None:
        """Give 0 to every offset below this one, which must not be inside a range."""
        gone = bisect_right(self._ends, offset)
        assert gone == len(self._firsts) or self._firsts[gone] >= offset
        del self._firsts[:gone], self._ends[:gone], self._values[:gone]

    def save(self) -> list[tuple[int, int, int]]:
        return list(self)

    def load(self, saved: list[tuple[int, int, int]]) -> None:
        """Load a saved state; BadState if it is invalid."""
        behind, last = 0, 0
        for first, end, value in saved:
            if not behind <= first < end or not value or (first == behind and value == last):
                raise BadState("the saved ranges of a queue contradict themselves")
            behind, last = end, value
        self._firsts = array("Q", [run[0] for run in saved])
        self._ends = array("Q", [run[1] for run in saved])
        self._values = array("q", [run[2] for run in saved])


def _merge(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join adjacent ranges with equal numbers."""
    merged: list[tuple[int, int, int]] = []
    for first, end, value in pieces:
        if merged and merged[-1][1] == first and merged[-1][2] == value:
            merged[-1] = (merged[-1][0], end, value)
        else:
            merged.append((first, end, value))
    return merged
