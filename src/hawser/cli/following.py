"""`hawser topic echo`, and following a topic that may come and go."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

import hawser
from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import byte_size, clock, count, dimmed, notice
from hawser.cli.values import formatted, preview, sample_as_json

__all__ = ["echo", "open_when_there"]

_LOOK_SECONDS = 0.1
Writer = Callable[[hawser.Sample, str], bytes]


def open_when_there(bus: hawser.Bus, name: str, timeout: float | None = None) -> "hawser.Topic[Any]":
    """The topic, as soon as somebody has made it; Timeout if nobody does in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    said = False
    while True:
        try:
            return bus.topic(name, create=False)
        except hawser.NotFound:
            if deadline is not None and time.monotonic() >= deadline:
                raise hawser.Timeout(f"there was no topic {name!r} within {timeout:g} s") from None
            if not said:
                notice(f"waiting for topic {name!r} in {bus.url}")
                said = True
            time.sleep(_LOOK_SECONDS)


@click.command()
@topic_argument
@click.option("--history", type=click.IntRange(min=0), default=0, help="Begin with so many kept messages.")
@click.option("--count", "times", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", type=float, help="End with code 5 when nothing comes for so many seconds.")
@click.option("--raw", is_flag=True, help="Payloads as they are, a newline after each.")
@click.option("--hex", "as_hex", is_flag=True, help="Payloads as a hexadecimal dump.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as with -o json.")
@click.option("--format", "pattern", help="For example '%o %t %k %p %v'; see below.")
@shared_options
def echo(
    name: str,
    history: int,
    times: int | None,
    timeout: float | None,
    raw: bool,
    as_hex: bool,
    as_json: bool,
    pattern: str | None,
) -> None:
    """Print the messages of a topic as they come, until interrupted.

    Waits for a topic that is not there yet, and again after it was deleted.

    \b
    --format:  %o offset    %t time of day   %T nanoseconds      %p publisher  %k key
               %h headers   %s size          %l lost before it   %v payload    %x in hexadecimal
               %P partition %% percent       \\n newline          \\t tab
    """
    if raw + as_hex + as_json + (pattern is not None) > 1:
        raise click.UsageError("Give one of --raw, --hex, --json and --format.")
    write = _writer(name, raw, as_hex, as_json or wants_json(), pattern)
    with connect() as bus:
        left = times
        while left is None or left > 0:
            topic = open_when_there(bus, name, timeout)
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
    """Print samples until `times` are; yields after each. Out at once when there is no next one yet."""
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


def _writer(name: str, raw: bool, as_hex: bool, as_json: bool, pattern: str | None) -> Writer:
    if raw:
        return lambda sample, _: bytes(sample) + b"\n"
    if pattern is not None:
        return lambda sample, _: formatted(pattern, sample) + b"\n"
    if as_json:
        encode = msgspec.json.encode
        return lambda sample, schema: encode(sample_as_json(name, sample, schema)) + b"\n"
    if as_hex:
        return lambda sample, _: (_heading(sample) + "\n" + _hexadecimal(bytes(sample))).encode()
    return lambda sample, schema: f"{_heading(sample)}  {preview(sample, schema)}\n".encode()


def _heading(sample: hawser.Sample) -> str:
    extras = [] if sample.key is None else [f"key={sample.key.decode(errors='backslashreplace')}"]
    extras += [f"{name}={value.decode(errors='backslashreplace')}" for name, value in sample.headers.items()]
    facts = [
        f"{sample.offset:>6}",
        clock(sample.timestamp_ns),
        sample.publisher,
        byte_size(len(sample)),
        *extras,
    ]
    text = "  ".join(facts)
    return dimmed(text)


def _hexadecimal(data: bytes) -> str:
    """Sixteen bytes a line: where, in hexadecimal, and as text."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"  {start:08x}  {part.hex(' '):<47}  {text}\n")
    return "".join(lines)
