"""The uncompressed size of an Arrow IPC message, read from its metadata before any allocation.

A few compressed bytes may claim to be gigabytes. Each compressed buffer begins with its size, as an i64
(-1: it is not compressed), and the message has the places of the buffers:

    0   -1 as i32, then the length of the metadata, i32
    8   metadata: a flatbuffer, root table Message {1 header type, 2 header, 3 body length},
        whose header is a RecordBatch {0 length, 1 nodes, 2 buffers: vector of (offset i64, length i64),
        3 compression}
    8 + length    body

Arrow verifies all of this again.
"""

import struct
from typing import Final

from hawser.record.record import BadBatch

__all__ = ["unpacked_bytes"]

_HEADER_FIELD: Final = 2
_BUFFERS_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3

_i32 = struct.Struct("<i").unpack_from
_u32 = struct.Struct("<I").unpack_from
_u16 = struct.Struct("<H").unpack_from
_i64 = struct.Struct("<q").unpack_from


def unpacked_bytes(message: memoryview) -> tuple[int, bool]:
    """(uncompressed bytes of all buffers, whether they are compressed); BadBatch for an invalid message."""
    try:
        return _read(message)
    except struct.error as error:
        raise BadBatch(f"the metadata of an Arrow body lead out of it ({error})") from error


def _read(message: memoryview) -> tuple[int, bool]:
    marker, length = *_i32(message), *_i32(message, 4)
    if marker != -1 or not 0 < length <= len(message) - 8:
        raise BadBatch("an Arrow body does not begin as an IPC message")
    metadata, body = message[8 : 8 + length], message[8 + length :]
    header = _field(metadata, _followed(metadata, 0), _HEADER_FIELD)
    batch = _followed(metadata, header)
    where = _field(metadata, batch, _BUFFERS_FIELD)
    if not header or not where:
        raise BadBatch("an Arrow body is an IPC message without buffers")
    compressed = _field(metadata, batch, _COMPRESSION_FIELD) != 0
    buffers = _followed(metadata, where)
    total = 0
    (count,) = _u32(metadata, buffers)
    for place in range(buffers + 4, buffers + 4 + 16 * count, 16):
        offset, size = *_i64(metadata, place), *_i64(metadata, place + 8)
        if not 0 <= offset <= len(body) or not 0 <= size <= len(body) - offset:
            raise BadBatch("a buffer of an Arrow body lies outside of it")
        (claimed,) = _i64(body, offset) if compressed and size else (-1,)
        if claimed < -1:
            raise BadBatch(f"a buffer of an Arrow body claims to have {claimed} bytes")
        total += size if claimed == -1 else claimed
    return total, compressed


def _followed(data: memoryview, place: int) -> int:
    """The target of the offset at `place`; offsets of a flatbuffer point forward."""
    return place + int(_u32(data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """The place of a field of a table; 0 if the table does not have the field."""
    directory = table - int(_i32(data, table)[0])
    if directory < 0 or 4 + 2 * number + 2 > _u16(data, directory)[0]:
        return 0
    (offset,) = _u16(data, directory + 4 + 2 * number)
    return table + int(offset) if offset else 0
