"""The summary as a page: one file, without scripts or a network; light or dark as the reader likes."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from hawser.spark.pipelines.coverage import Range
from hawser.spark.pipelines.plots import Bar, columns, rows
from hawser.spark.pipelines.summary import Partition, Summary, summarize
from hawser.spark.pipelines.topics import PartitionEnds

__all__ = ["Writer", "page_of"]

_NOW_AND_THEN_SECONDS: Final = 10.0
_MOST_RANGES: Final = 8

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #667085; --line: #e4e7ec; --paper: #ffffff;
  --card: #f7f8fa; --bar: #3b6fd4; --good: #18794e; --bad: #c4320a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #98a2b3; --line: #2b3039;
  --paper: #14171c; --card: #1b1f26; --bar: #7aa2f7; --good: #4cc38a; --bad: #ff8b64; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 3rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h1.good::before { content: "✓ "; color: var(--good); } h1.bad::before { content: "✗ "; color: var(--bad); }
h2 { font-size: 1rem; margin: 2.6rem 0 .8rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  gap: .8rem; margin-top: 1.8rem; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.figure b { display: block; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.figure.attention b { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .85rem; }
th, td { padding: .45rem .8rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; }
.number { text-align: right; } .attention { color: var(--bad); }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--line); } svg .bar { fill: var(--bar); }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg text.value { fill: var(--ink); }
"""


class Writer:
    """Writes summary.html and summary.json of a run that begins now, when the topics have these ends."""

    def __init__(self, directory: Path, ends: Sequence[PartitionEnds]) -> None:
        self._directory = directory
        self._ends = ends
        self._began = time.time()
        self._next_time = 0.0
        self.page = directory / "summary.html"

    def write_now_and_then(self) -> None:
        if time.monotonic() >= self._next_time:
            self.write()
            self._next_time = time.monotonic() + _NOW_AND_THEN_SECONDS

    def write(self) -> Summary:
        """The summary as it is now."""
        summary = summarize(self._directory, self._ends, self._began)
        _put(self.page, page_of(summary).encode())
        _put(self._directory / "summary.json", msgspec.json.encode(summary))
        return summary


def _put(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)


def page_of(summary: Summary) -> str:
    """The whole page."""
    mood = "good" if summary.is_whole else "bad"
    parts = [
        f'<h1 class="{mood}">{_sentence(summary.verdict)}</h1>',
        f'<p class="soft">{escape(summary.directory)} · {escape(summary.written)} · '
        f"{summary.seconds:,.1f} s</p>",
        _figures(summary),
        *_minutes(summary),
        *_latency(summary),
        *_partitions(summary),
        *_tables(summary),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Landing: {escape(summary.verdict)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _sentence(text: str) -> str:
    return escape(text[:1].upper() + text[1:])


def _figures(summary: Summary) -> str:
    missing = sum(each.size for one in summary.partitions for each in one.landed.missing)
    doubled = sum(each.size for one in summary.partitions for each in one.landed.doubled)
    figures = [
        ("records landed", summary.records, False),
        ("missing", missing, True),
        ("double", doubled, True),
        ("bad", summary.rows.get("bad", 0), True),
        ("late", summary.rows.get("late", 0), False),
        ("lost before recording", summary.gap_samples, True),
    ]
    cells = "".join(
        f'<div class="figure{" attention" if alarming and value else ""}"><b>{value:,}</b>{title}</div>'
        for title, value, alarming in figures
    )
    return f'<div class="figures">{cells}</div>'


def _minutes(summary: Summary) -> Iterable[str]:
    if summary.minutes:
        bars = [
            Bar(
                _clock(each.at),
                each.records,
                f"{_clock(each.at)}: {each.records:,} records, {each.bytes:,} bytes",
            )
            for each in summary.minutes
        ]
        yield "<h2>Records by minute</h2>"
        yield columns(bars, "records by minute")


def _latency(summary: Summary) -> Iterable[str]:
    if summary.latency is not None:
        bars = [
            Bar("most" if name == "100" else f"{name} %", max(value, 0.0), f"{value:,.2f} s")
            for name, value in summary.latency.percentiles.items()
        ]
        yield "<h2>From published to landed</h2>"
        yield rows(bars, "latency percentiles")
        yield f'<p class="soft">Of the newest {summary.latency.records:,} records.</p>'


def _partitions(summary: Summary) -> Iterable[str]:
    yield "<h2>Partitions</h2>"
    titles = ["Topic", "#Partition", "#Records", "#First", "#Last", "#To come", "Missing", "Double"]
    lines = [_partition(each) for each in summary.partitions]
    lines += [
        [each.topic, f"{each.partition}", "0", "", "", f"{each.end - each.start:,}", "", ""]
        for each in summary.unread
    ]
    yield _table(titles, lines) if lines else '<p class="soft">Nothing has landed yet.</p>'


def _partition(each: Partition) -> list[str]:
    landed = each.landed
    behind = "?" if each.behind is None else f"{each.behind:,}"
    figures = [f"{value:,}" for value in (landed.records, landed.first, landed.last)]
    ranges = [_ranges(landed.missing), _ranges(landed.doubled)]
    return [landed.topic, f"{landed.partition}", *figures, behind, *ranges]


def _ranges(ranges: Sequence[Range]) -> str:
    told = [f"{each.first:,}" if each.size == 1 else f"{each.first:,} to {each.last:,}" for each in ranges]
    more = len(told) - _MOST_RANGES
    return ", ".join(told[:_MOST_RANGES]) + (f" and {more:,} more ranges" if more > 0 else "") or "none"


def _tables(summary: Summary) -> Iterable[str]:
    yield "<h2>Tables</h2>"
    yield _table(["Table", "#Rows"], [[name, f"{rows:,}"] for name, rows in summary.rows.items()])


def _table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Columns whose titles begin with # are of numbers."""
    kinds = [' class="number"' if title.startswith("#") else "" for title in titles]
    heads = "".join(
        f"<th{kind}>{escape(title.lstrip('#'))}</th>" for title, kind in zip(titles, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(text)}</td>" for text, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in lines
    )
    return f'<div class="scroll"><table><tr>{heads}</tr>{body}</table></div>'


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
