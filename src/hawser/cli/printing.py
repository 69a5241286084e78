"""Messages on standard output: for people, for programs, as they are."""

from collections.abc import Callable
from typing import Any

import click
import msgspec

import hawser
from hawser.cli.options import wants_json
from hawser.cli.output import byte_size, clock, dimmed
from hawser.cli.values import formatted, preview, sample_as_json

__all__ = ["Writer", "printing_options", "writer"]

# A message and the schema of where it was, as the bytes to print.
Writer = Callable[[hawser.Sample, str], bytes]


def printing_options(function: Any) -> Any:
    """Add --raw, --hex, --json and --format."""
    for option in reversed(
        (
            click.option("--raw", is_flag=True, help="Payloads as they are, a newline after each."),
            click.option("--hex", "as_hex", is_flag=True, help="Payloads as a hexadecimal dump."),
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="One JSON object a line, as with -o json; NaN is a text.",
            ),
            click.option("--format", "pattern", help="For example '%o %t %k %p %v'; see above."),
        )
    ):
        function = option(function)
    return function


def writer(where: dict[str, str], *, raw: bool, as_hex: bool, as_json: bool, pattern: str | None) -> Writer:
    """How to print messages, by these options or as -o says; as JSON each is told `where` it was."""
    if raw + as_hex + as_json + (pattern is not None) > 1:
        raise click.UsageError("Give one of --raw, --hex, --json and --format.")
    if raw:
        return lambda sample, _: bytes(sample) + b"\n"
    if pattern is not None:
        return lambda sample, _: formatted(pattern, sample) + b"\n"
    if as_json or wants_json():
        encode = msgspec.json.encode
        return lambda sample, schema: encode({**where, **sample_as_json(sample, schema)}) + b"\n"
    if as_hex:
        return lambda sample, _: (_heading(sample) + "\n" + _hexadecimal(bytes(sample))).encode()
    return lambda sample, schema: f"{_heading(sample)}  {preview(sample, schema)}\n".encode()


def _heading(sample: hawser.Sample) -> str:
    extras = [] if sample.key is None else [f"key={sample.key.decode(errors='backslashreplace')}"]
    extras += [f"{name}={value.decode(errors='backslashreplace')}" for name, value in sample.headers.items()]
    if isinstance(sample, hawser.Message) and sample.redelivered:
        extras.append(f"delivery={sample.delivery_count}")
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
