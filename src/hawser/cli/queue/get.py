"""`hawser queue get` and `hawser queue peek`: print messages and accept them, or leave them."""

import sys
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import click

import hawser
from hawser.api.message import Disposition
from hawser.cli.options import connect, queue_argument, shared_options
from hawser.cli.output import notice
from hawser.cli.topic.echo import wait_until_exists
from hawser.cli.values import Writer, printing_options, writer

__all__ = ["get", "peek"]

# Messages settled together: enough to be cheap, few enough to leave some for other consumers.
_MOST_TOGETHER: Final = 32


@click.command()
@queue_argument
@click.option("--count", "times", type=click.IntRange(min=1), help="Number of messages; default 1.")
@click.option(
    "--follow", is_flag=True, help="Run until interrupted, and wait for a queue that does not exist yet."
)
@click.option("--timeout", type=float, help="Exit with code 5 after this many seconds without a message.")
@click.option("--release", is_flag=True, help="Release the messages at the end instead of accepting them.")
@click.option(
    "--reject",
    is_flag=True,
    help="Reject the messages, which become dead letters, instead of accepting them.",
)
@click.option("--dead", is_flag=True, help="Get the dead letters of the queue.")
@click.option("--name", "participant", help="The consumer's name.")
@printing_options
@shared_options
def get(
    name: str,
    times: int | None,
    follow: bool,
    timeout: float | None,
    release: bool,
    reject: bool,
    dead: bool,
    participant: str | None,
    **form: Any,
) -> None:
    """Print messages of a queue, and accept each after it is written to standard output.

    If the command dies earlier, another consumer gets the message.

    \b
    --format:  %o offset    %t time of day   %T nanoseconds      %p producer   %k key
               %h headers   %s size          %d deliveries       %v payload    %x in hexadecimal
               %% percent   \\n newline       \\t tab
    """
    if follow and times is not None:
        raise click.UsageError("Give one of --count and --follow.")
    if release and (reject or follow):
        raise click.UsageError("--release cannot be combined with --reject or --follow.")
    disposition: Disposition = "release" if release else "reject" if reject else "accept"
    printer = _Printer(writer({"queue": name}, **form), disposition, timeout)
    with connect(participant) as bus:
        if follow:
            _follow(bus, name, dead, printer)
        with bus.queue(name, create=False) as queue, _source_queue(bus, queue, dead, timeout) as chosen:
            printer.print(chosen, times or 1)


def _follow(bus: hawser.Bus, name: str, dead: bool, printer: "_Printer") -> NoReturn:
    while True:
        try:
            opened = wait_until_exists(
                f"queue {name!r}", bus, lambda: bus.queue(name, create=False), printer.timeout
            )
            with opened as queue, _source_queue(bus, queue, dead, printer.timeout) as chosen:
                printer.print(chosen, None)
        except hawser.Closed:
            notice(f"queue {name!r} was deleted")
        except hawser.Fenced as error:
            notice(f"printed, but not settled: {error}")


def _source_queue(
    bus: hawser.Bus, queue: "hawser.Queue[Any]", dead: bool, timeout: float | None
) -> "hawser.Queue[Any]":
    """The queue, or with `dead` its dead letters, once there are some."""
    if not dead:
        return queue
    look = partial(queue.dead_letters, create=False)
    return wait_until_exists(f"dead letter of queue {queue.name!r}", bus, look, timeout)


class _Printer(NamedTuple):
    """Prints messages, and settles them after they are written. Messages that are not settled are released
    when the queue is closed."""

    write: Writer
    disposition: Disposition
    timeout: float | None

    def print(self, queue: "hawser.Queue[Any]", times: int | None) -> None:
        """Print `times` messages, or without end; Timeout if none arrives in time."""
        schema = str(queue.info().settings["schema"])
        output = sys.stdout.buffer
        held: list[hawser.Messages] = []
        while times is None or times > 0:
            together = queue.get_many(min(times or _MOST_TOGETHER, _MOST_TOGETHER), self.timeout)
            if not together:
                raise hawser.Timeout(f"no message of queue {queue.name!r} within {self.timeout:g} s")
            for message in together:
                output.write(self.write(message, schema))
            output.flush()
            match self.disposition:
                case "accept":
                    together.accept()
                case "reject":
                    together.reject()
                case "release":
                    # Released now, they would be delivered again.
                    held.append(together)
            times = None if times is None else times - len(together)


@click.command()
@queue_argument
@click.option(
    "--count", type=click.IntRange(min=1), default=10, show_default=True, help="Print at most this many."
)
@click.option("--dead", is_flag=True, help="Print the dead letters of the queue.")
@printing_options
@shared_options
def peek(name: str, count: int, dead: bool, **form: Any) -> None:
    """Print the oldest messages of a queue, held or not, without changing the queue.

    --format is as in `hawser queue get`, without %d.
    """
    write = writer({"queue": name}, **form)
    with connect() as bus, bus.queue(name, create=False) as queue:
        schema = str(queue.info().settings["schema"])
        found = _peek_dead_letters(queue, count) if dead else queue.peek(count)
    for sample in found:
        sys.stdout.buffer.write(write(sample, schema))
    sys.stdout.buffer.flush()
    if not found:
        notice(f"queue {name!r} has no dead letters" if dead else f"queue {name!r} is empty")


def _peek_dead_letters(queue: "hawser.Queue[Any]", count: int) -> "list[hawser.Sample]":
    try:
        return queue.dead_letters(create=False).peek(count)
    except hawser.NotFound:
        return []
