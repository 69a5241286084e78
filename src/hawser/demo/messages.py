"""Topics and messages of the demo. A message carries its publisher, its number and a checksum, and has one
result."""

import random
import struct
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "AGENT",
    "CHECKED",
    "DONE",
    "FIELDS",
    "JOBS",
    "LANDED",
    "LARGEST",
    "RESULTS",
    "TOPIC",
    "TOTALS",
    "TRACE",
    "Origin",
    "PayloadMaker",
    "Result",
    "read_payload",
    "results_of",
]


AGENT: Final = "demo-agent"
# The topic in shared memory, and the topic of the cluster that it is recorded into.
TOPIC: Final = "demo"
RESULTS: Final = "demo/results"
JOBS: Final = "demo/jobs"
DONE: Final = "demo/done"
TOTALS: Final = "demo/totals"
TRACE: Final = "demo/trace"
LANDED: Final = (TOPIC, RESULTS, DONE)

LARGEST: Final = 512
_CHECKSUM: Final = struct.Struct("<I")
_ORIGIN: Final = struct.Struct("<HHQ")
_LARGEST_BODY: Final = LARGEST - _CHECKSUM.size - _ORIGIN.size


class Origin(NamedTuple):
    """The identity of a message: the publisher, its run, and the number in that run."""

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


# A job is made of every message whose offset is a multiple of this.
CHECKED: Final = 100
# The schema of a Result in Spark.
FIELDS: Final = "publisher string, bytes bigint, checksum bigint"


class Result(msgspec.Struct, frozen=True):
    """The result of the message at `offset` in the recorded topic."""

    offset: int
    publisher: str
    bytes: int
    checksum: int


def results_of(messages: Iterable[tuple[int, bytes]]) -> list[Result]:
    """The results of messages with their offsets, deterministic per message. A damaged message has none."""
    found = []
    for offset, value in messages:
        origin = read_payload(value)
        if origin is not None:
            publisher = f"publisher-{origin.publisher + 1}"
            found.append(Result(offset, publisher, len(value), zlib.crc32(value)))
    return found
