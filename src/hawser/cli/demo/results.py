"""What is made of each message of the demo: who wrote it, how large it is, and its checksum, in JSON."""

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from hawser.cli.demo.payload import read_payload

__all__ = ["CHECKED", "FIELDS", "Result", "results_of"]

# A job is made of every message whose offset is a multiple of this.
CHECKED: Final = 100
# As Spark reads it.
FIELDS: Final = "publisher string, bytes bigint, checksum bigint"


class Result(msgspec.Struct, frozen=True):
    """Of the message at `offset` in the recorded topic."""

    offset: int
    publisher: str
    bytes: int
    checksum: int


def results_of(messages: Iterable[tuple[int, bytes]]) -> list[Result]:
    """Of messages by their offsets, the same for the same message at any time. There is none of one that no
    publisher wrote."""
    found = []
    for offset, value in messages:
        origin = read_payload(value)
        if origin is not None:
            publisher = f"publisher-{origin.publisher + 1}"
            found.append(Result(offset, publisher, len(value), zlib.crc32(value)))
    return found
