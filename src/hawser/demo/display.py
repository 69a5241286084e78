"""The output of the demo: a live view on a terminal, otherwise lines; at the end the tables of kills and
proofs."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from hawser.cli.output import Cell, Column, age, count, notice, print_table
from hawser.demo.orchestrator import Kill, Orchestrator
from hawser.demo.processes import Process
from hawser.demo.proof import Proof

__all__ = ["print_proofs", "showing", "view"]

_REDRAW_SECONDS: Final = 0.25
_LINE_SECONDS: Final = 5.0
_BAR_WIDTH: Final = 40
_SHOWN: Final = 20


@contextmanager
def showing(orchestrator: Orchestrator) -> Iterator[Callable[[str], None]]:
    """A function that shows the current step; it may be called often."""
    if not sys.stderr.isatty():
        yield _Lines(orchestrator).show
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        next_time = 0.0

        def show(what: str) -> None:
            nonlocal next_time
            if time.monotonic() >= next_time:
                next_time = time.monotonic() + _REDRAW_SECONDS
                live.update(view(orchestrator, what), refresh=True)

        yield show


class _Lines:
    """Prints a line for each kill and each new step, and at intervals."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._next_time = 0.0
        self._what = ""
        self._told: set[tuple[int, bool]] = set()

    def show(self, what: str) -> None:
        orchestrator = self._orchestrator
        for place, kill in enumerate(orchestrator.kills):
            key = (place, kill.recovered_seconds is not None)
            if key not in self._told:
                self._told.add(key)
                notice(f"{orchestrator.elapsed_seconds:6.1f} s  {_told(kill)}")
        if what != self._what or time.monotonic() >= self._next_time:
            self._what, self._next_time = what, time.monotonic() + _LINE_SECONDS
            begun = [part for part in orchestrator.parts if part.gauge.value]
            reached = ", ".join(f"{count(part.gauge.value)} {part.verb}" for part in begun)
            notice(f"{orchestrator.elapsed_seconds:6.1f} s  {what}" + (f": {reached}" if reached else ""))


def _told(kill: Kill) -> str:
    if kill.recovered_seconds is None:
        return f"{_title(kill)} killed -9"
    return f"{_title(kill)} killed -9: {kill.sign} after {_seconds(kill)}"


def _title(kill: Kill) -> str:
    return kill.name if kill.name.startswith(kill.what) else f"{kill.what} {kill.name}"


def _seconds(kill: Kill) -> str:
    seconds = kill.recovered_seconds
    if seconds is None:
        return ""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def view(orchestrator: Orchestrator, what: str) -> Any:
    """The live view: the progress of each part, the processes, and the kills."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bars = Table.grid(padding=(0, 2))
    for part in orchestrator.parts:
        reached, total = part.gauge.value, part.expected
        bars.add_row(part.title, ProgressBar(total, min(reached, total), width=_BAR_WIDTH), count(reached))
    processes = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("process", "state", "run"):
        processes.add_column(title)
    for process in orchestrator.processes:
        processes.add_row(*_live_row(process))
    kills = Table.grid(padding=(0, 2))
    for kill in orchestrator.kills:
        text = "..." if kill.recovered_seconds is None else f"{kill.sign} after {_seconds(kill)}"
        kills.add_row(f"{kill.at_seconds:5.1f} s", Text(f"{_title(kill)} killed -9", style="red"), text)
    heading = Text(f"{orchestrator.elapsed_seconds:5.1f} s  {what}", style="bold")
    return Group(heading, Text(), bars, Text(), processes, Text(), kills)


def _live_row(process: Process) -> list[Any]:
    from rich.text import Text

    if process.alive:
        state = Text(f"pid {process.pid}", style="green")
    elif process.code == -signal.SIGKILL:
        state = Text("killed", style="red")
    else:
        state = Text("ended" if process.runs else "not yet", style="dim")
    return [process.name, state, str(process.runs)]


def print_proofs(proofs: Sequence[Proof], orchestrator: Orchestrator) -> None:
    """Print the kills and the proofs as tables."""
    columns = [
        Column("killed -9"),
        Column("at", right=True),
        Column("sign of recovery"),
        Column("after", right=True),
    ]
    rows: list[list[str | Cell]] = [
        [_title(kill), age(kill.at_seconds), kill.sign, _seconds(kill) or Cell("never", "red")]
        for kill in orchestrator.kills
    ]
    print_table(columns, rows)
    click.echo()
    titles = ("expected", "found", "lost", "duplicate", "damaged", "invented", "out of order")
    print_table(
        [Column("compared"), *(Column(title, right=True) for title in titles), Column("")],
        [_proof_row(proof) for proof in proofs],
    )
    click.echo()
    for proof in proofs:
        for text in proof.remarks:
            click.echo(text)
        for text in proof.contradictions[:_SHOWN]:
            click.echo(f"{click.style('contradiction:', fg='red')} {proof.title}: {text}")
    if all(proof.proven for proof in proofs):
        word = click.style("proven", fg="green", bold=True)
        click.echo(f"{word}: no message was lost or duplicated ({orchestrator.elapsed_seconds:.0f} s)")
    else:
        click.echo(click.style("not proven", fg="red", bold=True))


def _proof_row(proof: Proof) -> list[str | Cell]:
    faults = (proof.lost, proof.doubled, proof.damaged, proof.invented, proof.out_of_order)
    return [
        proof.title,
        count(proof.expected),
        count(proof.found),
        *(Cell(count(fault), "red") if fault else "0" for fault in faults),
        Cell("proven", "green") if proof.proven else Cell("not proven", "red"),
    ]
