"""`hawser demo`."""

import random
import tempfile
from pathlib import Path

import click

import hawser
from hawser.cli.options import given_url, shared_options, wants_json
from hawser.cli.output import print_json

__all__ = ["demo"]

_NOT_PROVEN = 7


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.5), default=20, show_default=True, help="How long.")
@click.option("--publishers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--subscribers", type=click.IntRange(1, 64), default=6, show_default=True)
@click.option("--kills", type=click.IntRange(min=0), default=16, show_default=True, help="How many kill -9.")
@click.option("--messages", type=click.IntRange(min=1), help="End early, after the kills, at so many.")
@click.option(
    "--rate", type=click.FloatRange(min=1), default=10_000, show_default=True, help="Messages a second."
)
@click.option("--seed", type=int, help="Who is killed when; at random if not given.")
@shared_options
def demo(
    seconds: float,
    publishers: int,
    subscribers: int,
    kills: int,
    messages: int | None,
    rate: float,
    seed: int | None,
) -> None:
    """Publishers and subscribers on one topic, killed -9 and restarted at random, and the proof that
    received + missed = published for every one of them.

    Runs in a domain of its own unless --url is given. Exits with 0 only if everything is proven, with 7 if
    the books do not balance.
    """
    from hawser.cli.demo.display import print_books, showing
    from hawser.cli.demo.stage import Failure, Plan, Stage
    from hawser.cli.demo.verdict import prove

    chosen = random.randrange(1 << 32) if seed is None else seed
    plan = Plan(seconds, publishers, subscribers, kills, messages, rate, chosen)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hawser-demo-", dir=memory) as directory:
        url = given_url() or f"shm://{directory}/domain"
        with hawser.connect(url, name="hawser-demo") as bus:
            stage = Stage(plan, bus, Path(directory))
            try:
                with showing(stage) as show:
                    end = stage.perform(show)
                books = prove(stage, end)
            except Failure as failure:
                raise click.ClickException(f"{failure} (seed {chosen})") from None
            finally:
                stage.close()
    if wants_json():
        print_json({**books.as_dict(), "seed": chosen})
    else:
        print_books(books)
    if not books.proven:
        click.get_current_context().exit(_NOT_PROVEN)
