"""Payloads of `hawser topic pub` and `hawser queue put`: an argument, a file, or lines of standard input."""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

from hawser.cli.values import per_second

__all__ = ["payload_options", "payloads", "sending_options"]

_READ_BYTES: Final = 1 << 16
_MOST_TOGETHER: Final = 1000


def payload_options(function: Any) -> Any:
    """Add DATA, --file, --stdin-lines, --rate, --count, --key and --header."""
    for option in reversed(
        (
            click.argument("data", required=False),
            click.option(
                "--file", type=click.File("rb"), help="Send the content of a file; - is standard input."
            ),
            click.option(
                "--stdin-lines", is_flag=True, help="Send each line of standard input, without its end."
            ),
            click.option("--rate", type=per_second, help="Messages per second, until interrupted."),
            click.option("--count", "times", type=click.IntRange(min=1), help="Number of messages."),
            click.option("--key", help="Key of every message."),
            click.option(
                "--header",
                "headers",
                multiple=True,
                metavar="NAME=VALUE",
                help="Header of every message; repeatable.",
            ),
        )
    ):
        function = option(function)
    return function


def sending_options(key: str | None, headers: tuple[str, ...], timeout: float | None) -> dict[str, Any]:
    """Key, headers and timeout as arguments of the API."""
    return {
        "key": None if key is None else os.fsencode(key),
        "headers": dict(_header(each) for each in headers) or None,
        "timeout": timeout,
    }


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, os.fsencode(value)


def payloads(
    data: str | None, file: BinaryIO | None, stdin_lines: bool, times: int | None, rate: float | None
) -> Iterator[list[bytes]]:
    """The payloads in groups to send together. With a rate, each group is one payload, at its time."""
    if (data is not None) + (file is not None) + stdin_lines != 1:
        raise click.UsageError("Give one of DATA, --file and --stdin-lines.")
    if stdin_lines:
        groups = _first(times, _lines(sys.stdin.buffer))
    else:
        payload = file.read() if file is not None else os.fsencode(data or "")
        forever = rate is not None and times is None
        groups = _repeated(payload, None if forever else times or 1)
    return groups if rate is None else _paced(itertools.chain.from_iterable(groups), rate)


def _lines(given: BinaryIO) -> Iterator[list[bytes]]:
    """The lines without newlines, in one group per read. The last line may lack its newline."""
    parts: list[bytes] = []
    # read1 returns the available bytes and blocks only if there are none.
    while part := given.read1(_READ_BYTES):  # type: ignore[attr-defined]
        parts.append(part)
        if b"\n" in part:
            *lines, rest = b"".join(parts).split(b"\n")
            parts = [rest]
            for start in range(0, len(lines), _MOST_TOGETHER):
                yield lines[start : start + _MOST_TOGETHER]
    if last := b"".join(parts):
        yield [last]


def _repeated(payload: bytes, times: int | None) -> Iterator[list[bytes]]:
    while times is None or times > 0:
        together = _MOST_TOGETHER if times is None else min(times, _MOST_TOGETHER)
        yield [payload] * together
        times = None if times is None else times - together


def _first(count: int | None, groups: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """The first `count` payloads. Nothing is read after the last one."""
    if count is None:
        yield from groups
        return
    for group in groups:
        yield group[:count]
        count -= len(group)
        if count <= 0:
            return


def _paced(sent: Iterator[bytes], rate: float) -> Iterator[list[bytes]]:
    """One payload at a time; the payload with number n is due after n / `rate` seconds, even if others are
    late."""
    start = time.monotonic()
    for number, payload in enumerate(sent):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        yield [payload]
