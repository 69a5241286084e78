"""`hawser topic pub`."""

import itertools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

import hawser
from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import count, notice, print_json
from hawser.cli.payloads import payload_options, payloads, sending_options
from hawser.cli.values import setting_options

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["pub"]

_MOST_UNDER_WAY = 4096


@click.command()
@topic_argument
@payload_options
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
    sent = payloads(data, file, stdin_lines, times, rate)
    options = sending_options(key, headers, timeout)
    given = {setting: value for setting, value in settings.items() if value is not None}
    first = last = published = 0
    with connect(participant) as bus:
        topic = bus.topic(name, **given)
        try:
            for receipt in _receipts(topic, itertools.chain.from_iterable(sent), options):
                last = receipt.first_offset
                first = first or last
                published += 1
        finally:
            _report(name, published, first, last)


def _receipts(
    topic: "hawser.Topic[Any]", sent: Iterator[bytes], options: dict[str, Any]
) -> Iterator[hawser.Receipt]:
    """Publish, on a cluster many at a time: each would wait for the disks of a majority."""
    timeout = options["timeout"]
    if timeout is not None or not topic.info().partitions:
        for payload in sent:
            yield topic.publish(payload, **options)
        return
    under_way: deque[Future[hawser.Receipt]] = deque()
    for payload in sent:
        under_way.append(topic.publish_nowait(payload, key=options["key"], headers=options["headers"]))
        while under_way and (under_way[0].done() or len(under_way) >= _MOST_UNDER_WAY):
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _report(name: str, published: int, first: int, last: int) -> None:
    if wants_json():
        print_json({"topic": name, "published": published, "first_offset": first, "last_offset": last})
    elif published == 1:
        notice(f"published to {name!r} at offset {count(first)}")
    elif published:
        notice(
            f"published {count(published)} messages to {name!r} at offsets {count(first)} to {count(last)}"
        )
