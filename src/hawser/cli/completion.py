"""`hawser completion`: a shell script that completes commands, options, topics and queues."""

import click

from hawser.cli.options import shared_options

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared_options
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(hawser completion bash)"        in ~/.bashrc
    zsh:   eval "$(hawser completion zsh)"         in ~/.zshrc
    fish:  hawser completion fish > ~/.config/fish/completions/hawser.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    command = click.get_current_context().find_root().command
    click.echo(made(command, {}, "hawser", "_HAWSER_COMPLETE").source())
