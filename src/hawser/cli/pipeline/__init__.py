"""`hawser pipeline`: the Spark pipelines."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["pipeline"]

_COMMANDS = {
    "run": ("hawser.cli.pipeline.run:run", "Land topics in tables, once or again and again."),
    "audit": ("hawser.cli.pipeline.audit:audit", "Say what became of every message, tier by tier."),
}


@click.group("pipeline", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def pipeline() -> None:
    """Run the data pipelines on Spark. They need `pip install 'hawser-bus[spark]'` and Java."""
