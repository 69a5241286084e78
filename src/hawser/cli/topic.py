"""`hawser topic`: the commands about topics."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["topic"]

_COMMANDS = {
    "list": ("hawser.cli.topics:list_topics", "Every topic with its counts."),
    "info": ("hawser.cli.topics:info", "Everything about one topic."),
    "pub": ("hawser.cli.publishing:pub", "Publish, once or at a rate."),
    "echo": ("hawser.cli.following:echo", "Print the messages of a topic as they come."),
    "hz": ("hawser.cli.rates:hz", "How often messages come."),
    "bw": ("hawser.cli.rates:bw", "How many bytes come."),
    "trace": ("hawser.cli.tracing:trace_topic", "Print what happens to messages, and who does it."),
    "record": ("hawser.cli.carrying:record", "Record a topic to a file or another bus."),
    "replay": ("hawser.cli.carrying:replay", "Publish again what was recorded."),
    "forget": ("hawser.cli.topics:forget", "Drop a kept position."),
    "delete": ("hawser.cli.topics:delete", "Remove a topic and its history."),
}


@click.group("topic", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def topic() -> None:
    """List, look at, publish to and follow topics."""
