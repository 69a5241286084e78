"""Messages of the demo: they say who wrote them, which in its order they are, and carry a checksum."""

import random
import struct
import zlib
from typing import Final, NamedTuple

__all__ = ["LARGEST", "Origin", "PayloadMaker", "read_payload"]

LARGEST: Final = 512
_CHECKSUM: Final = struct.Struct("<I")
_ORIGIN: Final = struct.Struct("<HHQ")
_LARGEST_BODY: Final = LARGEST - _CHECKSUM.size - _ORIGIN.size


class Origin(NamedTuple):
    """Which message this is: the publisher, its run, and the number in that run."""

    publisher: int
    run: int
    number: int


class PayloadMaker:
    """Makes the messages of one run of a publisher."""

    def __init__(self, publisher: int, run: int) -> None:
        self._publisher = publisher
        self._run = run
        self._random = random.Random(publisher << 16 | run)
        self._noise = self._random.randbytes(2 * _LARGEST_BODY)

    def make(self, number: int) -> bytes:
        start = self._random.randrange(_LARGEST_BODY)
        body = self._noise[start : start + self._random.randrange(_LARGEST_BODY)]
        message = _ORIGIN.pack(self._publisher, self._run, number) + body
        return _CHECKSUM.pack(zlib.crc32(message)) + message


def read_payload(data: bytes) -> Origin | None:
    """The origin of a message; None if it is not what its publisher wrote."""
    if len(data) < _CHECKSUM.size + _ORIGIN.size:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data)
    if zlib.crc32(data[_CHECKSUM.size :]) != checksum:
        return None
    return Origin(*_ORIGIN.unpack_from(data, _CHECKSUM.size))
