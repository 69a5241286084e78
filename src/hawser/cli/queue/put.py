"""`hawser queue put`."""

from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import click

import hawser
from hawser.cli.options import connect, queue_argument, shared_options, wants_json
from hawser.cli.output import count, messages_were, notice, print_json, report_at_end
from hawser.cli.payloads import payload_options, payloads, sending_options
from hawser.cli.values import queue_setting_options

__all__ = ["put"]


@click.command()
@queue_argument
@payload_options
@click.option("--timeout", type=float, help="Seconds to wait while the queue is full; default: no limit.")
@click.option("--name", "participant", help="The producer's name.")
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
    """Put DATA, a file or the lines of standard input. A missing queue is created.

    Puts one message, --count messages, or at --rate until interrupted.
    """
    groups = payloads(data, file, stdin_lines, times, rate)
    options = sending_options(key, headers, timeout)
    given = {setting: value for setting, value in settings.items() if value is not None}
    with connect(participant) as bus:
        putter = _CountedPutter(bus.queue(name, **given), options)
        with report_at_end(lambda: _report(name, putter.counts)):
            for group in groups:
                putter.put(group)


class _Counts(NamedTuple):
    """Outcomes: `done` messages were put; the outcome of the next `in_doubt` is unknown."""

    done: int = 0
    in_doubt: int = 0
    first_offset: int = 0
    last_offset: int = 0


class _CountedPutter:
    """Puts messages and counts them. A signal may interrupt it between any two statements, so the counts
    change in one assignment."""

    def __init__(self, queue: "hawser.Queue[Any]", options: dict[str, Any]) -> None:
        self.counts = _Counts()
        self._queue = queue
        self._options = options

    def put(self, group: list[bytes]) -> None:
        """Put the messages in one call if possible, because each call waits for the disks of a majority."""
        key, headers = self._options["key"], self._options["headers"]
        if len(group) > 1 and headers is None:
            keys = None if key is None else [key] * len(group)
            timeout = self._options["timeout"]
            self._count(len(group), lambda: self._queue.put_many(group, keys=keys, timeout=timeout))
        else:
            for payload in group:
                self._count(1, partial(self._queue.put, payload, **self._options))

    def _count(self, messages: int, put: Callable[[], hawser.Receipt]) -> None:
        before = self.counts
        self.counts = before._replace(in_doubt=messages)
        try:
            receipt = put()
        except hawser.HawserError as error:
            rest = 0 if error.outcome != "unknown" else messages - error.published
            self.counts = before._replace(done=before.done + error.published, in_doubt=rest)
            raise
        self.counts = _Counts(
            before.done + receipt.count,
            0,
            before.first_offset or receipt.first_offset,
            receipt.first_offset + receipt.count - 1,
        )


def _report(name: str, counts: _Counts) -> None:
    if wants_json():
        print_json(
            {
                "queue": name,
                "put": counts.done,
                "first_offset": counts.first_offset,
                "last_offset": counts.last_offset,
                "unknown": counts.in_doubt,
            }
        )
        return
    if counts.done == 1:
        notice(f"put 1 message into {name!r}")
    elif counts.done:
        notice(f"put {count(counts.done)} messages into {name!r}")
    if counts.in_doubt:
        notice(
            f"{messages_were(counts.in_doubt)} perhaps put after those: the command ended before the answer"
        )
