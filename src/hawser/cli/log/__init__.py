"""`hawser log`: the commands for a node's log on disk."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["log"]

_COMMANDS = {
    "scan": ("hawser.cli.log.commands:scan", "Print the entries of a log."),
    "verify": ("hawser.cli.log.commands:verify", "Check every byte of a log."),
}


@click.group("log", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def log() -> None:
    """Inspect and check a node's log on disk, without changing it. The node must not run."""
