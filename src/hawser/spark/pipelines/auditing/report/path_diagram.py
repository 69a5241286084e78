"""The path of messages through the tiers, as a diagram that bends to a column on a narrow page."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from hawser.spark.pipelines.auditing.document import Document, Line, Tier, TierTotal, Word
from hawser.spark.pipelines.auditing.report.words import chips
from hawser.spark.pipelines.report.plots import size

__all__ = ["ABSENT", "path"]

_MAIN: Final[tuple[Tier, ...]] = ("published", "recorded", "replicated", "in Spark", "landed")
_LINES: Final[dict[Tier, tuple[str, str]]] = {
    "published": ("region", "regions"),
    "delivered": ("subscriber", "subscribers"),
    "recorded": ("stream", "streams"),
    "replicated": ("partition", "partitions"),
    "in Spark": ("partition", "partitions"),
    "landed": ("partition", "partitions"),
}
ABSENT: Final[dict[Tier, str]] = {
    "published": "no trace tells of it",
    "delivered": "no trace tells of it",
    "recorded": "nothing came from a recorder",
    "replicated": "nothing is in the log",
    "in Spark": "no landing to look at",
    "landed": "no landing to look at",
}


def path(document: Document, mismatches: Collection[Word]) -> str:
    """Every tier with what it has; before it, how it differs from the tier that it is compared with."""
    totals = {each.tier: each for each in document.tiers if each.lines}
    return f'<ol class="path">{"".join(_stops(totals, _ends(document.lines), mismatches))}</ol>'


def _ends(lines: Sequence[Line]) -> dict[Tier, str]:
    """Which tiers have messages of topics that the tier before does not know, or the tier behind: why numbers
    of neighbours differ although nothing is missing."""
    found: dict[str, dict[Tier, int]] = {}
    for line in lines:
        tiers = found.setdefault(line.topic, {})
        tiers[line.tier] = tiers.get(line.tier, 0) + line.found
    begin: Counter[Tier] = Counter()
    end: Counter[Tier] = Counter()
    for tiers in found.values():
        known = [tier for tier in _MAIN if tier in tiers]
        if known:
            begin[known[0]] += tiers[known[0]]
            end[known[-1]] += tiers[known[-1]]
    first = next((tier for tier in _MAIN if begin[tier]), None)
    last = next((tier for tier in reversed(_MAIN) if end[tier]), None)
    told = {tier: f"{begin[tier]:,} begin here" for tier in _MAIN if begin[tier] and tier != first}
    for tier in _MAIN:
        if end[tier] and tier != last:
            told[tier] = f"{told[tier]}, " if tier in told else ""
            told[tier] += f"{end[tier]:,} go no further"
    return told


def _stops(
    totals: dict[Tier, TierTotal], ends: dict[Tier, str], mismatches: Collection[Word]
) -> Iterator[str]:
    for number, tier in enumerate(_MAIN):
        if number:
            before = totals.get(_MAIN[number - 1])
            yield f'<li class="hop">{_difference(before, totals.get(tier), mismatches)}</li>'
        yield f'<li class="stop">{_card(tier, totals.get(tier), ends.get(tier, ""))}'
        if tier == "published":
            yield from _branch(totals, mismatches)
        yield "</li>"


def _branch(totals: dict[Tier, TierTotal], mismatches: Collection[Word]) -> Iterator[str]:
    """Below the first tier: its own findings, and the deliveries on its host."""
    published, delivered = totals.get("published"), totals.get("delivered")
    if published is not None and published.words:
        yield f'<div class="own">{chips(published.words, mismatches)}</div>'
    yield f'<div class="branch">{_difference(published, delivered, mismatches)}</div>'
    yield _card("delivered", delivered)


def _card(tier: Tier, total: TierTotal | None, ends: str = "") -> str:
    if total is None:
        return f'<div class="tier absent"><span>{tier}</span><b>?</b><small>{ABSENT[tier]}</small></div>'
    one, many = _LINES[tier]
    told = f"{total.lines:,} {one if total.lines == 1 else many}"
    told += f" · {size(total.bytes)}" if total.bytes else ""
    told += f"</small><small>{ends}" if ends else ""
    return f'<div class="tier"><span>{tier}</span><b>{total.found:,}</b><small>{told}</small></div>'


def _difference(before: TierTotal | None, total: TierTotal | None, mismatches: Collection[Word]) -> str:
    """Of two tiers; what a tier lacks in itself is told also where there is nothing before it."""
    if total is None or (before is None and not total.words):
        return ""
    return chips(total.words, mismatches, "all")
