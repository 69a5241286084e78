"""`hawser config`: the schema of configuration files, and a check of one file."""

from pathlib import Path

import click
import msgspec

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import notice, print_json

__all__ = ["check", "config", "schema"]

_COMMANDS = {
    "schema": ("hawser.cli.config:schema", "Print the JSON schema of configuration files."),
    "check": ("hawser.cli.config:check", "Check a configuration file."),
}


@click.group("config", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def config() -> None:
    """Describe and check the configuration of nodes and operators."""


@click.command()
@shared_options
def schema() -> None:
    """Print the JSON schema of configuration files."""
    from hawser.cluster.config import schema as published

    click.echo(msgspec.json.format(msgspec.json.encode(published()), indent=2).decode())


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@shared_options
def check(file: Path) -> None:
    """Load FILE as a daemon does, with the variables of this environment. Exits with 2 if it is invalid."""
    from hawser.cluster.config import load

    found = load(file, {})
    if wants_json():
        print_json(found)
    else:
        notice(f"{file} is valid")
