"""`hawser demo`."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import notice, print_json

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
    """The whole path: publishers in shared memory, the agent, a cluster of three nodes, the landing pipeline
    on Spark, tables. Publishers, the agent, the leader and the Spark driver are killed -9 on the way, and
    what the publishers were told is compared with what is in the tables.

    Exits with 0 only if everything is proven, with 7 if the books do not balance.
    """
    from hawser.cli.demo.display import print_books, showing
    from hawser.cli.demo.processes import Failure
    from hawser.cli.demo.stage import Plan, Stage
    from hawser.cli.demo.verdict import prove
    from hawser.spark.java import find_java
    from hawser.spark.requirements import check_packages

    check_packages()
    find_java()
    plan = Plan(messages, publishers, seconds, random.randrange(1 << 32) if seed is None else seed)
    with _place(directory) as place, _memory() as memory:
        stage = Stage(plan, place, memory)
        try:
            with showing(stage) as show:
                stage.perform(show)
            end = stage.topic.info()
            books = prove(stage.runs(), end.head, stage.producer, stage.rows())
            books.require(end.slots_leaked == 0, f"{end.slots_leaked} slots of the region are leaked")
            for kill in stage.kills:
                books.require(kill.recovered_seconds is not None, f"{kill.name} did not recover")
        except Failure as failure:
            raise click.ClickException(f"{failure} (seed {plan.seed})") from None
        finally:
            stage.close()
        kills = [kill.as_dict() for kill in stage.kills]
        if wants_json():
            print_json({**books.as_dict(), "kills": kills, "seed": plan.seed})
        else:
            print_books(books, stage)
        if directory is not None:
            notice(f"logs and tables are in {directory}, a summary in {stage.landing / 'summary.html'}")
    if not books.proven:
        click.get_current_context().exit(_NOT_PROVEN)


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
