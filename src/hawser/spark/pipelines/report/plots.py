"""Small SVG plots, which take their colours from the page."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

__all__ = [
    "WIDTH", "Bar", "Spread", "columns", "drawing", "duration", "round_up", "short", "size",
    "spreads", "text",
]  # fmt: skip

WIDTH: Final = 720
_HEIGHT: Final = 180
_MARGIN_LEFT: Final = 64
_MARGIN_BOTTOM: Final = 22
_MARGIN_TOP: Final = 10
_SPREAD_HEIGHT: Final = 44
_PERCENTILES: Final = (("50", "p50"), ("90", "p90"), ("99", "p99"), ("100", "max"))
_MOST_COLUMNS: Final = 240


class Bar(NamedTuple):
    """A value, its label, and its tooltip."""

    label: str
    value: float
    told: str


class Spread(NamedTuple):
    """The spread of durations: seconds by percentile, "50", "90", "99" and, for the greatest, "100"."""

    label: str
    percentiles: Mapping[str, float]

    @property
    def marks(self) -> list[tuple[str, float]]:
        """The points to draw: name and seconds, from the least to the greatest."""
        return [(told, self.percentiles[name]) for name, told in _PERCENTILES if name in self.percentiles]


def columns(bars: Sequence[Bar], title: str) -> str:
    """Columns over a common base, with a scale on the left. Of many, neighbours are put together, and the
    highest of them stands for all."""
    shown = _thinned(bars)
    top = round_up(max((bar.value for bar in shown), default=0.0))
    width, height = WIDTH - _MARGIN_LEFT, _HEIGHT - _MARGIN_TOP - _MARGIN_BOTTOM
    step = width / max(len(shown), 1)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _MARGIN_TOP + height * (1 - share)
        parts.append(f'<line class="grid" x1="{_MARGIN_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(_MARGIN_LEFT - 8, y + 4, short(top * share), "end"))
    for place, bar in enumerate(shown):
        tall = height * bar.value / top if top else 0.0
        x, y = _MARGIN_LEFT + place * step, _MARGIN_TOP + height - tall
        parts.append(
            f'<rect class="bar" x="{x + step * 0.1:.2f}" y="{y:.2f}" width="{max(step * 0.8, 0.5):.2f}" '
            f'height="{tall:.2f}" rx="{min(2.0, step * 0.2):.1f}"><title>{escape(bar.told)}</title></rect>'
        )
    if shown:
        parts.append(text(_MARGIN_LEFT, _HEIGHT - 6, shown[0].label, "start"))
    if len(shown) > 1:
        parts.append(text(WIDTH, _HEIGHT - 6, shown[-1].label, "end"))
    return drawing(_HEIGHT, title, parts)


def spreads(shown: Sequence[Spread], title: str) -> str:
    """One below the other over a common scale, on which each step is ten times the one before: a mark at each
    percentile, hollow for the first, a bar across for the last."""
    # A clock that is behind makes a duration 0 or less: it stands at the left end.
    values = [value for each in shown for _, value in each.marks if value >= 1e-9] or [1.0]
    least = math.floor(math.log10(min(values)))
    most = max(math.ceil(math.log10(max(values))), least + 1)
    height = _SPREAD_HEIGHT * len(shown)

    def across(value: float) -> float:
        share = (math.log10(max(value, 10.0**least)) - least) / (most - least)
        return 6 + (WIDTH - 12) * min(share, 1.0)

    parts = []
    for decade in range(least, most + 1):
        x = across(10.0**decade)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        anchor = {least: "start", most: "end"}.get(decade, "middle")
        parts.append(text(x, height + 16, _decade(decade), anchor))
    for place, each in enumerate(shown):
        parts.extend(_spread(each, place * _SPREAD_HEIGHT, across))
    return drawing(height + _MARGIN_BOTTOM, title, parts)


def _spread(shown: Spread, top: int, across: Callable[[float], float]) -> Iterator[str]:
    y = top + 30
    told = " · ".join(f"{name} {duration(value)}" for name, value in shown.marks)
    places = [across(value) for _, value in shown.marks]
    yield text(0, top + 14, shown.label, "start", "value")
    yield text(WIDTH, top + 14, told, "end")
    yield f"<g><title>{escape(shown.label)}: {escape(told)}</title>"
    yield f'<line class="spread" x1="{places[0]:.1f}" x2="{places[-1]:.1f}" y1="{y}" y2="{y}"/>'
    for number, x in enumerate(places):
        if number == len(places) - 1:
            yield f'<rect class="bar" x="{x - 1.5:.1f}" y="{y - 8}" width="3" height="16"/>'
        else:
            kind = "hollow" if number == 0 else "bar"
            yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="{5 - number * 0.8:.1f}"/>'
    yield "</g>"


def size(count: int) -> str:
    """Bytes with a unit, which stays on the same line."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.3g}\u00a0{unit}"
    return f"{count:,} bytes"


def duration(seconds: float) -> str:
    """Three digits and a unit, from nanoseconds to hours."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _decade(power: int) -> str:
    for unit_power, unit in ((0, "s"), (-3, "ms"), (-6, "µs")):
        if power >= unit_power:
            return f"{10 ** (power - unit_power):,} {unit}"
    return f"{10 ** (power + 9):,} ns"


def _thinned(bars: Sequence[Bar]) -> list[Bar]:
    group = math.ceil(len(bars) / _MOST_COLUMNS) or 1
    return [
        max(bars[place : place + group], key=lambda bar: bar.value) for place in range(0, len(bars), group)
    ]


def drawing(height: int, title: str, parts: Sequence[str]) -> str:
    """Parts that are SVG, as wide as the page."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def text(x: float, y: float, words: str, anchor: str, kind: str = "label") -> str:
    """A line of text, escaped here."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def short(value: float) -> str:
    """Few digits, with a letter for thousands and more."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
