"""`hawser queue`: the commands about queues."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["queue"]

_COMMANDS = {
    "list": ("hawser.cli.queues:list_queues", "Every queue with its counts."),
    "info": ("hawser.cli.queues:info", "Everything about one queue."),
    "put": ("hawser.cli.queue_putting:put", "Put messages, once or at a rate."),
    "get": ("hawser.cli.queue_getting:get", "Print messages, and accept them."),
    "peek": ("hawser.cli.queue_getting:peek", "Print messages, and leave them."),
    "trace": ("hawser.cli.tracing:trace_queue", "Print what happens to messages, and who does it."),
    "retry": ("hawser.cli.queues:retry", "Move dead letters back."),
    "forget": ("hawser.cli.queues:forget", "End a recording for good."),
    "delete": ("hawser.cli.queues:delete", "Remove a queue and its messages."),
}


@click.group("queue", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def queue() -> None:
    """List, look at, put into and get from queues."""
