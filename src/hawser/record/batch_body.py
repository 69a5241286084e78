"""The bare body of a batch: the buffers of its Arrow columns, one after another.

    timestamps    i64 each; left out if all are the same, which the header then says
    offsets       of the values, the keys, the headers: i32, one more than records, from 0
    validity      of the keys, the headers: one bit a record, lowest first; left out if every record has one
    data          of the values, the keys, the headers

Keys and headers are left out altogether if no record has one. Integers are little-endian, and each lies at a
multiple of its size behind the start of the body. The headers of a record are a MessagePack map of strings to
binaries.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Any, Final, NamedTuple

import msgspec

from hawser.record.record import NO_HEADERS, BadBatch, Record

__all__ = [
    "Binaries",
    "Columns",
    "check",
    "check_values",
    "decode_header_pairs",
    "decode_headers",
    "encode",
    "encode_columns",
    "encode_header_pairs",
    "encode_headers",
    "encode_only",
    "fixed_bytes",
    "make_records",
    "records",
    "split",
    "timestamps",
]

# The bits of the header's column byte.
KEYS: Final = 1
SOME_KEYS: Final = 2  # and some records have none
HEADERS: Final = 4
SOME_HEADERS: Final = 8

# By valid column byte: the number of columns with offsets, and of those with validity.
_SHAPES: Final = {
    keys | headers: (1 + (keys > 0) + (headers > 0), (keys > 1) + (headers > HEADERS))
    for keys in (0, KEYS, KEYS | SOME_KEYS)
    for headers in (0, HEADERS, HEADERS | SOME_HEADERS)
}

_offset = struct.Struct("<i").unpack_from
_pack_time = struct.Struct("<q").pack
_TWO_OFFSETS: Final = struct.Struct("<2i")
_pack_two_offsets: Final = _TWO_OFFSETS.pack
_unpack_two_offsets: Final = _TWO_OFFSETS.unpack_from
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_decode_items = msgspec.msgpack.Decoder(list[Any]).decode
_FIXED_MAP: Final = 0x80
_MAP_16: Final = 0xDE
_MAP_32: Final = 0xDF
_ARRAY_32: Final = 0xDD


class Binaries(NamedTuple):
    """The buffers of one column of binaries."""

    offsets: memoryview
    data: memoryview
    validity: memoryview | None


class Columns(NamedTuple):
    """The buffers of a body, not yet checked against each other. All records have `timestamp_ns`, or each has
    one in `timestamps`."""

    records: int
    timestamp_ns: int | None
    timestamps: memoryview
    values: Binaries
    keys: Binaries | None
    headers: Binaries | None


def fixed_bytes(columns: int, records: int, same_timestamp: bool) -> int:
    """The length of a body without the data of its columns; BadBatch for invalid columns."""
    shape = _SHAPES.get(columns)
    if shape is None:
        raise BadBatch(f"no batch has the columns {columns:#x}")
    return (
        4 * (records + 1) * shape[0]
        + ((records + 7) >> 3) * shape[1]
        + (0 if same_timestamp else 8 * records)
    )


def encode(
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    headers: Sequence[Mapping[str, bytes]],
    timestamps: Sequence[int],
) -> tuple[int, int, int, list[bytes]]:
    """(column byte, earliest and latest timestamp, the buffers in their order) of at least one record.

    Raises TypeError, ValueError or struct.error for a record with values of wrong types.
    """
    return encode_columns(timestamps, *_buffers(values), keys, headers)


def encode_only(value: bytes, timestamp_ns: int) -> list[bytes]:
    """The buffers of one record without key and headers."""
    # Packed only to check that it is a timestamp.
    _pack_time(timestamp_ns)
    return [*_buffers((value,))]


def encode_columns(
    timestamps: Sequence[int],
    value_offsets: bytes,
    value_data: bytes,
    keys: Sequence[bytes | None],
    headers: Sequence[Mapping[str, bytes]],
) -> tuple[int, int, int, list[bytes]]:
    """As `encode`, of at least one record whose values are already in the buffers of a column."""
    count = len(timestamps)
    # Counting the same object is several times faster than comparing, and most batches have one timestamp.
    earliest = latest = timestamps[0]
    if timestamps[-1] != earliest or timestamps.count(earliest) != count:
        earliest, latest = min(timestamps), max(timestamps)
    # Packed even if left out, to check that it is a timestamp.
    times = _pack_time(earliest) if earliest == latest else struct.pack(f"<{count}q", *timestamps)
    fixed = [] if earliest == latest else [times]
    columns, validities = 0, []
    fixed.append(value_offsets)
    data = [value_data]
    absent = keys.count(None)
    if absent < count:
        columns |= KEYS
        if absent:
            columns |= SOME_KEYS
            validities.append(_bits([key is not None for key in keys]))
        offsets, key_data = _buffers([key or b"" for key in keys])
        fixed.append(offsets)
        data.append(key_data)
    if headers.count(NO_HEADERS) != count and any(headers):
        columns |= HEADERS
        if not all(headers):
            columns |= SOME_HEADERS
            validities.append(_bits(list(map(bool, headers))))
        offsets, header_data = _buffers([encode_headers(each) if each else b"" for each in headers])
        fixed.append(offsets)
        data.append(header_data)
    return columns, earliest, latest, fixed + validities + data


def _buffers(items: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The offsets and the data of a column."""
    data = b"".join(items)
    if len(items) == 1:
        end, offsets = len(items[0]), _pack_two_offsets(0, len(data))
    else:
        places = list(accumulate(map(len, items), initial=0))
        end, offsets = places[-1], struct.pack(f"<{len(places)}i", *places)
    if end != len(data):
        raise TypeError("a value or key is an array of something larger than bytes")
    return offsets, data


def _bits(flags: Sequence[bool]) -> bytes:
    number = int("".join("1" if flag else "0" for flag in reversed(flags)), 2)
    return number.to_bytes((len(flags) + 7) >> 3, "little")


def encode_headers(headers: Mapping[Any, Any]) -> bytes:
    """The stored form of headers; TypeError unless they map str to bytes."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError(f"header {name!r} is {type(name).__name__} to {type(value).__name__}")
    return _encode_headers(dict(headers))


def decode_headers(data: bytes | None) -> Mapping[str, bytes]:
    """Headers from their stored form; BadBatch for other bytes."""
    if not data:
        return NO_HEADERS
    try:
        return _decode_headers(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBatch(f"the headers of a record cannot be read ({error})") from error


def encode_header_pairs(pairs: Sequence[tuple[Any, Any]]) -> bytes:
    """As `encode_headers`, with repeated keys. Readers of a mapping get the last value."""
    headers = dict(pairs)
    if len(headers) == len(pairs):
        return encode_headers(headers)
    for pair in pairs:
        encode_headers(dict([pair]))
    items = b"".join(_encode_headers(each) for pair in pairs for each in pair)
    return bytes([_MAP_32]) + len(pairs).to_bytes(4, "big") + items


def decode_header_pairs(data: bytes | None) -> list[tuple[str, bytes]]:
    """As `decode_headers`, with repeated keys, in order."""
    headers = decode_headers(data)
    if not data:
        return []
    mark = data[0]
    start = 5 if mark == _MAP_32 else 3 if mark == _MAP_16 else 1
    count = mark - _FIXED_MAP if start == 1 else int.from_bytes(data[1:start], "big")
    if count == len(headers):
        return list(headers.items())
    # A map is an array of its keys and values with another header.
    items = _decode_items(bytes([_ARRAY_32]) + (2 * count).to_bytes(4, "big") + data[start:])
    return list(zip(items[::2], items[1::2], strict=True))


def split(body: memoryview, columns: int, records: int, timestamp_ns: int | None) -> Columns:
    """The buffers of a body; BadBatch unless they fill it exactly.

    `records`, `check` or Arrow check the offsets between the first and the last.
    """
    data = fixed_bytes(columns, records, timestamp_ns is not None)
    if len(body) < data:
        raise BadBatch(f"{records} records do not fit a body of {len(body)} bytes")
    offsets = 0 if timestamp_ns is not None else 8 * records
    timestamps = body[:offsets]
    bits = offsets + 4 * (records + 1) * _SHAPES[columns][0]
    values = _binaries(body, records, offsets, data, None)
    data += len(values.data)
    keys = headers = None
    if columns & KEYS:
        offsets += 4 * (records + 1)
        keys = _binaries(body, records, offsets, data, bits if columns & SOME_KEYS else None)
        data += len(keys.data)
        bits += (records + 7) >> 3 if columns & SOME_KEYS else 0
    if columns & HEADERS:
        offsets += 4 * (records + 1)
        headers = _binaries(body, records, offsets, data, bits if columns & SOME_HEADERS else None)
        data += len(headers.data)
    if data != len(body):
        raise BadBatch(f"the columns of a body take {data} bytes, not the {len(body)} that it has")
    return Columns(records, timestamp_ns, timestamps, values, keys, headers)


def _binaries(body: memoryview, records: int, offsets: int, data: int, bits: int | None) -> Binaries:
    """The buffers of a column whose parts begin at these offsets of the body."""
    last_place = offsets + 4 * records
    (first,), (last,) = _offset(body, offsets), _offset(body, last_place)
    if first or not 0 <= last <= len(body) - data:
        raise BadBatch(
            f"the offsets of a column run from {first} to {last}, with {len(body) - data} bytes left"
        )
    validity = None
    if bits is not None:
        validity = body[bits : bits + ((records + 7) >> 3)]
        if records & 7 and validity[-1] >> (records & 7):
            raise BadBatch(f"the validity of a column has bits behind its {records} records")
    return Binaries(body[offsets : last_place + 4], body[data : data + last], validity)


def only_value(data: "bytes | memoryview", body: int) -> bytes:
    """The value of a body that begins at `body` and has only one value; BadBatch for another body."""
    first, end = _unpack_two_offsets(data, body)
    start = body + _TWO_OFFSETS.size
    if first or start + end != len(data):
        raise BadBatch(f"the offsets of a column run from {first} to {end}, which is not its end")
    return bytes(data[start:])


def records(columns: Columns) -> Iterator[Record]:
    """The records; everything is checked before the first."""
    count = columns.records
    values = _items(columns.values, count)
    keys: Any = repeat(None) if columns.keys is None else _items(columns.keys, count)
    headers: Any = repeat(NO_HEADERS)
    if columns.headers is not None:
        headers = list(map(decode_headers, _items(columns.headers, count)))
    return make_records(values, keys, headers, timestamps(columns))


def timestamps(columns: Columns) -> Sequence[int]:
    """The timestamp of each record."""
    if columns.timestamp_ns is not None:
        return [columns.timestamp_ns] * columns.records
    return struct.unpack(f"<{columns.records}q", columns.timestamps)


def check(columns: Columns) -> None:
    """Raises BadBatch if `records` would, without making records."""
    for binaries in (columns.values, columns.keys):
        if binaries is not None:
            _offsets(binaries, columns.records)
    if columns.headers is not None:
        for each in _items(columns.headers, columns.records):
            decode_headers(each)


def check_values(data: "bytes | memoryview", body: int, records: int) -> None:
    """As `split` and `check`, for a body at `body` with only values and one timestamp."""
    offsets = struct.unpack_from(f"<{records + 1}i", data, body)
    if offsets[0] or body + 4 * (records + 1) + offsets[-1] != len(data):
        raise BadBatch(
            f"the offsets of a column run from {offsets[0]} to {offsets[-1]}, which is not its end"
        )
    _check_order(offsets)


def make_records(*columns: Iterable[Any]) -> Iterator[Record]:
    """Records of values, keys, headers and timestamps, until the shortest ends."""
    # Takes half the time of Record(...).
    return map(partial(tuple.__new__, Record), zip(*columns, strict=False))


def _items(binaries: Binaries, count: int) -> Sequence[Any]:
    """The items of a column, None for missing ones."""
    data = bytes(binaries.data)
    items = [data[start:end] for start, end in pairwise(_offsets(binaries, count))]
    if binaries.validity is None:
        return items
    bits = format(int.from_bytes(binaries.validity, "little"), f"0{count}b")
    return [item if bit == "1" else None for item, bit in zip(items, reversed(bits), strict=True)]


def _offsets(binaries: Binaries, count: int) -> tuple[int, ...]:
    offsets = struct.unpack(f"<{count + 1}i", binaries.offsets)
    _check_order(offsets)
    return offsets


def _check_order(offsets: tuple[int, ...]) -> None:
    # Sorting a sorted list is one fast pass.
    if list(offsets) != sorted(offsets):
        raise BadBatch("the offsets of a column go back")
