"""`hawser bench`: the benchmarks, with ratios to the peers that are installed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hawser.bench import PARTS, PEERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hawser.bench.plan import Plan
    from hawser.bench.report import Row


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages and repeats; figures are rougher.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part; repeatable.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Only this peer; repeatable.")
@click.option("--check", is_flag=True, help="Exit with 1 when a target is missed.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def bench(quick: bool, parts: tuple[str, ...], peers: tuple[str, ...], check: bool, output: str) -> None:
    """Measure this machine: figures, ratios to the peers that are installed, and the targets.

    Everything happens in a domain of its own, which is gone afterwards. Peers that are not installed are
    left out. With `-o json` every figure is one line, with the machine and its load.
    """
    from hawser.bench.plan import Plan
    from hawser.bench.run import run

    memory = Path("/dev/shm")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hawser-bench-", dir=memory) as directory:
        plan = Plan(Path(directory), quick, frozenset(peers) or None, _progress())
        for row in run(plan, parts or PARTS):
            rows.append(row)
            if output == "json":
                _print_line(row, plan)
    if output == "table":
        _print_table(rows)
    missed = [row.name for row in rows if row.missed]
    if check and missed:
        raise click.ClickException(f"targets missed: {'; '.join(missed)}")


def _progress() -> Callable[[str], None]:
    """Say on standard error what is being measured, on one line, if somebody is watching."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: click.echo(f"\r\033[K{text}", nl=False, err=True)


def _print_line(row: Row, plan: Plan) -> None:
    import msgspec

    from hawser.bench.machine import describe

    line = {**row.as_dict(), "quick": plan.quick, "repeats": plan.repeats, "machine": describe()}
    click.echo(msgspec.json.encode(line).decode())


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console

    from hawser.bench.machine import describe
    from hawser.bench.report import table

    console = Console()
    console.print(table(rows))
    machine = describe()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
