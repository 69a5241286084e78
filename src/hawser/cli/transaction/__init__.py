"""`hawser tx`: the commands for transactions."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["tx"]

_COMMANDS = {
    "list": ("hawser.cli.transaction.commands:list_transactions", "List unfinished transactions."),
    "show": ("hawser.cli.transaction.commands:show", "Show all details of a transaction."),
    "recover": ("hawser.cli.transaction.commands:recover", "List transactions that wait for a decision."),
    "commit": ("hawser.cli.transaction.commands:commit", "Commit a prepared transaction by hand."),
    "rollback": ("hawser.cli.transaction.commands:rollback", "Roll back a prepared transaction by hand."),
    "forget": ("hawser.cli.transaction.commands:forget", "Forget a decision that was made by hand."),
}


@click.group("tx", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def tx() -> None:
    """List, inspect and, if necessary, decide transactions of a cluster."""
