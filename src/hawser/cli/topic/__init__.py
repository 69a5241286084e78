"""`hawser topic`: the commands about topics."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["topic"]

_COMMANDS = {
    "list": ("hawser.cli.topic.catalog:list_topics", "Every topic with its counts."),
    "info": ("hawser.cli.topic.catalog:info", "Everything about one topic."),
    "pub": ("hawser.cli.topic.pub:pub", "Publish, once or at a rate."),
    "echo": ("hawser.cli.topic.echo:echo", "Print the messages of a topic as they come."),
    "hz": ("hawser.cli.topic.rates:hz", "How often messages come."),
    "bw": ("hawser.cli.topic.rates:bw", "How many bytes come."),
    "trace": ("hawser.cli.trace.command:trace_topic", "Print what happens to messages, and who does it."),
    "record": ("hawser.cli.topic.record_replay:record", "Record a topic to a file or another bus."),
    "replay": ("hawser.cli.topic.record_replay:replay", "Publish again what was recorded."),
    "forget": ("hawser.cli.topic.catalog:forget", "Drop a kept position."),
    "delete": ("hawser.cli.topic.catalog:delete", "Remove a topic and its history."),
}


@click.group("topic", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def topic() -> None:
    """List, look at, publish to and follow topics."""
