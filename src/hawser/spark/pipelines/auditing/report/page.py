"""The audit as a page: one file, the verdict first, then where messages went, each topic, and the evidence.

It says no more than the document does, which is beside it as audit.json.
"""

from collections.abc import Collection, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from hawser.spark.pipelines.auditing.document import MISMATCHES, TIERS, UNKNOWN, WORDS, Document, Event, Word
from hawser.spark.pipelines.auditing.report.path_diagram import ABSENT, path
from hawser.spark.pipelines.auditing.report.timeline import picture
from hawser.spark.pipelines.auditing.report.topics import fold, in_html, topics_of
from hawser.spark.pipelines.auditing.report.words import SIGNS, chip, chips, mismatches_of
from hawser.spark.pipelines.ranges import Range
from hawser.spark.pipelines.report.elements import (
    Figure,
    figures,
    moment,
    put,
    ranges_text,
    sentence,
    sheet,
    table,
)

__all__ = ["page_of", "write"]

_MOST_EVENTS: Final = 12
_MOST_LOSSES: Final = 12

_STYLE: Final = """
h3 { font-size: .85rem; font-weight: 500; color: var(--soft); margin: 1.6rem 0 .5rem; }
.together { white-space: nowrap; }
code { font: .85em ui-monospace, monospace; }
.badge { display: inline-block; margin: 0 0 .8rem; padding: .1rem .8rem; border-radius: 99px;
  font-weight: 600; letter-spacing: .06em; text-transform: uppercase; font-size: .8rem; border: 1.5px solid; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.unsure { color: var(--unsure); }
.chip { white-space: nowrap; font-size: .85rem; }
.chip i { display: inline-block; min-width: 1.35em; margin-right: .35em; border-radius: 4px;
  text-align: center; font: 600 .8em/1.35em system-ui, sans-serif; border: 1px solid transparent; }
.chip.good { color: var(--good); } .chip.bad { color: var(--bad); font-weight: 600; }
.chip.unsure { color: var(--unsure); } .chip.open { color: var(--soft); }
.chip.bad i { background: var(--bad); color: var(--paper); }
.chip.unsure i { background: var(--unsure); color: var(--paper); } .chip.open i { border: 1px dashed; }
.path { display: flex; align-items: flex-start; list-style: none; margin: 2rem 0 0; padding: 0; }
.stop { flex: 1 0 6.8rem; min-width: min-content; }
.tier { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .6rem .7rem; }
.tier span, .tier small { display: block; color: var(--soft); font-size: .8rem; line-height: 1.35; }
.tier b { display: block; font-size: 1rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tier.absent { background: none; border-style: dashed; }
.hop { flex: 0 1 auto; min-width: 3.6rem; padding: 1.15rem .3rem 0; text-align: center; }
.hop::before { content: "→"; display: block; color: var(--soft); font-size: 1.3rem; line-height: 1; }
.own { padding: .3rem .7rem 0; }
.hop .chip, .branch .chip, .own .chip { white-space: normal; font-size: .78rem; }
.hop .chip { display: block; }
.branch { display: flex; flex-wrap: wrap; gap: 0 .5rem; padding: .5rem 0 .5rem .8rem; }
.branch::before { content: "↓"; color: var(--soft); font-size: 1.3rem; line-height: 1.2; }
.wide svg { min-width: 40rem; }
svg text.letter { font: 600 9px system-ui, sans-serif; fill: var(--paper); }
svg text.letter.small { font-size: 7.5px; } svg text.letter.open { fill: var(--soft); }
svg .cell.good { fill: var(--good); opacity: .45; } svg .cell.bad { fill: var(--bad); }
svg .cell.unsure { fill: var(--unsure); }
svg .cell.open { fill: none; stroke: var(--soft); stroke-dasharray: 2 2; }
svg .event { fill: var(--soft); } svg .event.recovered { fill: var(--bad); }
svg .event.missed { fill: var(--unsure); }
svg .event.joined { fill: var(--good); } svg .break { stroke: var(--soft); stroke-dasharray: 1 3; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--bar); }
@media (max-width: 52rem) { .path { flex-direction: column; align-items: stretch; }
  .stop { flex: none; }
  .hop { flex: none; padding: .4rem .8rem; display: flex; flex-wrap: wrap; gap: 0 .5rem; text-align: left; }
  .hop .chip { display: inline; }
  .hop::before { content: "↓"; } .branch { padding-left: 2rem; } .branch + .tier { margin-left: 1.5rem; } }
"""


def page_of(document: Document) -> str:
    """The whole page."""
    mismatches = mismatches_of(document)
    topics = topics_of(document)
    mood, word = _mood(document)
    parts = [
        f'<p class="badge {mood}">{word}</p>',
        f'<h1 class="{mood}">{sentence(document.verdict)}</h1>',
        f'<p class="soft">{_about(document)}</p>',
        _figures(document, mismatches),
        "<h2>Where the messages went</h2>",
        path(document, mismatches),
    ]
    if document.problems_left_out:
        told = f"{len(document.problems):,} ranges are told below, mismatches first"
        parts.append(f'<p class="soft">{told}; {document.problems_left_out:,} more are not.</p>')
    if len(topics) > 1:
        parts += ["<h2>All topics</h2>", picture(document.lines, document.events, mismatches, "all topics")]
    parts += in_html(topics, mismatches)
    parts += _events(document.events, document.events_left_out)
    parts += _evidence(document)
    parts += _legend(mismatches)
    return sheet(f"Audit: {document.verdict}", parts, _STYLE)


def _mood(document: Document) -> tuple[str, str]:
    """The colour and the word for the whole audit."""
    if not document.is_whole:
        return "bad", "mismatch"
    if not document.messages:
        return "unsure", "nothing seen"
    if not document.is_proven:
        return "unsure", "undecided"
    is_open = any(each.words.get("pending") for each in document.tiers)
    return ("unsure", "complete, as far as seen") if is_open else ("good", "complete")


def _about(document: Document) -> str:
    told = [document.url, document.directory]
    told += [f"landing {document.landing}"] if document.landing else []
    told += [f"trace {document.trace}"] if document.trace else []
    told += [document.written, f"{document.seconds:,.1f} s", "all times are UTC"]
    return escape(" · ".join(told))


def _figures(document: Document, mismatches: Collection[Word]) -> str:
    counts = {word: sum(each.words.get(word, 0) for each in document.tiers) for word in WORDS}
    shown = [Figure("messages", document.messages, False)]
    shown += [
        Figure(word, counts[word], word in mismatches) for word in WORDS if counts[word] or word in MISMATCHES
    ]
    shown += [Figure("records of the trace lost", document.lost, False)] if document.lost else []
    return figures(shown)


def _events(events: Sequence[Event], left_out: int) -> Iterator[str]:
    """Events, crashes first and batches last, folded."""
    if not events:
        return
    titles = ["When, UTC", "What", "Who", "#Process", "Topic", ""]
    ordered = sorted(events, key=lambda each: ({"recovered": 0, "batch": 2}.get(each.kind, 1), each.at))
    lines = [
        [
            moment(each.at),
            each.kind,
            each.who,
            f"{each.process}" if each.process else "",
            each.topic,
            each.text,
        ]
        for each in ordered
    ]
    yield "<h2>Crashes, recoveries, and who came and went</h2>"
    yield table(titles, lines[:_MOST_EVENTS])
    if len(lines) > _MOST_EVENTS:
        yield fold(f"{len(lines) - _MOST_EVENTS:,} more events", table(titles, lines[_MOST_EVENTS:]))
    if left_out:
        yield f'<p class="soft">{left_out:,} more are not told here.</p>'


def _evidence(document: Document) -> Iterator[str]:
    yield "<h2>How it was compared</h2>"
    yield (
        "<p>Two tiers have the same messages if they have the same numbers, each once, and the same "
        "hash: the sum, modulo 2<sup>64</sup>, of a hash of each message's number and time, and of its key "
        "and value where both tiers know them. The sum is the same in any order, and one message lost and "
        "another doubled change it. Where the sums or the numbers of a block differ, its messages are "
        "compared one by one. A message that the tier before does not have is called uncompared, and the "
        "audit is then undecided, not complete.</p>"
    )
    known = {each.tier: each for each in document.tiers if each.lines}
    lines = []
    for tier in TIERS:
        each = known.get(tier)
        if each is None:
            lines.append([tier, "", "", "", f"not witnessed: {ABSENT[tier]}"])
        else:
            counts = {"not witnessed": each.words.get("unwitnessed", 0)}
            counts["not compared"] = each.words.get("uncompared", 0)
            told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
            lines.append([tier, f"{each.expected:,}", f"{each.found:,}", f"{each.compared:,}", told])
    yield table(["Tier", "#Expected", "#Found", "#Compared by hash", ""], lines)
    yield from _losses(document)
    if document.late_seconds:
        yield f'<p class="soft">Late is what came more than {document.late_seconds:,g} s after its time.</p>'


def _losses(document: Document) -> Iterator[str]:
    if not document.traced and not document.lost:
        yield "<p>No trace was read: what was published and delivered on hosts is not witnessed.</p>"
        return
    if not document.lost:
        yield f"<p>All {document.traced:,} records of the trace were read; none was lost.</p>"
        return
    yield (
        f"<p>Of the trace {document.traced:,} records were read; {document.lost:,} were overwritten before "
        "they were read. Their messages are called unwitnessed, never missing.</p>"
    )
    rings: dict[str, list[Range]] = {}
    for each in document.losses:
        rings.setdefault(each.ring, []).append(Range(each.first, each.last))
    lines = [[ring, ranges_text(found, _MOST_LOSSES)] for ring, found in sorted(rings.items())]
    yield table(["Ring", "Records lost"], lines)


def _weight(word: Word, mismatches: Collection[Word]) -> str:
    if word in mismatches:
        return "a mismatch"
    return "undecided" if word in UNKNOWN else ""


def _legend(mismatches: Collection[Word]) -> Iterator[str]:
    yield "<h2>The words</h2>"
    lines = [[chips({}, mismatches), "every message of the tier before, each once", ""]]
    lines += [
        [chip(word, mismatches), sign.meaning, _weight(word, mismatches)] for word, sign in SIGNS.items()
    ]
    yield table(["Word", "Means", ""], lines)
    yield '<p class="soft">Every line with every minute is in audit.json beside this page.</p>'


def write(directory: Path, document: Document) -> Path:
    """Write `audit.json` and `audit.html`, each replaced as a whole; where the page is."""
    put(directory / "audit.json", msgspec.json.format(msgspec.json.encode(document), indent=1))
    page = directory / "audit.html"
    put(page, page_of(document).encode())
    return page
