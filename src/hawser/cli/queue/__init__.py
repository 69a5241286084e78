"""`hawser queue`: the commands about queues."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["queue"]

_COMMANDS = {
    "list": ("hawser.cli.queue.catalog:list_queues", "Every queue with its counts."),
    "info": ("hawser.cli.queue.catalog:info", "Everything about one queue."),
    "put": ("hawser.cli.queue.put:put", "Put messages, once or at a rate."),
    "get": ("hawser.cli.queue.get:get", "Print messages, and accept them."),
    "peek": ("hawser.cli.queue.get:peek", "Print messages, and leave them."),
    "trace": ("hawser.cli.trace.command:trace_queue", "Print what happens to messages, and who does it."),
    "retry": ("hawser.cli.queue.catalog:retry", "Move dead letters back."),
    "forget": ("hawser.cli.queue.catalog:forget", "End a recording for good."),
    "delete": ("hawser.cli.queue.catalog:delete", "Remove a queue and its messages."),
}


@click.group("queue", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def queue() -> None:
    """List, look at, put into and get from queues."""
