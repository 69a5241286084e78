"""Frames: the units of the byte stream of a connection.

    0   length of the body     u32
    4   kind                   u8
    5   number                 u64    of a request: chosen by its sender, repeated in its answer; else 0
    13  body

Integers are little-endian. A reader accepts the bytes in any pieces. A frame that is not valid raises
Malformed when it is reached, after all earlier frames. The layout of the header, and the numbers of HELLO and
REFUSAL, are the same in all versions.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from hawser.cluster.transport.errors import Malformed
from hawser.log.entry import MAX_BODY_BYTES

__all__ = ["HEADER", "MAX_FRAME_BYTES", "MAX_HELLO_BYTES", "Frame", "FrameKind", "FrameReader"]

HEADER: Final = struct.Struct("<IBQ")
# Enough for the largest entry of a log, with its envelope.
MAX_FRAME_BYTES: Final = MAX_BODY_BYTES + (1 << 20)
# The limit until the peer has introduced itself.
MAX_HELLO_BYTES: Final = 4096

_BUFFER_BYTES: Final = 256 << 10
# A longer body is received in place; a shorter one is cut out of the buffer.
_MAX_CUT_BYTES: Final = 64 << 10

assert 2 * (HEADER.size + _MAX_CUT_BYTES) <= _BUFFER_BYTES
assert MAX_HELLO_BYTES <= _MAX_CUT_BYTES < MAX_FRAME_BYTES < 1 << 32


class FrameKind(IntEnum):
    """The kinds of frames."""

    HELLO = 1  # the dialer's identity and versions
    WELCOME = 2  # the listener's identity, and the version to use
    REFUSAL = 3  # the reason; the last frame
    TELL = 4
    ASK = 5
    ANSWER = 6
    FAILURE = 7  # instead of an answer; the body is a text
    CANCEL = 8  # the answer is no longer wanted
    PING = 9
    PONG = 10  # the sender is alive; also sent unasked by a side that does not read just now
    GOODBYE = 11  # why the sender closes; the last frame


# Kind, number, body. The receiver owns the body.
Frame = tuple[int, int, bytes | bytearray]


class FrameReader:
    """Cuts a stream into frames: `buffer()` says where the next bytes go, `received(count)` gives the frames
    that they complete. All frames must be taken before the next bytes are received."""

    __slots__ = (
        "most_bytes",
        "_buffer",
        "_view",
        "_end",
        "_needed",
        "_large",
        "_large_view",
        "_large_end",
        "_large_head",
    )

    def __init__(self, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self.most_bytes = most_bytes
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        # With fewer bytes in the buffer there is nothing to cut.
        self._needed = HEADER.size
        self._large: bytearray | None = None
        self._large_view = memoryview(b"")
        self._large_end = 0
        self._large_head = (0, 0)

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large_view[self._large_end :]
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """The frames that `count` more bytes complete."""
        if self._large is not None:
            self._large_end += count
            if self._large_end == len(self._large):
                kind, number = self._large_head
                body = self._large
                self._large, self._large_view = None, memoryview(b"")
                yield kind, number, body
            return
        self._end += count
        if self._end >= self._needed:
            yield from self._cut()

    def _cut(self) -> Iterator[Frame]:
        """Give out what is whole in the buffer, and keep the rest at its beginning."""
        # One copy of all, since cutting bytes out of bytes costs half of cutting them out of a bytearray.
        data = bytes(self._view[: self._end])
        start, end = 0, self._end
        self._needed = HEADER.size
        header_bytes, unpack = HEADER.size, HEADER.unpack_from
        while end - start >= header_bytes:
            length, kind, number = unpack(data, start)
            if length > self.most_bytes:
                raise Malformed(f"a frame of {length} bytes, where at most {self.most_bytes} are allowed")
            body_start = start + header_bytes
            start = body_start + length
            if start > end:
                if length > _MAX_CUT_BYTES:
                    self._begin_large(length, kind, number, data[body_start:])
                    return
                start = body_start - header_bytes
                self._needed = header_bytes + length
                break
            yield kind, number, data[body_start:start]
        rest = end - start
        self._buffer[:rest] = data[start:]
        self._end = rest

    def _begin_large(self, length: int, kind: int, number: int, first: bytes) -> None:
        """From now on bytes go where they will stay."""
        # All of it is memory from here on: a length alone costs that much, of one link.
        self._large = bytearray(length)
        self._large_view = memoryview(self._large)
        self._large_view[: len(first)] = first
        self._large_end = len(first)
        self._large_head = (kind, number)
        self._end = 0
