"""`hawser topic pub`."""

import itertools
from typing import Any, BinaryIO

import click

from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import count, notice, print_json, report_at_end
from hawser.cli.payloads import payload_options, payloads, sending_options
from hawser.cli.topic.counted_publisher import CountedPublisher
from hawser.cli.values import setting_options

__all__ = ["pub"]


@click.command()
@topic_argument
@payload_options
@click.option("--timeout", type=float, help="Seconds to wait for reliable subscribers; default: no limit.")
@click.option("--name", "participant", help="The publisher's name.")
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
    """Publish DATA, a file or the lines of standard input. A missing topic is created.

    Publishes one message, --count messages, or at --rate until interrupted. Stops at the first message that
    is not published, and lists the messages that were not published or whose outcome is unknown, counted
    from 1.
    """
    sent = itertools.chain.from_iterable(payloads(data, file, stdin_lines, times, rate))
    options = sending_options(key, headers, timeout)
    given = {setting: value for setting, value in settings.items() if value is not None}
    with connect(participant) as bus:
        publisher = CountedPublisher(bus.topic(name, **given), timeout)
        with report_at_end(lambda: _report(name, publisher)):
            try:
                for payload in sent:
                    publisher.publish(payload, options["key"], options["headers"])
                    if publisher.failures:
                        break
            finally:
                publisher.drain()
            if publisher.failures:
                raise publisher.failures[0].error


def _report(name: str, publisher: CountedPublisher) -> None:
    counts = publisher.counts
    first, last = counts.first_offset, counts.last_offset
    if wants_json():
        refused, unknown = publisher.failed_numbers()
        print_json(
            {
                "topic": name,
                "sent": publisher.sent,
                "published": counts.published,
                "first_offset": first,
                "last_offset": last,
                "refused": refused,
                "unknown": unknown,
            }
        )
        return
    if counts.published == 1:
        notice(f"published to {name!r} at offset {count(first)}")
    elif counts.published:
        notice(
            f"published {count(counts.published)} messages to {name!r} at offsets {count(first)} to "
            f"{count(last)}"
        )
    for state, numbers in zip(
        ("not published", "perhaps published"), publisher.failed_numbers(), strict=True
    ):
        for number in numbers:
            notice(f"message {count(number)}: {state}")
