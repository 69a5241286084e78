"""The bare body of a batch: the buffers of its Arrow columns, one behind the other, and nothing else.

    timestamps    i64 each; left out if all are the same, which the header then says
    offsets       of the values, the keys, the headers: i32, one more than records, from 0
    validity      of the keys, the headers: one bit a record, lowest first; left out if every record has one
    data          of the values, the keys, the headers

Keys and headers are left out altogether if no record has one. Integers are little-endian, and each lies at a
multiple of its size behind the start of the body. The headers of a record are a MessagePack map of strings to
binaries.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from operator import gt
from typing import Any, Final, NamedTuple

import msgspec

from hawser.record.record import NO_HEADERS, BadBatch, Record

__all__ = [
    "Binaries",
    "Columns",
    "decode_headers",
    "encode",
    "encode_headers",
    "fixed_bytes",
    "records",
    "split",
]

# Bits of the header's column byte.
KEYS: Final = 1
SOME_KEYS: Final = 2  # and some records have none
HEADERS: Final = 4
SOME_HEADERS: Final = 8

# How many columns with offsets, and how many with validity, there are for each column byte that is possible.
_SHAPES: Final = {
    keys | headers: (1 + (keys > 0) + (headers > 0), (keys > 1) + (headers > HEADERS))
    for keys in (0, KEYS, KEYS | SOME_KEYS)
    for headers in (0, HEADERS, HEADERS | SOME_HEADERS)
}

_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Binaries(NamedTuple):
    """The buffers of one column of binaries."""

    offsets: memoryview
    data: memoryview
    validity: memoryview | None


class Columns(NamedTuple):
    """The buffers of a body, not yet checked against each other. One timestamp stands for all of them, or
    `timestamps` has each."""

    records: int
    timestamp_ns: int | None
    timestamps: memoryview
    values: Binaries
    keys: Binaries | None
    headers: Binaries | None


def fixed_bytes(columns: int, records: int, same_timestamp: bool) -> int:
    """How long a body is without the data of its columns; BadBatch for columns that cannot be."""
    shape = _SHAPES.get(columns)
    if shape is None:
        raise BadBatch(f"no batch has the columns {columns:#x}")
    return (
        4 * (records + 1) * shape[0]
        + ((records + 7) >> 3) * shape[1]
        + (0 if same_timestamp else 8 * records)
    )


def encode(records: Sequence[Record]) -> tuple[int, int, int, list[bytes]]:
    """(column byte, earliest and latest timestamp, the buffers in their order) of at least one record.

    Raises TypeError, struct.error or OverflowError for a record with something else in it than bytes.
    """
    count = len(records)
    column: Any = zip(*records, strict=True)
    values, keys, headers, timestamps = column
    earliest, latest = min(timestamps), max(timestamps)
    fixed: list[bytes] = [] if earliest == latest else [struct.pack(f"<{count}q", *timestamps)]
    columns, validities = 0, []
    offsets, value_data = _binaries(values)
    fixed.append(offsets)
    data = [value_data]
    absent = keys.count(None)
    if absent < count:
        columns |= KEYS
        if absent:
            columns |= SOME_KEYS
            validities.append(_bits([key is not None for key in keys]))
            keys = [key or b"" for key in keys]
        offsets, key_data = _binaries(keys)
        fixed.append(offsets)
        data.append(key_data)
    if any(headers):
        columns |= HEADERS
        if not all(headers):
            columns |= SOME_HEADERS
            validities.append(_bits(list(map(bool, headers))))
        offsets, header_data = _binaries([encode_headers(each) if each else b"" for each in headers])
        fixed.append(offsets)
        data.append(header_data)
    return columns, earliest, latest, fixed + validities + data


def _binaries(items: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Offsets and data of a column."""
    data = b"".join(items)
    places = list(accumulate(map(len, items), initial=0))
    if places[-1] != len(data):
        raise TypeError("a value or key is an array of something larger than bytes")
    return struct.pack(f"<{len(places)}i", *places), data


def _bits(flags: Sequence[bool]) -> bytes:
    number = int("".join("1" if flag else "0" for flag in reversed(flags)), 2)
    return number.to_bytes((len(flags) + 7) >> 3, "little")


def encode_headers(headers: Mapping[Any, Any]) -> bytes:
    """Headers as they are stored; TypeError unless they map str to bytes."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError(f"header {name!r} is {type(name).__name__} to {type(value).__name__}")
    return _encode_headers(dict(headers))


def decode_headers(data: bytes | None) -> Mapping[str, bytes]:
    """Headers from how they are stored; BadBatch for other bytes."""
    if not data:
        return NO_HEADERS
    try:
        return _decode_headers(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBatch(f"the headers of a record cannot be read ({error})") from error


def split(body: memoryview, columns: int, records: int, timestamp_ns: int | None) -> Columns:
    """The buffers of a body, which lie within it and fill it exactly; BadBatch if they do not.

    What is in the offsets between the first and the last is for `records` or Arrow to check.
    """
    place = 0

    def take(size: int) -> memoryview:
        nonlocal place
        place += size
        return body[place - size : place]

    if len(body) < fixed_bytes(columns, records, timestamp_ns is not None):
        raise BadBatch(f"{records} records do not fit a body of {len(body)} bytes")
    timestamps = take(0 if timestamp_ns is not None else 8 * records)
    present = [True, bool(columns & KEYS), bool(columns & HEADERS)]
    offsets = [take(4 * (records + 1) if there else 0) for there in present]
    partial = [False, bool(columns & SOME_KEYS), bool(columns & SOME_HEADERS)]
    validities = [take((records + 7) >> 3) if there else None for there in partial]
    binaries: list[Binaries | None] = []
    for there, buffer, validity in zip(present, offsets, validities, strict=True):
        if validity is not None and records & 7 and validity[-1] >> (records & 7):
            raise BadBatch(f"the validity of a column has bits behind its {records} records")
        size = _data_bytes(buffer) if there else 0
        binaries.append(Binaries(buffer, take(size), validity) if there else None)
    if place != len(body):
        raise BadBatch(f"the columns of a body take {place} bytes, not the {len(body)} that it has")
    values, keys, headers = binaries
    assert values is not None
    return Columns(records, timestamp_ns, timestamps, values, keys, headers)


def _data_bytes(offsets: memoryview) -> int:
    first, last = *struct.unpack_from("<i", offsets), *struct.unpack_from("<i", offsets, len(offsets) - 4)
    if first != 0 or last < 0:
        raise BadBatch(f"the offsets of a column run from {first} to {last}")
    return int(last)


def records(columns: Columns) -> Iterator[Record]:
    """Each record; everything is checked before the first."""
    count = columns.records
    timestamps: Any = repeat(columns.timestamp_ns)
    if columns.timestamp_ns is None:
        timestamps = struct.unpack(f"<{count}q", columns.timestamps)
    values = _items(columns.values, count)
    keys: Any = repeat(None) if columns.keys is None else _items(columns.keys, count)
    headers: Any = repeat(NO_HEADERS)
    if columns.headers is not None:
        headers = list(map(decode_headers, _items(columns.headers, count)))
    make: Callable[[Any], Record] = Record._make
    return map(make, zip(values, keys, headers, timestamps, strict=False))


def _items(binaries: Binaries, count: int) -> Sequence[Any]:
    """The items of a column, None where it has none."""
    offsets = struct.unpack(f"<{count + 1}i", binaries.offsets)
    if any(map(gt, offsets, offsets[1:])):
        raise BadBatch("the offsets of a column go back")
    data = bytes(binaries.data)
    items = [data[start:end] for start, end in pairwise(offsets)]
    if binaries.validity is None:
        return items
    bits = format(int.from_bytes(binaries.validity, "little"), f"0{count}b")
    return [item if bit == "1" else None for item, bit in zip(items, reversed(bits), strict=True)]
