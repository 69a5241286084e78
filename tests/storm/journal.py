"""What a worker writes down as it goes: fixed records in a file of its own, which its death cannot undo.

A message's payload names the run of the worker that published it and its number in that run, so two
journals can be compared message by message.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<BxxxIQQ")
STAMP = struct.Struct("<IIII")


class Kind(IntEnum):
    """What happened. In brackets: what `small`, `first` and `second` say."""

    STARTED = 1  # (missed already, position, newest offset before the join)
    TAKEN = 2  # (lost before it, offset, message)
    RELEASING = 3  # (0, offset, 0)
    RELEASED = 4  # (0, offset, 0)
    ENDED = 5  # (missed, position, received)
    PUBLISHING = 6  # (count, first number, 0)
    PUBLISHED = 7  # (count, first number, first offset)
    REFUSED = 8  # (count, first number, how many of them went out)
    GOT = 9  # (delivery count or 0 if it is not told, offset, message)
    SETTLING = 10  # (verdict, offset, message)
    SETTLED = 11  # (verdict, offset, message)
    FENCED = 12  # (verdict, offset, message)


class Event(NamedTuple):
    """One line of a journal."""

    kind: Kind
    small: int
    first: int
    second: int


class Journal:
    """Written by one worker: every line is on its way before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: Kind, small: int, first: int, second: int) -> None:
        os.write(self._file, RECORD.pack(kind, small, first, second))


def read_journal(path: Path) -> Iterator[Event]:
    """The events of a worker, dead or alive. A kill may have cut off the last one, which is then as if it had
    come before it: records cross pages, and the kernel looks for a kill between two."""
    data = path.read_bytes()
    for kind, small, first, second in RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size]):
        yield Event(Kind(kind), small, first, second)


def make_payload(run: int, number: int, size: int) -> bytes:
    """A message that can be checked by itself."""
    body = (run * 2654435761 + number * 40503 & 0xFFFFFFFF).to_bytes(4, "little") * (size // 4)
    return STAMP.pack(run, number, len(body), zlib.crc32(body, run ^ number)) + body


def message_of(payload: bytes | memoryview) -> int:
    """Run and number of a message in one integer; ValueError when a byte of it is wrong."""
    run, number, length, check = STAMP.unpack_from(payload)
    body = bytes(payload[STAMP.size :])
    if len(body) != length or zlib.crc32(body, run ^ number) != check:
        raise ValueError(f"message {number} of run {run} is damaged")
    return int(run << 32 | number)
