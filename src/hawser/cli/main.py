"""The root of the `hawser` command: which commands there are, and what a failure ends with.

Data goes to standard output, everything else to standard error. Exit codes: 0 ok, 1 failed, 2 usage,
3 not found, 4 unhealthy, 5 timeout, 6 permission, 7 in doubt or audit mismatch, 8 audit undecided,
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

# The first class that fits decides.
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
    "topic": ("hawser.cli.topic:topic", "List, look at, publish to and follow topics."),
    "queue": ("hawser.cli.queue:queue", "List, look at, put into and get from queues."),
    "tx": ("hawser.cli.transaction:tx", "List, look at and decide transactions."),
    "up": ("hawser.cli.daemon.up:up", "A whole cluster on this machine."),
    "node": ("hawser.cli.daemon.node:node", "Run a node of a cluster."),
    "operator": ("hawser.cli.daemon.node:operator", "Run an operator of a cluster."),
    "agent": ("hawser.cli.daemon.agent:agent", "Recover the dead of this host at once, record what it has."),
    "pipeline": ("hawser.cli.pipeline:pipeline", "Land topics in tables, with Spark."),
    "cluster": ("hawser.cli.cluster:cluster", "Look at a cluster, move leaders and replicas."),
    "log": ("hawser.cli.log:log", "Look at a node's log on disk and check it."),
    "config": ("hawser.cli.config:config", "What a configuration file may hold, and whether one is right."),
    "ps": ("hawser.cli.participants:ps", "Who takes part in what, alive or dead."),
    "reap": ("hawser.cli.participants:reap", "Recover the dead, remove what nobody can use any more."),
    "doctor": ("hawser.cli.doctor.command:doctor", "Check this host and the domain, or a cluster."),
    "bench": ("hawser.cli.bench:bench", "Measure this machine, with ratios to other buses."),
    "demo": ("hawser.demo.command:demo", "The whole path with everybody killed, and a proof."),
    "completion": ("hawser.cli.completion:completion", "Print the completion script of a shell."),
}


@click.group("hawser", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
@version_option
def root() -> None:
    """A crash-proof message bus.

    Topics and queues live in the shared memory of this host (shm://) or on the disks of several (hawser://).
    A process may be killed at any moment; nothing it was doing can harm the others.
    """


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its code."""
    _replace_closed_streams()
    signal.signal(signal.SIGTERM, _terminate)
    # A terminal that was closed; `nohup` has it ignored.
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
            f"{click.style('error:', fg='red')} {argument!r} is not UTF-8; names are", err=True, color=color
        )
        return 2
    except OSError as error:
        # Standard output on a full disk, or a file that the command reads or writes.
        discard_output()
        click.echo(f"{click.style('error:', fg='red')} {error}", err=True, color=color)
        return 1


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Leave topics in order when asked to end."""
    raise SystemExit(128 + number)
