"""Options of every command: the bus and the output format. They may stand anywhere; the last one counts."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

import hawser

__all__ = [
    "chosen_url",
    "connect",
    "given_url",
    "queue_argument",
    "shared_options",
    "topic_argument",
    "version_option",
    "wants_json",
]

F = TypeVar("F", bound=Callable[..., Any])

_URL = "hawser.url"
_OUTPUT = "hawser.output"


def shared_options(function: F) -> F:
    """Add `--url` and `-o/--output` to a command."""
    url = click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=_remember(_URL),
        help="shm:// (this user's domain), shm:///directory, or hawser://host:port,... (a cluster); default: "
        "the variable HAWSER_URL.",
    )
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        expose_value=False,
        is_eager=True,
        callback=_remember(_OUTPUT),
        help="table for people (the default), json for programs.",
    )
    return url(output(function))


def _remember(place: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None:
            return
        context.meta[place] = value
        if place == _OUTPUT:
            # A command with an output option of its own takes this value as its default.
            context.default_map = {"bench": {"output": value}, **(context.default_map or {})}

    return callback


def version_option(function: F) -> F:
    """Add `--version`."""
    option: Callable[[F], F] = click.version_option(hawser.__version__, "--version", message="%(version)s")
    return option(function)


def given_url() -> str | None:
    """The URL on the command line, or None."""
    url: str | None = click.get_current_context().meta.get(_URL)
    return url


def chosen_url() -> str | None:
    """The URL on the command line, or that of the variable HAWSER_URL, or None."""
    return given_url() or os.environ.get("HAWSER_URL") or None


def wants_json() -> bool:
    """Whether `-o json` was given."""
    return bool(click.get_current_context().meta.get(_OUTPUT) == "json")


def connect(name: str | None = None) -> hawser.Bus:
    """Connect to the bus that the command line names."""
    return hawser.connect(chosen_url() or "shm://", name=name)


def topic_argument(function: F) -> F:
    """Add the argument NAME, a topic's name, completed from existing topics."""
    return _name_argument(function, lambda bus: bus.topics())


def queue_argument(function: F) -> F:
    """Add the argument NAME, a queue's name, completed from existing queues."""
    return _name_argument(function, lambda bus: bus.queues())


def _name_argument(function: F, names: Callable[[hawser.Bus], list[str]]) -> F:
    def existing(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            with hawser.connect(context.meta.get(_URL) or os.environ.get("HAWSER_URL") or "shm://") as bus:
                return [name for name in names(bus) if name.startswith(incomplete)]
        except hawser.HawserError:
            return []

    argument: Callable[[F], F] = click.argument("name", shell_complete=existing)
    return argument(function)
