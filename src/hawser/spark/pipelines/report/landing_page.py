"""The summary of a landing as a page: one file, verdict first."""

import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from hawser.spark.pipelines.coverage import coverage
from hawser.spark.pipelines.report.elements import (
    Figure,
    clock,
    figures,
    put,
    ranges_text,
    sentence,
    sheet,
    table,
)
from hawser.spark.pipelines.report.landing_summary import Partition, Summary, summarize
from hawser.spark.pipelines.report.plots import Bar, Spread, columns, spreads
from hawser.spark.pipelines.runner import Report
from hawser.spark.pipelines.topics import PartitionEnds, check_kept

__all__ = ["LandingReport", "page_of"]

_NOW_AND_THEN_SECONDS: Final = 10.0


class LandingReport(Report):
    """Writes summary.html and summary.json of a landing that begins now, when the topics have these ends.
    With `must_be_kept` the run is refused if the topics no longer have all records of the raw table.
    `summary` is the last summary; None before the first, and if the last could not be written.
    """

    def __init__(self, directory: Path, ends: Sequence[PartitionEnds], must_be_kept: bool) -> None:
        self._directory = directory
        self._ends = ends
        self._must_be_kept = must_be_kept
        self._began = time.time()
        self._next_time = 0.0
        self.page = directory / "summary.html"
        self.summary: Summary | None = None

    def begin(self) -> None:
        if self._must_be_kept:
            check_kept(self._ends, coverage(self._directory, "raw"))

    def after_update(self) -> None:
        """Write the summary, at most once in `_NOW_AND_THEN_SECONDS`."""
        if time.monotonic() >= self._next_time:
            self.end()
            self._next_time = time.monotonic() + _NOW_AND_THEN_SECONDS

    def end(self) -> None:
        self.summary = None
        summary = summarize(self._directory, self._ends, self._began)
        put(self.page, page_of(summary).encode())
        put(self._directory / "summary.json", msgspec.json.encode(summary))
        self.summary = summary


def page_of(summary: Summary) -> str:
    """The whole page."""
    mood = "good" if summary.is_whole else "bad"
    parts = [
        f'<h1 class="{mood}">{sentence(summary.verdict)}</h1>',
        f'<p class="soft">{escape(summary.directory)} · {escape(summary.written)} · '
        f"{summary.seconds:,.1f} s</p>",
        _figures(summary),
        *_minutes(summary),
        *_latency(summary),
        *_partitions(summary),
        *_tables(summary),
    ]
    return sheet(f"Landing: {summary.verdict}", parts)


def _figures(summary: Summary) -> str:
    missing = sum(each.size for one in summary.partitions for each in one.landed.missing)
    doubled = sum(each.size for one in summary.partitions for each in one.landed.doubled)
    return figures(
        [
            Figure("records landed", summary.records, False),
            Figure("missing", missing, True),
            Figure("double", doubled, True),
            Figure("bad", summary.rows.get("bad", 0), True),
            Figure("late", summary.rows.get("late", 0), False),
            Figure("lost before recording", summary.gap_samples, True),
        ]
    )


def _minutes(summary: Summary) -> Iterable[str]:
    if summary.minutes:
        bars = [
            Bar(
                clock(each.at),
                each.records,
                f"{clock(each.at)}: {each.records:,} records, {each.bytes:,} bytes",
            )
            for each in summary.minutes
        ]
        yield "<h2>Records by minute</h2>"
        yield columns(bars, "records by minute")


def _latency(summary: Summary) -> Iterable[str]:
    if summary.latency is not None:
        yield "<h2>From published to landed</h2>"
        yield spreads([Spread("all topics", summary.latency.percentiles)], "latency percentiles")
        yield f'<p class="soft">Of the newest {summary.latency.records:,} records.</p>'


def _partitions(summary: Summary) -> Iterable[str]:
    yield "<h2>Partitions</h2>"
    titles = ["Topic", "#Partition", "#Records", "#First", "#Last", "#To come", "Missing", "Double"]
    lines = [_partition(each) for each in summary.partitions]
    lines += [
        [each.topic, f"{each.partition}", "0", "", "", f"{each.end - each.start:,}", "", ""]
        for each in summary.unread
    ]
    yield table(titles, lines) if lines else '<p class="soft">Nothing has landed yet.</p>'


def _partition(each: Partition) -> list[str]:
    landed = each.landed
    behind = "?" if each.behind is None else f"{each.behind:,}"
    counts = [f"{value:,}" for value in (landed.records, landed.first, landed.last)]
    found = [ranges_text(landed.missing), ranges_text(landed.doubled)]
    topic = f"{landed.topic} (deleted)" if each.is_deleted else landed.topic
    return [topic, f"{landed.partition}", *counts, behind, *found]


def _tables(summary: Summary) -> Iterable[str]:
    yield "<h2>Tables</h2>"
    yield table(["Table", "#Rows"], [[name, f"{rows:,}"] for name, rows in summary.rows.items()])
