"""Sealed data with a checksum: the promise, segment headers, checkpoints, blocks.

    0   magic                             8 bytes, the kind of data
    8   crc32c of everything after it     u32
    12  format version                    u32
    16  length of the body                u64
    24  body

Integers are little-endian. The checksum covers the version, so a flipped bit is not taken for another
version.
"""

import struct
from typing import Final

from crc32c import crc32c

from hawser.log.journal.errors import OtherVersion

__all__ = ["FORMAT_VERSION", "HEADER_BYTES", "Broken", "Magic", "checksum_of", "seal", "unseal"]

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 24

_REST: Final = struct.Struct("<IQ")
_CRC: Final = struct.Struct("<I")


class Magic:
    """The kinds of sealed data."""

    PROMISE: Final = b"HAWSERvo"
    SEGMENT: Final = b"HAWSERlo"
    CHECKPOINT: Final = b"HAWSERch"
    BLOCK: Final = b"HAWSERbl"
    MANIFEST: Final = b"HAWSERma"


class Broken(ValueError):
    """These bytes are not the sealed ones."""


def seal(magic: bytes, body: bytes) -> bytes:
    """The body with a header."""
    rest = _REST.pack(FORMAT_VERSION, len(body))
    return b"".join((magic, _CRC.pack(crc32c(body, crc32c(rest))), rest, body))


def checksum_of(sealed: bytes) -> int:
    """The checksum in the header."""
    return int(_CRC.unpack_from(sealed, 8)[0])


def unseal(magic: bytes, data: bytes) -> bytes:
    """The body; bytes behind it are ignored. Broken if it is incomplete, OtherVersion for another format."""
    if len(data) < HEADER_BYTES:
        raise Broken("cut off within the header")
    if data[:8] != magic:
        raise Broken("not what the name says")
    version, length = _REST.unpack_from(data, 12)
    if length > len(data) - HEADER_BYTES:
        raise Broken("cut off within the body")
    end = HEADER_BYTES + length
    if crc32c(memoryview(data)[12:end]) != _CRC.unpack_from(data, 8)[0]:
        raise Broken("checksum differs")
    if version != FORMAT_VERSION:
        raise OtherVersion(
            f"this journal has format version {version}; this program reads and writes version "
            f"{FORMAT_VERSION}. Use the version of Hawser that wrote it"
        )
    return data[HEADER_BYTES:end]
