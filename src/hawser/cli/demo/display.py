"""What the demo shows: a live view on a terminal, a line now and then elsewhere, tables at the end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from hawser.cli.demo.ledger import read_numbers
from hawser.cli.demo.stage import Actor, Stage
from hawser.cli.demo.verdict import Books
from hawser.cli.output import Cell, Column, count, notice, print_table

__all__ = ["print_books", "showing"]

_REDRAW_SECONDS: Final = 0.25
_LINE_SECONDS: Final = 2.0


@contextmanager
def showing(stage: Stage) -> Iterator[Callable[[str], None]]:
    """What to call with what is happening, as often as one likes."""
    if not sys.stderr.isatty():
        yield _seldom(lambda what: notice(_summary(stage, what)), _LINE_SECONDS)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        rates = _Rates(stage)
        yield _seldom(lambda what: live.update(_view(stage, rates, what), refresh=True), _REDRAW_SECONDS)


def _seldom(show: Callable[[str], None], seconds: float) -> Callable[[str], None]:
    """`show`, but not more often than that."""
    next_time = 0.0

    def shown(what: str) -> None:
        nonlocal next_time
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + seconds
            show(what)

    return shown


def _summary(stage: Stage, what: str) -> str:
    seconds = min(stage.elapsed_seconds, stage.plan.seconds)
    alive = sum(actor.alive for actor in stage.actors)
    return (
        f"{seconds:5.1f} of {stage.plan.seconds:g} s  {what}: {count(stage.auditor.seen)} published, "
        f"{stage.kills} of {stage.plan.kills} killed, {alive} of {len(stage.actors)} alive"
    )


class _Rates:
    """Messages a second, as between the last two looks."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._last = (time.monotonic(), stage.auditor.seen)

    def now(self) -> float:
        moment, seen = time.monotonic(), self._stage.auditor.seen
        before, had = self._last
        self._last = (moment, seen)
        return (seen - had) / max(moment - before, 1e-9)


def _view(stage: Stage, rates: _Rates, what: str) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    heading = Table.grid(padding=(0, 2))
    seconds = min(stage.elapsed_seconds, stage.plan.seconds)
    heading.add_row(
        ProgressBar(stage.plan.seconds, seconds, width=24),
        f"{seconds:4.1f} s",
        what,
        f"{count(stage.auditor.seen)} published",
        f"{count(rates.now())}/s",
        Text(f"{stage.kills} killed", style="red" if stage.kills else ""),
    )
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("process", "kind", "state", "run"):
        table.add_column(title)
    for title in ("published", "received", "missed"):
        table.add_column(title, justify="right")
    for actor in stage.actors:
        table.add_row(*_live_row(actor))
    return Group(heading, Text(), table)


def _live_row(actor: Actor) -> list[Any]:
    from rich.text import Text

    state = Text(f"pid {actor.pid}", style="green") if actor.alive else Text("killed", style="red")
    run = str(len(actor.runs))
    if actor.role == "publisher":
        published = sum(len(read_numbers(each.file("receipts"))) for each in actor.runs[-1:])
        return [actor.name, "", state, run, count(published), "", ""]
    note = actor.note()
    received, missed = (count(note.received), count(note.missed)) if note else ("", "")
    return [actor.name, actor.kind, state, run, "", received, missed]


def print_books(books: Books) -> None:
    """The proof as tables."""
    _print_publishers(books)
    click.echo()
    _print_subscribers(books)
    click.echo()
    topic = books.topic
    click.echo(
        f"{count(books.published)} messages, offsets dense; {topic['kills']} processes killed, which had "
        f"{topic['returned_by_recovery']} loans and {topic['reads_ended_by_recovery']} samples open; "
        f"{topic['leaked']} of {count(topic['slots'])} slots leaked"
    )
    for text in books.contradictions[:20]:
        click.echo(f"{click.style('contradiction:', fg='red')} {text}")
    if books.proven:
        click.echo(
            click.style("proven", fg="green", bold=True) + ": received + missed = published for everybody"
        )
    else:
        click.echo(click.style("not proven", fg="red", bold=True))


def _print_publishers(books: Books) -> None:
    columns = [
        Column("publisher"),
        Column("runs", right=True),
        Column("killed", right=True),
        Column("published", right=True),
        Column("= receipts", right=True),
        Column("+ killed before the receipt", right=True),
    ]
    names = ("runs", "killed", "published", "receipts", "unnoted")
    rows = [[row["name"], *(count(row[name]) for name in names)] for row in books.publishers]
    print_table(columns, rows)


def _print_subscribers(books: Books) -> None:
    columns = [
        Column("subscriber"),
        Column("kind"),
        Column("runs", right=True),
        Column("killed", right=True),
        Column("received", right=True),
        Column("+ missed", right=True),
        Column("= published", right=True),
        Column("repeated", right=True),
        Column(""),
    ]
    rows: list[list[str | Cell]] = []
    for row in books.subscribers:
        balanced = row["received"] + row["missed"] == row["published"]
        verdict = Cell("ok", "green") if balanced else Cell("wrong", "red")
        figures = (row[name] for name in ("runs", "killed", "received", "missed", "published", "repeated"))
        rows.append([row["name"], row["kind"], *map(count, figures), verdict])
    print_table(columns, rows)
