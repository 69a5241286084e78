"""The elements that pages of pipelines share: one style, light or dark as the reader prefers, without
scripts.

Text is escaped here; only `Markup` is HTML already.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from hawser.spark.pipelines.ranges import Range

__all__ = [
    "Figure", "Markup", "clock", "figures", "markup", "moment", "put", "ranges_text", "sentence", "sheet",
    "table",
]  # fmt: skip

_MOST_RANGES: Final = 8

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #667085; --line: #e4e7ec; --paper: #ffffff;
  --card: #f7f8fa; --bar: #3b6fd4; --good: #18794e; --bad: #c4320a; --unsure: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #98a2b3; --line: #2b3039;
  --paper: #14171c; --card: #1b1f26; --bar: #7aa2f7; --good: #4cc38a; --bad: #ff8b64; --unsure: #e2b340; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 3rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h1.good::before { content: "✓ "; color: var(--good); } h1.bad::before { content: "✗ "; color: var(--bad); }
h1.unsure::before { content: "≈ "; color: var(--unsure); }
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
.number { text-align: right; white-space: nowrap; } .attention { color: var(--bad); }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--line); } svg .bar { fill: var(--bar); }
svg .spread { stroke: var(--bar); stroke-width: 2; opacity: .5; }
svg .hollow { fill: var(--paper); stroke: var(--bar); stroke-width: 2; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg text.value { fill: var(--ink); }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.5rem; } }
@media print { html { font-size: 12px; } body { max-width: none; padding: 0; font-size: 11px; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; } th, td { padding: .3rem .5rem; }
  tr, svg, .figure { break-inside: avoid; }
  .figure, svg, svg * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


class Markup(str):
    """HTML whose texts are escaped already."""

    __slots__ = ()


class Figure(NamedTuple):
    """One number that a reader looks for first; `is_alarming` unless it is 0."""

    title: str
    value: int
    is_alarming: bool


def sheet(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole page, of parts that are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def sentence(text: str) -> str:
    """The text with a capital at its beginning, escaped."""
    return escape(text[:1].upper() + text[1:])


def figures(shown: Iterable[Figure]) -> str:
    """Numbers, each on a card."""
    cells = "".join(
        f'<div class="figure{" attention" if each.is_alarming and each.value else ""}">'
        f"<b>{each.value:,}</b>{escape(each.title)}</div>"
        for each in shown
    )
    return f'<div class="figures">{cells}</div>'


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Columns whose titles begin with # are of numbers."""
    kinds = [' class="number"' if title.startswith("#") else "" for title in titles]
    heads = "".join(
        f"<th{kind}>{escape(title.lstrip('#'))}</th>" for title, kind in zip(titles, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{markup(text)}</td>" for text, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in lines
    )
    return f'<div class="scroll"><table><tr>{heads}</tr>{body}</table></div>'


def markup(text: str) -> Markup:
    """The text, escaped unless it is markup."""
    return text if isinstance(text, Markup) else Markup(escape(text))


def ranges_text(told: Sequence[Range], most: int = _MOST_RANGES) -> str:
    """The first ranges, with their exact ends, and how many more there are."""
    texts = [f"{each.first:,}" if each.size == 1 else f"{each.first:,} to {each.last:,}" for each in told]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more:,} more ranges" if more > 0 else "") or "none"


def clock(at: float) -> str:
    """Seconds since 1970 as a minute, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def moment(at: float) -> str:
    """Seconds since 1970 to the millisecond, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def put(path: Path, data: bytes) -> None:
    """Replace the file as a whole."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
