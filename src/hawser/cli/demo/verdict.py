"""The proof of the demo: what the publishers were told against what is in the tables, message by message.

A row of the table says by its producer and sequence which sample of the region it was, and its value says
which message of which run of which publisher. So three tellings of one story are compared: the receipts, the
samples and the rows.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hawser.cli.demo.payload import read_payload

__all__ = ["Books", "Row", "Run", "prove"]

_SHOWN = 5


class Run(NamedTuple):
    """One run of a publisher: the offsets it was told, and whether it was killed."""

    name: str
    publisher: int
    run: int
    receipts: Sequence[int]
    killed: bool


class Row(NamedTuple):
    """A row of the raw table, in the order of the log."""

    producer: str
    sequence: int
    value: bytes


class Books:
    """Everything counted, and every contradiction found. Proven means there is none."""

    def __init__(self, published: int) -> None:
        self.published = published
        self.receipts = 0
        self.landed = 0
        self.lost = 0
        self.doubled = 0
        self.damaged = 0
        self.invented = 0
        self.out_of_order = 0
        self.without_receipt = 0
        self.contradictions: list[str] = []

    @property
    def proven(self) -> bool:
        return not self.contradictions

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.contradictions.append(otherwise)

    def as_dict(self) -> dict[str, Any]:
        return {"proven": self.proven, **vars(self)}


def prove(runs: Iterable[Run], published: int, producer: str, rows: Sequence[Row]) -> Books:
    """Compare. `published` is how many samples the region has had; `producer` is the recorder's name."""
    books = Books(published)
    books.landed = len(rows)
    mine = [row for row in rows if row.producer == producer]
    times = Counter(row.sequence for row in mine)
    lost = [offset for offset in range(1, published + 1) if offset not in times]
    doubled = {offset: count for offset, count in times.items() if count > 1}
    beyond = [offset for offset in times if not 0 < offset <= published]
    books.lost = len(lost)
    books.doubled = sum(doubled.values()) - len(doubled)
    books.invented = len(rows) - len(mine) + len(beyond)
    books.out_of_order = sum(b.sequence < a.sequence for a, b in pairwise(mine))
    books.require(not lost, f"{len(lost)} messages are in no table: {_some(lost)}")
    books.require(not doubled, f"{books.doubled} messages are there twice: {_some(sorted(doubled))}")
    books.require(books.invented == 0, f"{books.invented} rows were never published: {_some(beyond)}")
    books.require(books.out_of_order == 0, f"{books.out_of_order} rows come before one that is older")
    _prove_runs(runs, _contents(mine, books), books)
    return books


def _contents(rows: Iterable[Row], books: Books) -> dict[tuple[int, int], dict[int, int]]:
    """(publisher, run): message number -> offset in the region."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    damaged: list[int] = []
    repeated: list[int] = []
    for row in rows:
        origin = read_payload(row.value)
        if origin is None:
            damaged.append(row.sequence)
            continue
        offsets = found.setdefault((origin.publisher, origin.run), {})
        if offsets.setdefault(origin.number, row.sequence) != row.sequence:
            repeated.append(row.sequence)
    books.damaged = len(damaged)
    books.doubled += len(repeated)
    books.require(not damaged, f"{len(damaged)} rows are not what a publisher wrote: {_some(damaged)}")
    books.require(not repeated, f"{len(repeated)} rows say what another one says: {_some(repeated)}")
    return found


def _prove_runs(runs: Iterable[Run], contents: dict[tuple[int, int], dict[int, int]], books: Books) -> None:
    for run in runs:
        landed = contents.pop((run.publisher, run.run), {})
        title = f"{run.name}, run {run.run}"
        books.receipts += len(run.receipts)
        told = dict(enumerate(run.receipts))
        differing = [number for number, offset in told.items() if landed.get(number) != offset]
        text = f"{title}: {len(differing)} messages are not where their receipts say: {_some(differing)}"
        books.require(not differing, text)
        untold = sorted(landed.keys() - told.keys())
        books.without_receipt += len(untold)
        # A publisher that is killed may have published one message and not have noted it.
        expected = [] if not untold or not run.killed else [len(told)]
        books.require(untold == expected, f"{title}: messages without a receipt: {_some(untold)}")
    books.require(not contents, f"messages of runs that never were: {_some(sorted(contents))}")


def _some(found: Sequence[object]) -> str:
    shown = ", ".join(map(str, found[:_SHOWN]))
    return f"{shown}, ..." if len(found) > _SHOWN else shown
