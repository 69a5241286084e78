"""`hawser demo`."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import exit_with, notice, print_json

__all__ = ["demo"]

_NOT_PROVEN = 7


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(min=1000),
    default=200_000,
    show_default=True,
    help="Minimum number of messages.",
)
@click.option(
    "--publishers", type=click.IntRange(1, 16), default=3, show_default=True, help="Number of publishers."
)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=40, show_default=True, help="Seconds of publishing."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="An empty directory for logs, tables and the report; default: a temporary directory.",
)
@click.option("--seed", type=int, help="Selects the processes to kill; default: random.")
@shared_options
def demo(messages: int, publishers: int, seconds: float, directory: Path | None, seed: int | None) -> None:
    """Run the whole path: publishers in shared memory, the agent, a cluster of three nodes, transactions, the
    landing pipeline on Spark, tables, totals written back to a topic, and an audit. Kill -9 publishers, the
    agent, the operator, the leader, the workers and both Spark drivers on the way. Then compare every message
    with the receipt of its publisher, part by part.

    Exits with 0 if every comparison holds, and with 7 otherwise.
    """
    from hawser.demo.display import print_proofs, showing
    from hawser.demo.orchestrator import Orchestrator
    from hawser.demo.parts.part import Plan
    from hawser.demo.processes import Failure
    from hawser.spark.requirements import check_packages
    from hawser.spark.runtime.java import find_java

    check_packages()
    find_java()
    plan = Plan(messages, publishers, seconds, random.randrange(1 << 32) if seed is None else seed)
    with _place(directory) as place, _memory() as memory:
        orchestrator = Orchestrator(plan, place, memory)
        try:
            with showing(orchestrator) as show:
                orchestrator.run(show)
        except Failure as failure:
            raise click.ClickException(f"{failure} (seed {plan.seed})") from None
        finally:
            orchestrator.close()
        proven = all(proof.proven for proof in orchestrator.proofs)
        with exit_with(0 if proven else _NOT_PROVEN):
            if wants_json():
                found: dict[str, Any] = {
                    "proven": proven,
                    "seconds": orchestrator.elapsed_seconds,
                    "seed": plan.seed,
                }
                found["proofs"] = [proof.as_dict() for proof in orchestrator.proofs]
                found["kills"] = [kill.as_dict() for kill in orchestrator.kills]
                found["report"] = (
                    None if directory is None else str(orchestrator.environment.audit / "audit.html")
                )
                print_json(found)
            else:
                print_proofs(orchestrator.proofs, orchestrator)
            if directory is not None:
                report = orchestrator.environment.audit / "audit.html"
                notice(f"logs and tables are in {directory}; the report: {report}")


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="hawser-demo-") as made:
            yield Path(made)
        return
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty; name another directory, or remove it")
    yield directory.resolve()


@contextmanager
def _memory() -> Iterator[Path]:
    """A temporary directory in shared memory, for the domain and the ledgers."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hawser-demo-", dir=shared) as made:
        yield Path(made)
