"""`hawser bench`: run the benchmarks and print figures, ratios to installed peers, and targets."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hawser.bench import PARTS, PEERS
from hawser.cli.options import given_url, shared_options, wants_json
from hawser.cli.output import Cell, Column, notice, print_json, print_table

if TYPE_CHECKING:
    from hawser.bench.plan import Plan
    from hawser.bench.report import Row

__all__ = ["bench"]

_MISSED = 1
_COLUMNS = (
    Column("figure"),
    Column("who"),
    Column("value", right=True),
    Column("ratio", right=True),
    Column("target"),
    Column("measured", right=True),
    Column("met"),
)
_COLORS = {"yes": "green", "no": "red"}


@click.command()
@click.option("--quick", is_flag=True, help="Use fewer messages and repeats; figures are less precise.")
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(PARTS), help="Measure only this part; repeatable."
)
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Compare only this peer; repeatable."
)
@click.option("--check", is_flag=True, help="Exit with 1 when a target is missed.")
@shared_options
def bench(quick: bool, parts: tuple[str, ...], peers: tuple[str, ...], check: bool) -> None:
    """Measure this machine: figures, ratios to installed peers, and targets.

    The benchmarks run in a temporary domain; --url names the directory in which it is created. Clusters keep
    their data on a disk, in the temporary directory if that is on one. Peers that are not installed are left
    out. With -o json each figure is one line with the machine and its load.
    """
    from hawser.bench.plan import Plan
    from hawser.bench.suite import run

    _warn_of_load()
    parent = (given_url() or "").removeprefix("shm://") or "/dev/shm"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hawser-bench-", dir=parent) as directory:
        plan = Plan(Path(directory), quick, frozenset(peers) or None, _progress())
        for row in run(plan, parts or PARTS):
            rows.append(row)
            if wants_json():
                _print_line(row, plan)
    if not wants_json():
        _print_table(rows)
    for note in dict.fromkeys(row.note for row in rows if row.note):
        notice(note)
    missed = [row.name for row in rows if row.missed]
    if missed:
        notice(f"targets missed: {'; '.join(missed)}")
    if check and missed:
        click.get_current_context().exit(_MISSED)


def _warn_of_load() -> None:
    """Warn of a busy machine: medians and turns compensate short disturbances, not lasting ones."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        notice(
            f"the load is {load:.1f} on {cores} cores, so ratios are unreliable; repeat it on a quiet machine"
        )


def _progress() -> Callable[[str], None]:
    """Show the current measurement in one line of standard error if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: click.echo(f"\r\033[K{text}", nl=False, err=True)


def _print_line(row: "Row", plan: "Plan") -> None:
    from hawser.bench.machine import describe

    print_json({**row.as_dict(), "quick": plan.quick, "repeats": plan.repeats, "machine": describe()})


def _print_table(rows: "list[Row]") -> None:
    from hawser.bench.machine import describe
    from hawser.bench.report import lines

    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    print_table(
        _COLUMNS,
        [
            [*texts, Cell(met, _COLORS[met]) if met in _COLORS else met]
            for row in rows
            for *texts, met in lines(row)
        ],
    )
    notice(", ".join(f"{name} {value}" for name, value in describe().items()))
