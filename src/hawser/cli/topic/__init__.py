"""`hawser topic`: the commands for topics."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["topic"]

_COMMANDS = {
    "list": ("hawser.cli.topic.catalog:list_topics", "List topics with their counts."),
    "info": ("hawser.cli.topic.catalog:info", "Show all details of a topic."),
    "pub": ("hawser.cli.topic.pub:pub", "Publish, once or at a rate."),
    "echo": ("hawser.cli.topic.echo:echo", "Print the messages of a topic as they arrive."),
    "hz": ("hawser.cli.topic.rates:hz", "Measure the message rate."),
    "bw": ("hawser.cli.topic.rates:bw", "Measure the bandwidth."),
    "trace": (
        "hawser.cli.trace.command:trace_topic",
        "Print each operation on messages and its participant.",
    ),
    "record": ("hawser.cli.topic.record_replay:record", "Record a topic to a file or another bus."),
    "replay": ("hawser.cli.topic.record_replay:replay", "Publish recorded messages again."),
    "forget": ("hawser.cli.topic.catalog:forget", "Delete a saved position."),
    "delete": ("hawser.cli.topic.catalog:delete", "Delete a topic and its history."),
}


@click.group("topic", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def topic() -> None:
    """List, inspect, publish to and follow topics."""
