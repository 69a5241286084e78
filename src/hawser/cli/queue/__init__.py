"""`hawser queue`: the commands for queues."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["queue"]

_COMMANDS = {
    "list": ("hawser.cli.queue.catalog:list_queues", "List queues with their counts."),
    "info": ("hawser.cli.queue.catalog:info", "Show all details of a queue."),
    "put": ("hawser.cli.queue.put:put", "Put messages, once or at a rate."),
    "get": ("hawser.cli.queue.get:get", "Print messages, and accept them."),
    "peek": ("hawser.cli.queue.get:peek", "Print messages without accepting them."),
    "trace": (
        "hawser.cli.trace.command:trace_queue",
        "Print each operation on messages and its participant.",
    ),
    "retry": ("hawser.cli.queue.catalog:retry", "Move dead letters back to the queue."),
    "forget": ("hawser.cli.queue.catalog:forget", "Release a queue from its recorder."),
    "delete": ("hawser.cli.queue.catalog:delete", "Delete a queue and its messages."),
}


@click.group("queue", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def queue() -> None:
    """List, inspect, put into and get from queues."""
