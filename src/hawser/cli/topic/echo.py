"""`hawser topic echo`, and waiting for a topic or queue that does not exist yet."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

import hawser
from hawser.cli.options import connect, shared_options, topic_argument
from hawser.cli.output import count, notice
from hawser.cli.values import Writer, printing_options, writer

__all__ = ["echo", "wait_for_topic", "wait_until_exists"]

Opened = TypeVar("Opened")

_LOOK_SECONDS = 0.1


def wait_for_topic(bus: hawser.Bus, name: str, timeout: float | None = None) -> "hawser.Topic[Any]":
    """The topic, once it exists; Timeout if it does not within `timeout` seconds."""
    return wait_until_exists(f"topic {name!r}", bus, lambda: bus.topic(name, create=False), timeout)


def wait_until_exists(
    what: str, bus: hawser.Bus, opened: Callable[[], Opened], timeout: float | None = None
) -> Opened:
    """Call `opened` until it does not raise NotFound; Timeout after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    said = False
    while True:
        try:
            return opened()
        except hawser.NotFound:
            if deadline is not None and time.monotonic() >= deadline:
                raise hawser.Timeout(f"no {what} within {timeout:g} s") from None
            if not said:
                notice(f"waiting for {what} in {bus.url}")
                said = True
            time.sleep(_LOOK_SECONDS)


@click.command()
@topic_argument
@click.option(
    "--history", type=click.IntRange(min=0), default=0, help="Start with this many retained messages."
)
@click.option("--count", "times", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--timeout", type=float, help="Exit with code 5 after this many seconds without a message.")
@printing_options
@shared_options
def echo(name: str, history: int, times: int | None, timeout: float | None, **form: Any) -> None:
    """Print the messages of a topic as they arrive, until interrupted.

    Waits for a topic that does not exist yet, and again after it is deleted.

    \b
    --format:  %o offset    %t time of day   %T nanoseconds      %p publisher  %k key
               %h headers   %s size          %l lost before it   %v payload    %x in hexadecimal
               %P partition %% percent       \\n newline          \\t tab
    """
    write = writer({"topic": name}, **form)
    with connect() as bus:
        left = times
        while left is None or left > 0:
            topic = wait_for_topic(bus, name, timeout)
            try:
                for _ in _written(topic, write, history, left, timeout):
                    left = None if left is None else left - 1
            except hawser.Closed:
                notice(f"topic {name!r} was deleted")
                history = 0
            finally:
                topic.close()


def _written(
    topic: "hawser.Topic[Any]", write: Writer, history: int, times: int | None, timeout: float | None
) -> Iterator[None]:
    """Print up to `times` samples and yield after each. Output is flushed when no next sample is ready."""
    schema = str(topic.info().settings["schema"])
    output = sys.stdout.buffer
    with topic.subscribe(history=history) as subscription:
        while times is None or times > 0:
            sample = subscription.take(0)
            if sample is None:
                output.flush()
                sample = subscription.take(timeout)
            if sample is None:
                raise hawser.Timeout(f"no message of topic {topic.name!r} within {timeout:g} s")
            with sample:
                if sample.lost_before:
                    output.flush()
                    notice(f"missed {count(sample.lost_before)} messages before offset {sample.offset}")
                output.write(write(sample, schema))
            times = None if times is None else times - 1
            yield
        output.flush()
