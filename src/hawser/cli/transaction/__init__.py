"""`hawser tx`: the commands about transactions."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["tx"]

_COMMANDS = {
    "list": ("hawser.cli.transaction.commands:list_transactions", "Every transaction that is not over."),
    "show": ("hawser.cli.transaction.commands:show", "Everything about one transaction."),
    "recover": ("hawser.cli.transaction.commands:recover", "Those that wait for a decision."),
    "commit": ("hawser.cli.transaction.commands:commit", "Commit one that waits, by hand."),
    "rollback": ("hawser.cli.transaction.commands:rollback", "Roll one back that waits, by hand."),
    "forget": ("hawser.cli.transaction.commands:forget", "Forget what was decided by hand."),
}


@click.group("tx", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def tx() -> None:
    """List, look at and, if need be, decide transactions of a cluster."""
