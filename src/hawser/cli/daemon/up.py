"""`hawser up`: run a whole cluster in one process."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hawser.cli.daemon.node import announce
from hawser.cli.options import shared_options
from hawser.cli.output import notice

__all__ = ["up"]

_DEFAULT_LISTEN = "127.0.0.1:7400"


@click.command()
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Number of nodes.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="The directory of all data; default: a temporary directory, removed at the end.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help=f"Address of the first node; the others use the next ports. Default: {_DEFAULT_LISTEN}, or free "
    "ports if those are in use. Port 0 means any free ports.",
)
@click.option("--http", metavar="HOST:PORT", default="", help="Address of /livez, /readyz and /metrics.")
@shared_options
def up(nodes: int, directory: Path | None, listen: str | None, http: str) -> None:
    """Run a cluster on this machine: nodes, an operator and the metadata store, all in this process.

    Prints "ready hawser://..." when it serves. Ctrl-C and SIGTERM stop it.
    """
    from hawser.cluster.config import load
    from hawser.cluster.daemon import node_settings, run_daemon, set_up_logging
    from hawser.cluster.embedded import EmbeddedDaemon

    config = load(None, {"http": {"listen": http or None}})
    # Text for people, unless the environment sets the log.
    level = config.log.level if "HAWSER_LOG__LEVEL" in os.environ else "warning"
    set_up_logging(level, config.log.format if "HAWSER_LOG__FORMAT" in os.environ else "text")
    with _data_directory(directory) as place:
        run_daemon(
            lambda: EmbeddedDaemon(
                place,
                nodes,
                listen or _DEFAULT_LISTEN,
                any_port=listen is None,
                node_settings=node_settings(config),
            ),
            config.http.listen,
            announce,
        )


@contextmanager
def _data_directory(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="hawser-up-") as made:
        notice(f"the data is in {made}, which is removed at the end; give --dir to keep it")
        yield Path(made)
        notice(f"removed {made}")
