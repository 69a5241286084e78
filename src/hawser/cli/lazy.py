"""A command group that imports a command when it is run. `--help` lists commands without importing them."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import click

from hawser.cli.output import discard_output

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """`lazy_commands` maps a command's name to ("module:attribute", one line of help)."""

    def __init__(self, *arguments: Any, lazy_commands: dict[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy_commands:
            return None
        module, _, attribute = self._lazy_commands[cmd_name][0].partition(":")
        return cast("click.Command", getattr(import_module(module), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], self._lazy_commands, n=1)
        if near and near[0] != args[0] and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader closed the pipe, as `head` does; this is no failure.
            discard_output()
            ctx.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy_commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in self._lazy_commands.items()
            if name.startswith(incomplete)
        ]
        return commands + options
