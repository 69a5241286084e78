"""`hawser queue get` and `hawser queue peek`: the messages of a queue, taken away or left."""

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

# Settled together: large enough to be cheap, small enough that others get some, too.
_MOST_TOGETHER: Final = 32


@click.command()
@queue_argument
@click.option("--count", "times", type=click.IntRange(min=1), help="How many messages, 1 if not given.")
@click.option("--follow", is_flag=True, help="Until interrupted; waits for a queue that is not there, too.")
@click.option("--timeout", type=float, help="End with code 5 when nothing comes for so many seconds.")
@click.option("--release", is_flag=True, help="Give them back at the end, instead of accepting them.")
@click.option("--reject", is_flag=True, help="Make dead letters of them, instead of accepting them.")
@click.option("--dead", is_flag=True, help="Get its dead letters.")
@click.option("--name", "participant", help="The name to get under.")
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
    """Print messages of a queue; each is accepted once it is written out.

    If this command dies before that, another consumer gets them.

    \b
    --format:  %o offset    %t time of day   %T nanoseconds      %p producer   %k key
               %h headers   %s size          %d deliveries       %v payload    %x in hexadecimal
               %% percent   \\n newline       \\t tab
    """
    if follow and times is not None:
        raise click.UsageError("Give one of --count and --follow.")
    if release and (reject or follow):
        raise click.UsageError("--release gives back at the end; it goes with neither --reject nor --follow.")
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
            notice(f"printed, and not settled: {error}")


def _source_queue(
    bus: hawser.Bus, queue: "hawser.Queue[Any]", dead: bool, timeout: float | None
) -> "hawser.Queue[Any]":
    """The queue, or its dead letters as soon as there are some."""
    if not dead:
        return queue
    look = partial(queue.dead_letters, create=False)
    return wait_until_exists(f"dead letter of queue {queue.name!r}", bus, look, timeout)


class _Printer(NamedTuple):
    """Messages are printed, and settled so once they are written out. What is not settled, for whatever
    reason, is given back when the queue is closed."""

    write: Writer
    disposition: Disposition
    timeout: float | None

    def print(self, queue: "hawser.Queue[Any]", times: int | None) -> None:
        """So many messages, or for ever; Timeout when none comes in time."""
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
                    # Given back now, they would come again.
                    held.append(together)
            times = None if times is None else times - len(together)


@click.command()
@queue_argument
@click.option("--count", type=click.IntRange(min=1), default=10, show_default=True, help="How many at most.")
@click.option("--dead", is_flag=True, help="Look at its dead letters.")
@printing_options
@shared_options
def peek(name: str, count: int, dead: bool, **form: Any) -> None:
    """Print the oldest messages of a queue, held by somebody or not; nothing changes.

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
