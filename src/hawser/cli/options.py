"""What every command takes: which domain, and how to print. Given anywhere on the line, the last one counts."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

import hawser

__all__ = ["NAME", "connect", "given_url", "shared_options", "version_option", "wants_json"]

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
        help="The domain: shm:// (this user's own) or shm:///directory.",
    )
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        expose_value=False,
        is_eager=True,
        callback=_remember(_OUTPUT),
        help="For people (the default) or for programs.",
    )
    return url(output(function))


def _remember(place: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None:
            return
        context.meta[place] = value
        if place == _OUTPUT:
            # A command with an output option of its own takes it as the default.
            context.default_map = {"bench": {"output": value}, **(context.default_map or {})}

    return callback


def version_option(function: F) -> F:
    """Add `--version`."""
    option: Callable[[F], F] = click.version_option(hawser.__version__, "--version", message="%(version)s")
    return option(function)


def given_url() -> str | None:
    """The URL on the command line, if there is one."""
    url: str | None = click.get_current_context().meta.get(_URL)
    return url


def wants_json() -> bool:
    """Whether output is for programs."""
    return bool(click.get_current_context().meta.get(_OUTPUT) == "json")


def connect(name: str | None = None) -> hawser.Bus:
    """The bus the command line asks for."""
    return hawser.connect(given_url() or "shm://", name=name)


class _TopicName(click.ParamType):
    """A topic's name, completed from those that exist."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with hawser.connect(ctx.meta.get(_URL) or "shm://") as bus:
                return [CompletionItem(name) for name in bus.topics() if name.startswith(incomplete)]
        except hawser.HawserError:
            return []


NAME = _TopicName()
