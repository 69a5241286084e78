"""`hawser node` and `hawser operator`: run a daemon of a cluster in the foreground. Options of every
daemon."""

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
    """Add the options of every daemon: configuration file, HTTP address, log level and format."""
    config = click.option(
        "--config",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A TOML file; HAWSER_SECTION__KEY variables and flags override it.",
    )
    http = click.option(
        "--http", metavar="HOST:PORT", help="Address of /livez, /readyz and /metrics; default: none."
    )
    level = click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
    style = click.option(
        "--log-format", type=click.Choice(["json", "text"]), help="Format of the log on standard error."
    )
    return config(http(level(style(shared_options(function)))))


@click.command()
@click.option(
    "--id",
    "name",
    metavar="ID",
    help="The node's id: characters a-z, A-Z, 0-9, - and _; the same at every start.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address for clients, operators and nodes; default 127.0.0.1:7400."
)
@click.option("--dir", "directory", metavar="D", help="The directory of its logs; for this node alone.")
@daemon_options
def node(name: str | None, listen: str | None, directory: str | None, **options: Any) -> None:
    """Run a node: it stores replicas of shards on its disk and serves clients.

    Prints "ready ID HOST:PORT" when it serves. On SIGTERM it transfers leadership to other nodes, then stops;
    a second SIGTERM stops it at once.
    """
    from hawser.cluster.daemon import NodeDaemon

    run_configured(NodeDaemon, {"node": {"id": name, "listen": listen, "dir": directory}}, **options)


@click.command()
@click.option("--metadata", metavar="URL", help="The metadata store: sqlite:PATH or etcd://HOST:PORT.")
@click.option(
    "--node", "nodes", metavar="ID=HOST:PORT", multiple=True, help="Id and address of a node; repeatable."
)
@click.option("--name", help="The operator's name in logs; need not be unique.")
@daemon_options
def operator(metadata: str | None, nodes: tuple[str, ...], name: str | None, **options: Any) -> None:
    """Run an operator: it starts leader elections, places replicas and executes the orders of `hawser
    cluster`.

    Prints "ready NAME of cluster ID" when it serves. Several operators of one cluster share its metadata
    store.
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
    """Run a daemon until it is stopped, configured by the options of `daemon_options` and these flags."""
    from hawser.cluster.config import load
    from hawser.cluster.daemon import run_daemon, set_up_logging

    flags = {**flags, "http": {"listen": http}, "log": {"level": log_level, "format": log_format}}
    config = load(file, flags)
    set_up_logging(config.log.level, config.log.format)
    run_daemon(lambda: make(config), config.http.listen, announce)


def announce(text: str) -> None:
    """Print the one line on standard output that says that the daemon serves. The daemon continues if the
    line cannot be written."""
    try:
        if wants_json():
            print_json({"ready": text})
        else:
            click.echo(f"ready {text}")
    except OSError:
        discard_output()
