"""What happened when, in one drawing: events, messages of each minute, and the state of every tier, one below
the other over the same minutes.

A column is a minute that has messages or events; of many minutes, neighbours share a column, and the worst of
them shows. A dotted line stands where minutes without anything were left out.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from hawser.spark.pipelines.auditing.document import TIERS, Event, Line, Tier, Word
from hawser.spark.pipelines.auditing.report.words import SIGNS, kind_of, worst
from hawser.spark.pipelines.report.elements import clock
from hawser.spark.pipelines.report.plots import WIDTH, drawing, round_up, short, text

__all__ = ["picture"]

_MINUTE_SECONDS: Final = 60
_MOST_COLUMNS: Final = 80
_WIDEST_COLUMN: Final = 106.0
_ROOM_FOR_TWO_TIMES: Final = 300.0
_ROOM_FOR_A_LETTER: Final = 10.0
_LEFT: Final = 84
_ROW: Final = 20
_PLOT: Final = 84
_EVENTS: Final = {
    "recovered": "crashes",
    "missed": "missed",
    "joined": "joined",
    "left": "left",
    "batch": "batches",
}


class _Axis:
    """Which minutes have a column, and where it is."""

    def __init__(self, minutes: Iterable[int]) -> None:
        ordered = sorted(set(minutes))
        group = math.ceil(len(ordered) / _MOST_COLUMNS) or 1
        self._firsts = ordered[::group]
        self._lasts = [
            ordered[min(place + group, len(ordered)) - 1] for place in range(0, len(ordered), group)
        ]
        self.columns = len(self._firsts)
        self.step = min((WIDTH - _LEFT) / max(self.columns, 1), _WIDEST_COLUMN)
        self.right = self.left(self.columns)
        self.lettering = " small" if self.step < _ROOM_FOR_A_LETTER else ""

    def column(self, at: float) -> int:
        return max(bisect_right(self._firsts, at) - 1, 0)

    def left(self, column: int) -> float:
        return _LEFT + column * self.step

    def told(self, column: int) -> str:
        first, last = clock(self._firsts[column]), clock(self._lasts[column])
        return f"{first} UTC" if first == last else f"{first} to {last} UTC"

    def labels(self, y: float) -> str:
        """The first and the last minute, below their columns; as one text where there is no room for two."""
        first, last = f"{clock(self._firsts[0])} UTC", f"{clock(self._lasts[-1])} UTC"
        if self.right - _LEFT < _ROOM_FOR_TWO_TIMES:
            return text(_LEFT, y, first if first == last else f"{first} to {last}", "start")
        return text(_LEFT, y, first, "start") + text(self.right, y, last, "end")

    def breaks(self) -> Iterator[float]:
        """Between which columns minutes were left out."""
        for column in range(1, self.columns):
            if self._firsts[column] - self._lasts[column - 1] > _MINUTE_SECONDS:
                yield self.left(column)


class _Cell(NamedTuple):
    expected: int
    found: int
    words: Counter[Word]


def picture(lines: Sequence[Line], events: Sequence[Event], mismatches: Collection[Word], title: str) -> str:
    """The drawing; empty if no message and no event has a time."""
    minutes = {each.at for line in lines for each in line.minutes}
    axis = _Axis(minutes | {int(each.at) // _MINUTE_SECONDS * _MINUTE_SECONDS for each in events})
    if not axis.columns:
        return ""
    parts: list[str] = []
    top = 4
    for part, height in (
        *_event_rows(events, axis),
        _throughput(lines, axis),
        *_tier_rows(lines, axis, mismatches),
    ):
        parts.append(f'<g transform="translate(0 {top})">{part}</g>')
        top += height
    parts += [f'<line class="break" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{top}"/>' for x in axis.breaks()]
    parts.append(axis.labels(top + 16))
    return f'<div class="scroll wide">{drawing(top + 24, title, parts)}</div>'


def _event_rows(events: Sequence[Event], axis: _Axis) -> Iterator[tuple[str, int]]:
    for kind, label in _EVENTS.items():
        found: dict[int, list[Event]] = {}
        for each in events:
            if each.kind == kind:
                found.setdefault(axis.column(each.at), []).append(each)
        if found:
            marks = [_event(kind, label, some, column, axis) for column, some in sorted(found.items())]
            yield text(_LEFT - 8, 14, label, "end") + "".join(marks), _ROW


def _event(kind: str, label: str, events: Sequence[Event], column: int, axis: _Axis) -> str:
    x = axis.left(column) + axis.step / 2
    told = f"{axis.told(column)}: {label} {len(events):,}"
    told += "".join(f"\n{each.who or each.topic} {each.text}".rstrip() for each in events[:3])
    number = "" if len(events) == 1 else str(len(events)) if len(events) < 10 else "+"
    return (
        f'<g class="event {kind}"><title>{escape(told)}</title>'
        f'<circle cx="{x:.1f}" cy="10" r="{min(6.5, axis.step / 2):.1f}"/></g>'
        + (text(x, 13.2, number, "middle", f"letter{axis.lettering}") if number else "")
    )


def _throughput(lines: Sequence[Line], axis: _Axis) -> tuple[str, int]:
    """The messages of the first tier of a topic, which all pass once."""
    firsts: dict[str, Tier] = {}
    for line in lines:
        if line.tier != "delivered":
            first = firsts.get(line.topic, line.tier)
            firsts[line.topic] = min(first, line.tier, key=TIERS.index)
    messages: Counter[int] = Counter()
    for line in lines:
        if line.tier == firsts.get(line.topic):
            for each in line.minutes:
                messages[each.at] += each.found
    highest: dict[int, int] = {}
    for at, count in messages.items():
        column = axis.column(at)
        highest[column] = max(highest.get(column, 0), count)
    scale = round_up(max(highest.values(), default=0))
    height = _PLOT - 24
    parts = []
    for share in (0.0, 1.0):
        y = 12 + height * (1 - share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{axis.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(_LEFT - 8, y + 4, short(scale * share), "end"))
    parts.append(text(_LEFT - 8, 12 + height / 2 + 4, "a minute", "end"))
    for column, count in sorted(highest.items()):
        tall = height * count / scale if scale else 0.0
        parts.append(
            f'<rect class="bar" x="{axis.left(column) + axis.step * 0.1:.1f}" y="{12 + height - tall:.1f}" '
            f'width="{axis.step * 0.8:.1f}" height="{tall:.1f}"><title>{axis.told(column)}: '
            f"{count:,} messages a minute</title></rect>"
        )
    return "".join(parts), _PLOT


def _tier_rows(lines: Sequence[Line], axis: _Axis, mismatches: Collection[Word]) -> Iterator[tuple[str, int]]:
    for tier in TIERS:
        cells: dict[int, _Cell] = {}
        for line in lines:
            if line.tier == tier:
                for each in line.minutes:
                    column = axis.column(each.at)
                    cell = cells.get(column, _Cell(0, 0, Counter()))
                    cell.words.update(each.words)
                    cells[column] = _Cell(cell.expected + each.expected, cell.found + each.found, cell.words)
        if cells:
            drawn = [_cell(tier, cells[column], column, axis, mismatches) for column in sorted(cells)]
            yield text(_LEFT - 8, 14, tier, "end") + "".join(drawn), _ROW


def _cell(tier: Tier, cell: _Cell, column: int, axis: _Axis, mismatches: Collection[Word]) -> str:
    word = worst(cell.words, mismatches)
    kind = "good" if word is None else kind_of(word, mismatches)
    told = f"{tier}, {axis.told(column)}: {cell.found:,} of {cell.expected:,}"
    told += "".join(f", {count:,} {each}" for each, count in cell.words.items() if count)
    gap = min(1.0, axis.step * 0.1)
    drawn = (
        f'<rect class="cell {kind}" x="{axis.left(column) + gap / 2:.1f}" y="2" '
        f'width="{axis.step - gap:.1f}" height="{_ROW - 4}" rx="2"><title>{escape(told)}</title></rect>'
    )
    if word is not None:
        x = axis.left(column) + axis.step / 2
        drawn += text(x, 13.5, SIGNS[word].letter, "middle", f"letter {kind}{axis.lettering}")
    return drawn
