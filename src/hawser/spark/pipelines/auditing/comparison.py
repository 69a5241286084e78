"""Compares two tiers by the hashes of their messages.

Blocks with the same numbers on both sides are compared by their sums. All others are compared message by
message: every number that both sides have, whatever is missing or double beside it. So the result does not
depend on how evidence is cut into runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from hawser.spark.pipelines.auditing.evidence import BLOCK_MESSAGES, mixed
from hawser.spark.pipelines.ranges import Range, common, merged, without

if TYPE_CHECKING:
    from hawser.spark.pipelines.auditing.lines import Run

__all__ = ["WORD_MASK", "Comparison", "compare"]

WORD_MASK: Final = (1 << 64) - 1


class Comparison(NamedTuple):
    """The messages that could be compared, and those of them that differ."""

    compared: list[Range]
    damaged: list[Range]


class _Messages(NamedTuple):
    """The known hashes of a side, by number; `blind` are messages with unknown hashes."""

    numbers: Any
    hashes: Any
    blind: list[Range]


def compare(before: "Iterable[Run]", after: "Iterable[Run]", with_sizes: bool) -> Comparison:
    """Compare the messages that both sides have; `with_sizes` also by the sizes of the messages."""
    expected = _blocks(before)
    found = [
        _compared(expected[block], runs, with_sizes)
        for block, runs in _blocks(after).items()
        if block in expected
    ]
    return Comparison(
        merged(each for one in found for each in one.compared),
        merged(each for one in found for each in one.damaged),
    )


def _blocks(runs: "Iterable[Run]") -> "dict[int, list[Run]]":
    found: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.first // BLOCK_MESSAGES].append(run)
    return dict(found)


def _compared(before: "Sequence[Run]", after: "Sequence[Run]", with_sizes: bool) -> Comparison:
    spans, theirs = merged(run.piece for run in after), merged(run.piece for run in before)
    is_even = spans == theirs and _is_each_once(before, spans) and _is_each_once(after, spans)
    if is_even and _sums(before, with_sizes) == _sums(after, with_sizes):
        return Comparison(spans, [])
    found = _one_by_one(_messages(before, with_sizes), _messages(after, with_sizes))
    # The sums differ, so a message of the block does, though it is unknown which.
    return Comparison(spans, found.damaged or spans) if is_even else found


def _is_each_once(runs: "Sequence[Run]", spans: Sequence[Range]) -> bool:
    return sum(run.piece.size for run in runs) == sum(span.size for span in spans)


def _sums(runs: "Sequence[Run]", with_sizes: bool) -> tuple[int, int]:
    """Compare sums to which each message contributes, so that an exchange shows."""
    sized = sum(run.sized_hash for run in runs) & WORD_MASK if with_sizes else 0
    return sum(run.hash for run in runs) & WORD_MASK, sized


def _messages(runs: "Sequence[Run]", with_sizes: bool) -> _Messages:
    numbers, hashes, blind = [numpy.zeros(0, "i8")], [numpy.zeros(0, "u8")], []
    for run in runs:
        found = numpy.frombuffer(run.hashes, "<u8")
        sizes = numpy.frombuffer(run.sizes, "<u4")
        if len(found) != run.piece.size or (with_sizes and len(sizes) != run.piece.size):
            blind.append(run.piece)
            continue
        numbers.append(numpy.arange(run.first, run.last + 1))
        hashes.append(mixed(found, sizes) if with_sizes else found)
    order = numpy.argsort(every := numpy.concatenate(numbers), kind="stable")
    return _Messages(every[order], numpy.concatenate(hashes)[order], merged(blind))


def _one_by_one(before: _Messages, after: _Messages) -> Comparison:
    """Compare each message by its number. A message differs if one of its copies differs from every copy of
    the tier before; each turn of the loop looks at the next copy there of every number."""
    numbers, hashes = after.numbers, after.hashes
    place = numpy.searchsorted(before.numbers, numbers)
    is_known = numpy.zeros(len(numbers), bool)
    is_same = numpy.zeros(len(numbers), bool)
    while True:
        is_copy = place < len(before.numbers)
        is_copy[is_copy] = before.numbers[place[is_copy]] == numbers[is_copy]
        if not is_copy.any():
            break
        is_known |= is_copy
        is_same[is_copy] |= before.hashes[place[is_copy]] == hashes[is_copy]
        place = place + 1
    compared = without(_ranges(numbers[is_known]), merged([*before.blind, *after.blind]))
    return Comparison(compared, common(_ranges(numbers[is_known & ~is_same]), compared))


def _ranges(numbers: Any) -> list[Range]:
    """Of sorted numbers, some of them perhaps more than once."""
    if len(numbers) == 0:
        return []
    ends = numpy.flatnonzero(numpy.diff(numbers) > 1)
    firsts = numbers[numpy.concatenate([[0], ends + 1])]
    lasts = numbers[numpy.append(ends, len(numbers) - 1)]
    return [Range(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]
