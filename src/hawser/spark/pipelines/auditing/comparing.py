"""Two tiers compared by the hashes of their messages: whether they differ, and if one message does, which."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hawser.spark.pipelines.auditing.evidence import BLOCK_MESSAGES
from hawser.spark.pipelines.ranges import Range

if TYPE_CHECKING:
    from hawser.spark.pipelines.auditing.lines import Run

__all__ = ["WORD_MASK", "differences"]

WORD_MASK: Final = (1 << 64) - 1


class _Sum(NamedTuple):
    """Of all messages of a range."""

    hash: int
    weighted: int
    bytes: int


def differences(
    before: "Iterable[Run]", after: "Iterable[Run]", with_bytes: bool
) -> Iterator[tuple[Range, Range | None]]:
    """Ranges that both sides have as a whole, each with what of it differs: one number if it is one, all if
    it is not known which, None if nothing does."""
    expected = _sums(before)
    for span, found in _sums(after).items():
        other = expected.get(span)
        if other is not None:
            is_same = found.hash == other.hash and (not with_bytes or found.bytes == other.bytes)
            yield span, None if is_same else _differing(span, other, found)


def _sums(runs: "Iterable[Run]") -> dict[Range, _Sum]:
    """Of runs that are one behind the other, within a block: however they were cut, the same."""
    found: dict[Range, _Sum] = {}
    span: Range | None = None
    for run in sorted(runs, key=lambda run: (run.first, run.last)):
        more = _Sum(run.hash & WORD_MASK, run.weighted & WORD_MASK, run.bytes)
        if span is not None and span.last + 1 == run.first and run.first % BLOCK_MESSAGES:
            sums = found.pop(span)
            more = _Sum(
                sums.hash + more.hash & WORD_MASK,
                sums.weighted + more.weighted & WORD_MASK,
                sums.bytes + more.bytes,
            )
            span = Range(span.first, run.last)
        else:
            span = Range(run.first, run.last)
        found[span] = more
    return found


def _differing(span: Range, before: _Sum, after: _Sum) -> Range:
    """If one message differs, the difference of the weighted sums is that of the sums times its number."""
    change, weighted = after.hash - before.hash, after.weighted - before.weighted
    fitting = [
        number for number in range(span.first, span.last + 1) if not (change * number - weighted) & WORD_MASK
    ]
    return Range(fitting[0], fitting[0]) if len(fitting) == 1 else span
