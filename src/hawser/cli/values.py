"""Parsing of option values, settings as options, and messages printed as text and JSON."""

import base64
import math
import string
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import click
import msgspec

import hawser
from hawser.cli.options import wants_json
from hawser.cli.output import byte_size, clock, dimmed, printable_text
from hawser.limits import SETTING_BOUNDS

__all__ = [
    "Writer",
    "byte_count",
    "bytes_as_json",
    "format_message",
    "per_second",
    "preview",
    "printing_options",
    "queue_setting_options",
    "sample_as_json",
    "setting_options",
    "writer",
]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PREVIEW_BYTES = 32


def byte_count(text: str) -> int:
    """Parse a number of bytes, with or without a unit: 4096, 64K, 8MiB."""
    number = text.rstrip(string.ascii_letters + " ")
    unit = text[len(number) :].strip().lower().removesuffix("ib").removesuffix("b")
    if unit not in _UNITS or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not a number of bytes; write it like 4096, 64K or 8M")
    return int(number) * _UNITS[unit]


def per_second(text: str) -> float:
    """Parse a rate: a number above 0."""
    with suppress(ValueError):
        if (number := float(text)) > 0:
            return number
    raise click.BadParameter(f"{text!r} is not a number above 0")


_CLUSTER_SETTINGS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("partitions", click.INT, "Partitions of a new topic on a cluster; default 1."),
    ("replication", click.INT, "Replicas of a new topic on a cluster; default 3."),
    (
        "retention_bytes",
        byte_count,
        "Bytes that a new topic on a cluster retains; default: all.",
    ),
    (
        "retention_seconds",
        click.FLOAT,
        "Seconds that a new topic on a cluster retains messages; default: no limit.",
    ),
)


_QUEUE_SETTINGS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("max_deliveries", click.INT, "Deliveries before a message becomes a dead letter; default: no limit."),
    (
        "lease",
        click.FLOAT,
        "Seconds after which a held message is delivered to another consumer; default: never.",
    ),
    ("capacity", click.INT, "Messages that a new queue on one host holds."),
    ("slot_size", byte_count, "Bytes of the largest message of a new queue on one host."),
    ("max_producers", click.INT, "Producers of a new queue on one host."),
    ("max_consumers", click.INT, "Consumers of a new queue on one host."),
    ("max_held", click.INT, "Messages that one consumer may hold at once, on one host."),
    ("replication", click.INT, "Replicas of a new queue on a cluster; default 3."),
    ("capacity_bytes", byte_count, "Bytes that a new queue on a cluster holds."),
)


def setting_options(function: Any) -> Any:
    """Add the settings of a topic, local and on a cluster, as options; one that is not given is None."""
    local = tuple(
        (
            name,
            byte_count if name == "slot_size" else click.INT,
            f"Setting of a new topic; default {bound.default}.",
        )
        for name, bound in SETTING_BOUNDS.items()
    )
    return _with_settings(function, "topic", local + _CLUSTER_SETTINGS)


def queue_setting_options(function: Any) -> Any:
    """Add the settings of a queue, local and on a cluster, as options; one that is not given is None."""
    dead_letter = click.option(
        "--dead-letter", metavar="QUEUE", help="The queue of its dead letters; default: one of its own."
    )
    colocate = click.option("--colocate", metavar="TOPIC", help="The topic whose shard it shares.")
    return dead_letter(colocate(_with_settings(function, "queue", _QUEUE_SETTINGS)))


def _with_settings(function: Any, kind: str, settings: tuple[tuple[str, Any, str], ...]) -> Any:
    for name, converter, text in reversed(settings):
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, type=converter, metavar="NUMBER", help=text)(function)
    lasting = click.option("--ephemeral/--lasting", default=None, help="Remove it with its last participant.")
    mode = click.option(
        "--mode", type=click.Choice(["user", "group"]), help=f"Users with access to a new {kind}."
    )
    return lasting(mode(function))


def bytes_as_json(data: bytes) -> Any:
    """The bytes as text if they are UTF-8, otherwise an object with base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def sample_as_json(sample: hawser.Sample, schema: str) -> dict[str, Any]:
    """A message as an object: a decoded value of the schema is in `value`, any other payload in `data`.
    Floats that JSON lacks become the strings "NaN", "Infinity" and "-Infinity"."""
    line: dict[str, Any] = {
        "partition": sample.partition,
        "offset": sample.offset,
        "timestamp_ns": sample.timestamp_ns,
        "publisher": sample.publisher,
        "key": None if sample.key is None else bytes_as_json(sample.key),
        "headers": {name: bytes_as_json(value) for name, value in sample.headers.items()},
        "lost_before": sample.lost_before,
        "size": len(sample),
    }
    if isinstance(sample, hawser.Message):
        line |= {"delivery_count": sample.delivery_count, "redelivered": sample.redelivered}
    value = _typed_value(sample, schema)
    return {**line, "data": bytes_as_json(bytes(sample))} if value is None else {**line, "value": value}


def _typed_value(sample: hawser.Sample, schema: str) -> Any:
    """The value of a msgpack payload with its field names; None for any other payload."""
    if not schema.startswith("msgpack:"):
        return None
    try:
        return _json_value(msgspec.to_builtins(msgspec.msgpack.decode(sample.data), str_keys=True))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return None


def _json_value(value: Any) -> Any:
    """The value with floats that JSON lacks as strings, as protobuf writes them."""
    match value:
        case dict():
            return {key: _json_value(each) for key, each in value.items()}
        case list():
            return [_json_value(each) for each in value]
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def preview(sample: hawser.Sample, schema: str) -> str:
    """The payload on one line: text unchanged, a decoded value as JSON, other bytes in hexadecimal (the
    start)."""
    value = _typed_value(sample, schema)
    if value is not None:
        return msgspec.json.encode(value).decode()
    data = bytes(sample)
    text = printable_text(data)
    if text is not None:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return data[:_PREVIEW_BYTES].hex(" ") + (" ..." if len(data) > _PREVIEW_BYTES else "")


def format_message(pattern: str, sample: hawser.Sample) -> bytes:
    """The message in the form of `pattern`: %o offset, %P partition, %t time, %T nanoseconds, %k key,
    %p publisher, %h headers, %s size, %l lost before, %v payload, %x payload in hexadecimal, %d deliveries,
    %% percent sign, \\n newline, \\t tab."""
    made = bytearray()
    parts = iter(pattern.replace("\\n", "\n").replace("\\t", "\t"))
    for letter in parts:
        made += letter.encode() if letter != "%" else _field(next(parts, "%"), sample)
    return bytes(made)


def _field(letter: str, sample: hawser.Sample) -> bytes:
    match letter:
        case "o":
            return str(sample.offset).encode()
        case "P":
            return str(sample.partition).encode()
        case "t":
            return clock(sample.timestamp_ns).encode()
        case "T":
            return str(sample.timestamp_ns).encode()
        case "k":
            return sample.key or b""
        case "p":
            return sample.publisher.encode()
        case "h":
            return b",".join(name.encode() + b"=" + value for name, value in sample.headers.items())
        case "s":
            return str(len(sample)).encode()
        case "l":
            return str(sample.lost_before).encode()
        case "v":
            return bytes(sample)
        case "x":
            return bytes(sample).hex().encode()
        case "d" if isinstance(sample, hawser.Message):
            return str(sample.delivery_count).encode()
        case "%":
            return b"%"
        case _:
            raise hawser.UsageError(
                f"%{letter} is not a field of --format; the fields are %o %P %t %T %k %p %h %s %l %v %x %%, "
                "and %d in `hawser queue get`"
            )


# Encodes a message and the schema of its topic as the bytes to print.
Writer = Callable[[hawser.Sample, str], bytes]


def printing_options(function: Any) -> Any:
    """Add --raw, --hex, --json and --format."""
    for option in reversed(
        (
            click.option("--raw", is_flag=True, help="Print each payload unchanged, followed by a newline."),
            click.option("--hex", "as_hex", is_flag=True, help="Print payloads as a hexadecimal dump."),
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="Print one JSON object per line, as with -o json; NaN is a string.",
            ),
            click.option(
                "--format", "pattern", help="Print this pattern, for example '%o %t %k %p %v'; see above."
            ),
        )
    ):
        function = option(function)
    return function


def writer(where: dict[str, str], *, raw: bool, as_hex: bool, as_json: bool, pattern: str | None) -> Writer:
    """Choose the output format from these options, else from -o. Each JSON object includes `where`."""
    if raw + as_hex + as_json + (pattern is not None) > 1:
        raise click.UsageError("Give one of --raw, --hex, --json and --format.")
    if raw:
        return lambda sample, _: bytes(sample) + b"\n"
    if pattern is not None:
        return lambda sample, _: format_message(pattern, sample) + b"\n"
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
    """A hexadecimal dump, sixteen bytes per line: position, bytes, text."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"  {start:08x}  {part.hex(' '):<47}  {text}\n")
    return "".join(lines)
