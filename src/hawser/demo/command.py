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
    "--messages", type=click.IntRange(min=1000), default=200_000, show_default=True, help="At least so many."
)
@click.option("--publishers", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=40, show_default=True, help="How long they publish."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="Where logs, tables and the summary stay; an empty directory. Else all is removed at the end.",
)
@click.option("--seed", type=int, help="Who is killed; at random if not given.")
@shared_options
def demo(messages: int, publishers: int, seconds: float, directory: Path | None, seed: int | None) -> None:
    """The whole path: publishers in shared memory, the agent, a cluster of three nodes, transactions, the
    landing pipeline on Spark, tables, totals written back to a topic, and an audit of all that. Publishers,
    the agent, the operator, the leader, the workers and both Spark drivers are killed -9 on the way; then
    what has come of every message is compared with what its publisher was told, part by part.

    Exits with 0 only if everything is proven, with 7 if the books do not balance.
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
    """What has to be fast, and is of no use afterwards."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hawser-demo-", dir=shared) as made:
        yield Path(made)
