"""`hawser pipeline`: the commands for pipelines on Spark."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["pipeline"]

_COMMANDS = {
    "run": ("hawser.cli.pipeline.run:run", "Land topics in tables, once or repeatedly."),
    "audit": ("hawser.cli.pipeline.audit:audit", "Compare every message in all tiers."),
}


@click.group("pipeline", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def pipeline() -> None:
    """Run data pipelines on Spark. They need `pip install 'hawser-bus[spark]'` and Java."""
