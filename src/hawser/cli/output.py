"""Output of commands: tables for people, JSON for programs, numbers with units."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

import click
import msgspec

__all__ = [
    "Cell",
    "Column",
    "age",
    "byte_size",
    "clock",
    "count",
    "dimmed",
    "discard_output",
    "exit_with",
    "messages_were",
    "notice",
    "print_json",
    "print_table",
    "printable_text",
    "report_at_end",
]


class Column(NamedTuple):
    """A column of a table; `right` aligns numbers."""

    title: str
    right: bool = False


class Cell(NamedTuple):
    """A text with a colour on terminals."""

    text: str
    color: str


def notice(text: str) -> None:
    """Print a message that is not data, to standard error."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print one line of JSON and flush it."""
    try:
        line = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # A file name is not UTF-8; json escapes it so that programs read the same name.
        line = json.dumps(value)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def report_at_end(report: Callable[[], None]) -> Iterator[None]:
    """Print the report when the block ends. If the block fails, its error decides the exit code, even if the
    report cannot be printed."""
    try:
        yield
    except BaseException:
        try:
            report()
        except OSError:
            discard_output()
        raise
    report()


@contextmanager
def exit_with(code: int) -> Iterator[None]:
    """Exit with `code` after the block, unless it is 0, even if the output of the block cannot be printed."""
    try:
        yield
    except OSError as error:
        if not code:
            raise
        discard_output()
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError):
                notice(str(error))
    if code:
        raise click.exceptions.Exit(code)


def discard_output() -> None:
    """Discard buffered output that cannot be written, because flushing it would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> None:
    """Print a table: on a terminal with colours and fitted to its width, otherwise as plain aligned text."""
    rows = list(rows)
    if sys.stdout.isatty():
        _print_rich_table(columns, rows)
    else:
        _print_plain_table(columns, rows)


def _print_rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        texts = [Text(cell.text, style=cell.color) if isinstance(cell, Cell) else Text(cell) for cell in row]
        table.add_row(*texts)
    Console().print(table)


def _print_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in rows]
    lines = [[column.title for column in columns], *texts]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        parts = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


def dimmed(text: str) -> str:
    """The text in a dim style if standard output shows colours."""
    colored = sys.stdout.isatty() and click.get_current_context().color is not False
    return click.style(text, dim=True) if colored else text


def count(number: float) -> str:
    """A whole number with separators: 12,345."""
    return f"{number:,.0f}"


def byte_size(number: float) -> str:
    """A number of bytes with a unit: 512 B, 64 KiB, 8.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if number >= 100 or number % 1 == 0 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def messages_were(number: int) -> str:
    """The beginning of a sentence: "1 message was", "2,000 messages were"."""
    return "1 message was" if number == 1 else f"{count(number)} messages were"


def age(seconds: float) -> str:
    """A duration with a unit: 0.4 s, 12 s, 5 min, 3 h, 2 d."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def clock(timestamp_ns: int) -> str:
    """The local time of day, to the microsecond."""
    return datetime.fromtimestamp(timestamp_ns / 1e9).astimezone().strftime("%H:%M:%S.%f")


def printable_text(data: bytes) -> str | None:
    """The bytes as text; None if they are not printable UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(letter.isprintable() or letter in "\n\r\t" for letter in text) else None
