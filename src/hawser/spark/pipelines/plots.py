"""Plots as SVG, small and plain: they take their colours from the page and need nothing else."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

__all__ = ["Bar", "columns", "rows"]

_WIDTH: Final = 720
_HEIGHT: Final = 180
_MARGIN_LEFT: Final = 64
_MARGIN_BOTTOM: Final = 22
_MARGIN_TOP: Final = 10
_ROW_HEIGHT: Final = 26
_MOST_COLUMNS: Final = 240


class Bar(NamedTuple):
    """A value, what stands beside it, and what is told of it where the pointer rests."""

    label: str
    value: float
    told: str


def columns(bars: Sequence[Bar], title: str) -> str:
    """Columns over a common base, with a scale on the left. Of many, neighbours are put together, and the
    highest of them stands for all."""
    shown = _thinned(bars)
    top = _round_up(max((bar.value for bar in shown), default=0.0))
    width, height = _WIDTH - _MARGIN_LEFT, _HEIGHT - _MARGIN_TOP - _MARGIN_BOTTOM
    step = width / max(len(shown), 1)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _MARGIN_TOP + height * (1 - share)
        parts.append(f'<line class="grid" x1="{_MARGIN_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_MARGIN_LEFT - 8, y + 4, _short(top * share), "end"))
    for place, bar in enumerate(shown):
        tall = height * bar.value / top if top else 0.0
        x, y = _MARGIN_LEFT + place * step, _MARGIN_TOP + height - tall
        parts.append(
            f'<rect class="bar" x="{x + step * 0.1:.2f}" y="{y:.2f}" width="{max(step * 0.8, 0.5):.2f}" '
            f'height="{tall:.2f}" rx="{min(2.0, step * 0.2):.1f}"><title>{escape(bar.told)}</title></rect>'
        )
    if shown:
        parts.append(_text(_MARGIN_LEFT, _HEIGHT - 6, shown[0].label, "start"))
    if len(shown) > 1:
        parts.append(_text(_WIDTH, _HEIGHT - 6, shown[-1].label, "end"))
    return _drawing(_HEIGHT, title, parts)


def rows(bars: Sequence[Bar], title: str) -> str:
    """Bars one below the other, each with its label and what is told of it."""
    top = max((bar.value for bar in bars), default=0.0)
    width = _WIDTH - _MARGIN_LEFT - 110
    parts = []
    for place, bar in enumerate(bars):
        y = place * _ROW_HEIGHT
        wide = max(width * bar.value / top, 2.0) if top > 0 else 2.0
        parts.append(_text(_MARGIN_LEFT - 8, y + 17, bar.label, "end"))
        parts.append(
            f'<rect class="bar" x="{_MARGIN_LEFT}" y="{y + 5}" width="{wide:.2f}" height="16" rx="3"/>'
        )
        parts.append(_text(_MARGIN_LEFT + wide + 8, y + 17, bar.told, "start", "value"))
    return _drawing(_ROW_HEIGHT * len(bars), title, parts)


def _thinned(bars: Sequence[Bar]) -> list[Bar]:
    group = math.ceil(len(bars) / _MOST_COLUMNS) or 1
    return [
        max(bars[place : place + group], key=lambda bar: bar.value) for place in range(0, len(bars), group)
    ]


def _drawing(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
