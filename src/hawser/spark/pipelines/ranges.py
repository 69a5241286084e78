"""Ranges of numbers: merging, repeated numbers, holes, differences.

A `Piece` is a range whose numbers share a minute. Functions that cut pieces or ranges keep their other
fields. Every function is linear in the number of ranges, once they are sorted.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

__all__ = ["Piece", "Range", "common", "disjoint", "doubled", "holes", "merged", "without"]


class Range(NamedTuple):
    """The numbers from `first` to `last`."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Piece(NamedTuple):
    """The numbers from `first` to `last`, all of the minute that begins at `at`."""

    first: int
    last: int
    at: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


Some = TypeVar("Some", Range, Piece)


def merged(ranges: Iterable[Range | Piece]) -> list[Range]:
    """The same numbers, in as few ranges as possible, in order."""
    found: list[Range] = []
    for each in sorted((each.first, each.last) for each in ranges):
        _extend(found, Range(*each))
    return found


def doubled(ranges: Iterable[Range | Piece]) -> list[Range]:
    """The numbers that occur more than once."""
    found: list[Range] = []
    reached = None
    for first, last in sorted((each.first, each.last) for each in ranges):
        if reached is not None and first <= reached:
            _extend(found, Range(first, min(reached, last)))
        reached = last if reached is None else max(reached, last)
    return found


def holes(ranges: Iterable[Range | Piece], first: int) -> list[Range]:
    """The numbers from `first` on that do not occur, up to the last one that does."""
    found = []
    for each in merged(ranges):
        if each.first > first:
            found.append(Range(first, each.first - 1))
        first = max(first, each.last + 1)
    return found


def disjoint(pieces: Iterable[Piece]) -> list[Piece]:
    """Each number once, in order; one that is in several pieces stays in the one that begins first."""
    found: list[Piece] = []
    for each in sorted(pieces):
        first = max(each.first, found[-1].last + 1) if found else each.first
        if first > each.last:
            continue
        if found and found[-1].at == each.at and found[-1].last + 1 == first:
            found[-1] = found[-1]._replace(last=each.last)
        else:
            found.append(each._replace(first=first))
    return found


def without(some: Sequence[Some], ranges: Sequence[Range | Piece]) -> list[Some]:
    """The part of `some` that is in none of the ranges; both are disjoint and in order."""
    found: list[Some] = []
    place = 0
    for each in some:
        first = each.first
        while place < len(ranges) and ranges[place].last < first:
            place += 1
        look = place
        while look < len(ranges) and ranges[look].first <= each.last:
            if ranges[look].first > first:
                found.append(each._replace(first=first, last=ranges[look].first - 1))
            first = ranges[look].last + 1
            look += 1
        if first <= each.last:
            found.append(each._replace(first=first))
    return found


def common(some: Sequence[Some], ranges: Sequence[Range | Piece]) -> list[Some]:
    """The part of `some` that is in one of the ranges; both are disjoint and in order."""
    return without(some, without(some, ranges))


def _extend(ranges: list[Range], more: Range) -> None:
    """Add a range, which begins at or behind the begin of the last one."""
    if ranges and more.first <= ranges[-1].last + 1:
        ranges[-1] = Range(ranges[-1].first, max(ranges[-1].last, more.last))
    else:
        ranges.append(more)
