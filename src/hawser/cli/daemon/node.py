"""`hawser node` and `hawser operator`: the daemons of a cluster, in the foreground."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import discard_output, print_json

if TYPE_CHECKING:
    from hawser.cluster.config import Config
    from hawser.cluster.daemon import Daemon

__all__ = ["announce", "daemon_options", "node", "operator", "run_configured"]

F = TypeVar("F", bound=Callable[..., Any])


def daemon_options(function: F) -> F:
    """Add what every daemon takes: where its configuration, its pages and its log are."""
    config = click.option(
        "--config",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A TOML file; HAWSER_SECTION__KEY variables and flags count for more.",
    )
    http = click.option(
        "--http", metavar="HOST:PORT", help="Where /livez, /readyz and /metrics are; nowhere if not given."
    )
    level = click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
    style = click.option("--log-format", type=click.Choice(["json", "text"]), help="On standard error.")
    return config(http(level(style(shared_options(function)))))


@click.command()
@click.option("--id", "name", metavar="ID", help="Letters, digits, - and _; the same at every start.")
@click.option("--listen", metavar="HOST:PORT", help="For clients, operators and nodes. 127.0.0.1:7400")
@click.option("--dir", "directory", metavar="D", help="Where its logs are; no other node may use it.")
@daemon_options
def node(name: str | None, listen: str | None, directory: str | None, **options: Any) -> None:
    """Run a node: it keeps replicas of shards on its disk and serves clients.

    Prints "ready ID HOST:PORT" when it serves. SIGTERM hands over what it leads, then ends it; a second one
    ends it at once.
    """
    from hawser.cluster.daemon import NodeDaemon

    run_configured(NodeDaemon, {"node": {"id": name, "listen": listen, "dir": directory}}, **options)


@click.command()
@click.option(
    "--metadata", metavar="URL", help="Where it keeps its decisions: sqlite:PATH or etcd://HOST:PORT."
)
@click.option("--node", "nodes", metavar="ID=HOST:PORT", multiple=True, help="Of each node; repeatable.")
@click.option("--name", help="For logs; several operators of a cluster may have the same.")
@daemon_options
def operator(metadata: str | None, nodes: tuple[str, ...], name: str | None, **options: Any) -> None:
    """Run an operator: it has leaders elected, places replicas and does what `hawser cluster` asks for.

    Prints "ready NAME of cluster ID" when it works. Several may run for one cluster; they must share a
    metadata store.
    """
    from hawser.cluster.config import node_addresses
    from hawser.cluster.daemon import OperatorDaemon

    addresses = node_addresses(map(_node_address, nodes))
    given = {"metadata": metadata, "nodes": addresses or None, "name": name}
    run_configured(OperatorDaemon, {"operator": given}, **options)


def _node_address(text: str) -> tuple[str, str]:
    name, separator, address = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not ID=HOST:PORT, as in n1=10.0.0.1:7400", param_hint="--node")
    return name, address


def run_configured(
    make: "Callable[[Config], Daemon]",
    flags: dict[str, dict[str, Any]],
    file: Path | None,
    http: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run a daemon to its end, as the options of `daemon_options` and these flags say."""
    from hawser.cluster.config import load
    from hawser.cluster.daemon import run_daemon, set_up_logging

    flags = {**flags, "http": {"listen": http}, "log": {"level": log_level, "format": log_format}}
    config = load(file, flags)
    set_up_logging(config.log.level, config.log.format)
    run_daemon(lambda: make(config), config.http.listen, announce)


def announce(text: str) -> None:
    """Report that the daemon serves, in the first and only line on standard output. The daemon goes on if
    nothing reads it."""
    try:
        if wants_json():
            print_json({"ready": text})
        else:
            click.echo(f"ready {text}")
    except OSError:
        discard_output()
