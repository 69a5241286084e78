"""Walking over the frames of a segment, checking every byte: the inner loop of opening and verifying."""

import struct
from typing import Final

import msgspec
from crc32c import crc32c

from hawser.log.entry import HEADER_BYTES
from hawser.log.journal.segment import Segment

__all__ = ["Stop", "scan"]

_FIELDS: Final = struct.Struct("<IIQQBBHI")
_CHUNK_BYTES: Final = 1 << 20
_NO_LIMIT: Final = 1 << 64


class Stop(msgspec.Struct, frozen=True):
    """Where a scan ended: the entry it would have read next, its byte, and why it was not read.

    `is_order` is true if a whole frame is there that cannot follow the one before it: no crash does that.
    """

    index: int
    byte: int
    reason: str
    is_order: bool = False


def scan(segment: Segment, last: int | None, pairs: list[tuple[int, int]]) -> Stop | None:
    """Read a segment's frames through entry `last`, or as far as there are any; None if `last` was reached.

    Tells the segment its places and its end, and adds to `pairs` (epoch, first index) for each epoch that is
    above the last one in there.
    """
    limit = _NO_LIMIT if last is None else last
    want = _CHUNK_BYTES
    while segment.last < limit:
        start = segment.end
        data = segment.storage.read(segment.name, start, want)
        stop = _walk(segment, data, limit, pairs)
        if stop is not None:
            return stop
        if segment.end > start:
            want = _CHUNK_BYTES
            continue
        if len(data) < want:
            return Stop(segment.last + 1, start, "cut off by the end of the file")
        want = HEADER_BYTES + _FIELDS.unpack_from(data)[1]
        if start + want > segment.size:
            return Stop(segment.last + 1, start, "impossible length")
        assert want > len(data)
    return None


def _walk(segment: Segment, data: bytes, limit: int, pairs: list[tuple[int, int]]) -> Stop | None:
    """Check the frames that are whole in `data`, which begins at the segment's end."""
    start = segment.end
    index = segment.last + 1
    epoch = pairs[-1][0] if pairs else 0
    at = 0
    stop = None
    view = memoryview(data)
    whole = len(data) - HEADER_BYTES
    while at <= whole and index <= limit:
        checksum, length, found_epoch, found, _, _, transaction_size, zero = _FIELDS.unpack_from(data, at)
        end = at + HEADER_BYTES + length
        if end > len(data):
            break
        if crc32c(view[at + 4 : end]) != checksum:
            reason = "checksum differs" if any(view[at : at + HEADER_BYTES]) else "no entry"
            stop = Stop(index, start + at, reason)
            break
        if zero or transaction_size > length:
            stop = Stop(index, start + at, "impossible header")
            break
        if found != index or found_epoch < epoch or not found_epoch:
            found_name = f"entry {found_epoch}:{found}"
            stop = Stop(index, start + at, f"{found_name} cannot follow {epoch}:{index - 1}", is_order=True)
            break
        if found_epoch > epoch:
            pairs.append((found_epoch, index))
            epoch = found_epoch
        if start + at >= segment.next_place:
            segment.note_place(index, start + at)
        index += 1
        at = end
    segment.note_end(index - 1, start + at)
    return stop
