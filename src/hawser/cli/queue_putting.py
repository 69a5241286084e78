"""`hawser queue put`."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import click

import hawser
from hawser.cli.options import connect, queue_argument, shared_options, wants_json
from hawser.cli.output import count, notice, print_json
from hawser.cli.payloads import payload_options, payloads, sending_options
from hawser.cli.values import queue_setting_options

__all__ = ["put"]


@click.command()
@queue_argument
@payload_options
@click.option("--timeout", type=float, help="Seconds to wait while the queue is full; else for ever.")
@click.option("--name", "participant", help="The name to put under.")
@queue_setting_options
@shared_options
def put(
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
    """Put DATA, a file or the lines of standard input; the queue is made if there is none.

    One message, --count of them, or at --rate until interrupted.
    """
    groups = payloads(data, file, stdin_lines, times, rate)
    options = sending_options(key, headers, timeout)
    given = {setting: value for setting, value in settings.items() if value is not None}
    first = last = done = 0
    with connect(participant) as bus:
        queue = bus.queue(name, **given)
        try:
            for receipt in _receipts(queue, groups, options):
                first = first or receipt.first_offset
                last = receipt.first_offset + receipt.count - 1
                done += receipt.count
        except hawser.HawserError as error:
            done += error.published
            raise
        finally:
            _report(name, done, first, last)


def _receipts(
    queue: "hawser.Queue[Any]", groups: Iterator[list[bytes]], options: dict[str, Any]
) -> Iterator[hawser.Receipt]:
    """What is there together goes together: on a cluster each would wait for the disks of a majority."""
    for group in groups:
        if len(group) > 1 and options["headers"] is None:
            keys = None if options["key"] is None else [options["key"]] * len(group)
            yield queue.put_many(group, keys=keys, timeout=options["timeout"])
        else:
            for payload in group:
                yield queue.put(payload, **options)


def _report(name: str, done: int, first: int, last: int) -> None:
    if wants_json():
        print_json({"queue": name, "put": done, "first_offset": first, "last_offset": last})
    elif done == 1:
        notice(f"put 1 message into {name!r}")
    elif done:
        notice(f"put {count(done)} messages into {name!r}")
