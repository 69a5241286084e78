"""`hawser topic pub`."""

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

import hawser
from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import count, notice, print_json
from hawser.cli.values import setting_options

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["pub"]

_MOST_UNDER_WAY = 4096


@click.command()
@topic_argument
@click.argument("data", required=False)
@click.option("--file", type=click.File("rb"), help="Publish the contents of a file; - is standard input.")
@click.option("--stdin-lines", is_flag=True, help="Publish each line of standard input, without its end.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second, for ever.")
@click.option("--count", "times", type=click.IntRange(min=1), help="How many messages.")
@click.option("--key", help="Key of every message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--timeout", type=float, help="Seconds to wait for reliable subscribers; else for ever.")
@click.option("--name", "participant", help="The name to publish under.")
@setting_options
@shared_options
def pub(
    name: str,
    data: str | None,
    file: BinaryIO | None,
    stdin_lines: bool,
    rate: float | None,
    times: int | None,
    key: str | None,
    headers: tuple[str, ...],
    timeout: float | None,
    participant: str | None,
    **settings: Any,
) -> None:
    """Publish DATA, a file or the lines of standard input; the topic is made if there is none.

    One message, --count of them, or at --rate until interrupted.
    """
    if (data is not None) + (file is not None) + stdin_lines != 1:
        raise click.UsageError("Give one of DATA, --file and --stdin-lines.")
    options: dict[str, Any] = {
        "key": None if key is None else key.encode(),
        "headers": dict(_header(each) for each in headers) or None,
        "timeout": timeout,
    }
    payloads = _payloads(data, file, times, rate)
    given = {setting: value for setting, value in settings.items() if value is not None}
    first = last = published = 0
    with connect(participant) as bus:
        topic = bus.topic(name, **given)
        try:
            for receipt in _receipts(topic, _paced(payloads, rate), options):
                last = receipt.first_offset
                first = first or last
                published += 1
        finally:
            _report(name, published, first, last)


def _receipts(
    topic: "hawser.Topic[Any]", payloads: Iterator[bytes], options: dict[str, Any]
) -> Iterator[hawser.Receipt]:
    """Publish, on a cluster many at a time: each would wait for the disks of a majority."""
    timeout = options["timeout"]
    if timeout is not None or not topic.info().partitions:
        for payload in payloads:
            yield topic.publish(payload, **options)
        return
    under_way: deque[Future[hawser.Receipt]] = deque()
    for payload in payloads:
        under_way.append(topic.publish_nowait(payload, key=options["key"], headers=options["headers"]))
        while under_way and (under_way[0].done() or len(under_way) >= _MOST_UNDER_WAY):
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


def _payloads(
    data: str | None, file: BinaryIO | None, times: int | None, rate: float | None
) -> Iterator[bytes]:
    if data is None and file is None:
        lines = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        return itertools.islice(lines, times)
    payload = file.read() if file is not None else (data or "").encode()
    forever = rate is not None and times is None
    return itertools.repeat(payload) if forever else itertools.repeat(payload, times or 1)


def _paced(payloads: Iterator[bytes], rate: float | None) -> Iterator[bytes]:
    """The payloads, each not before its time; one that is late does not delay the others."""
    start = time.monotonic()
    for number, payload in enumerate(payloads):
        if rate is not None:
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
        yield payload


def _report(name: str, published: int, first: int, last: int) -> None:
    if wants_json():
        print_json({"topic": name, "published": published, "first_offset": first, "last_offset": last})
    elif published == 1:
        notice(f"published to {name!r} at offset {count(first)}")
    elif published:
        notice(
            f"published {count(published)} messages to {name!r} at offsets {count(first)} to {count(last)}"
        )
