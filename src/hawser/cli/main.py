"""The root of the `hawser` command: the table of commands, and the exit code of each error.

Data goes to standard output, everything else to standard error. Exit codes: 0 ok, 1 failed, 2 usage,
3 not found, 4 unhealthy, 5 timeout, 6 permission, 7 outcome unknown or audit mismatch, 8 audit undecided,
130 interrupted.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from hawser import errors
from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options, version_option
from hawser.cli.output import discard_output

__all__ = ["main"]

# The first matching class decides.
_EXIT_CODES: tuple[tuple[type[errors.HawserError], int], ...] = (
    (errors.UsageError, 2),
    (errors.SettingsMismatch, 2),
    (errors.OffsetOutOfRange, 2),
    (errors.NotFound, 3),
    (errors.Corrupt, 4),
    (errors.Unavailable, 4),
    (errors.Timeout, 5),
    (errors.PermissionDenied, 6),
    (errors.OutcomeUnknown, 7),
    (errors.HawserError, 1),
)
_INTERRUPTED = 130
_COMMANDS = {
    "topic": ("hawser.cli.topic:topic", "List, inspect, publish to and follow topics."),
    "queue": ("hawser.cli.queue:queue", "List, inspect, put into and get from queues."),
    "tx": ("hawser.cli.transaction:tx", "List, inspect and decide transactions."),
    "up": ("hawser.cli.daemon.up:up", "Run a whole cluster on this machine."),
    "node": ("hawser.cli.daemon.node:node", "Run a node of a cluster."),
    "operator": ("hawser.cli.daemon.node:operator", "Run an operator of a cluster."),
    "agent": ("hawser.cli.daemon.agent:agent", "Recover dead processes of this host and record its topics."),
    "pipeline": ("hawser.cli.pipeline:pipeline", "Land topics in tables, with Spark."),
    "cluster": ("hawser.cli.cluster:cluster", "Inspect a cluster, move leaders and replicas."),
    "log": ("hawser.cli.log:log", "Inspect and check a node's log on disk."),
    "config": ("hawser.cli.config:config", "Describe and check configuration files."),
    "ps": ("hawser.cli.participants:ps", "List participants of topics and queues, alive or dead."),
    "reap": ("hawser.cli.participants:reap", "Recover dead participants and remove leftover files."),
    "doctor": ("hawser.cli.doctor.command:doctor", "Check this host and its domain, or a cluster."),
    "bench": ("hawser.cli.bench:bench", "Measure this machine, with ratios to other buses."),
    "demo": (
        "hawser.demo.command:demo",
        "Run the whole path, kill every process, verify the result.",
    ),
    "completion": ("hawser.cli.completion:completion", "Print the completion script of a shell."),
}


@click.group("hawser", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
@version_option
def root() -> None:
    """A crash-proof message bus.

    Topics and queues live in the shared memory of this host (shm://) or on the disks of several (hawser://).
    A process may be killed at any moment without harm to the others.
    """


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its code."""
    _replace_closed_streams()
    signal.signal(signal.SIGTERM, _terminate)
    # SIGHUP arrives when the terminal closes; `nohup` sets it to be ignored.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminate)
    try:
        code = _run()
    finally:
        # Python would exit with 120 if it could not flush standard output.
        discard_output()
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Replace standard streams that were closed before the process started, which Python sets to None.
    Reading standard input or writing standard output then fails as on any closed file, and standard error is
    discarded."""
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def _run() -> int:
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = root.main(prog_name="hawser", standalone_mode=False, color=color)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except errors.HawserError as error:
        click.echo(f"{click.style('error:', fg='red')} {error}", err=True, color=color)
        return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))
    except (KeyboardInterrupt, click.Abort):
        discard_output()
        return _INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return 0
    except UnicodeEncodeError as error:
        argument = error.object.encode(errors="surrogateescape")
        click.echo(
            f"{click.style('error:', fg='red')} {argument!r} is not UTF-8; names must be",
            err=True,
            color=color,
        )
        return 2
    except OSError as error:
        # Standard output is on a full disk, or a file cannot be read or written.
        discard_output()
        click.echo(f"{click.style('error:', fg='red')} {error}", err=True, color=color)
        return 1


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Turn the signal into SystemExit, so that topics are closed in order."""
    raise SystemExit(128 + number)
