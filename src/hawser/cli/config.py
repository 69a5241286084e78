"""`hawser config`: what a configuration file may hold, and whether one is right."""

from pathlib import Path

import click
import msgspec

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import notice, print_json

__all__ = ["check", "config", "schema"]

_COMMANDS = {
    "schema": ("hawser.cli.config:schema", "Everything a file may hold, as a JSON schema."),
    "check": ("hawser.cli.config:check", "Read a file and say what is wrong with it."),
}


@click.group("config", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def config() -> None:
    """The configuration of nodes and operators."""


@click.command()
@shared_options
def schema() -> None:
    """Everything a configuration file may hold, as a JSON schema."""
    from hawser.cluster.config import schema as published

    click.echo(msgspec.json.format(msgspec.json.encode(published()), indent=2).decode())


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared_options
def check(file: Path) -> None:
    """Read FILE as a daemon would, with the variables of this environment; exits with 2 if it is wrong."""
    from hawser.cluster.config import load

    found = load(file, {})
    if wants_json():
        print_json(found)
    else:
        notice(f"{file} is right")
