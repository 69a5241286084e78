"""What the publishers of the demo are told, and what they write down: true after a kill at any instant.

A list of receipts grows by one short write each, which is there as a whole or not at all. What is written
reaches the kernel, and a process that is killed does not take it back.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Assignment", "Control", "Receipts", "read_receipts"]

_WORD: Final = 8
_WORD_FORMAT: Final = "Q"


class Assignment(msgspec.Struct, frozen=True):
    """What a publisher of the demo is told on its command line."""

    url: str
    topic: str
    directory: str
    name: str
    index: int
    run: int
    rate: float

    @property
    def receipts(self) -> Path:
        """The file in which this run writes down the offset of each message."""
        return Path(self.directory) / f"{self.name}-{self.run}.receipts"


class Control:
    """A word that all publishers read: whether to stop."""

    def __init__(self, directory: Path) -> None:
        descriptor = os.open(directory / "control", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _WORD)
            self._words = memoryview(mmap.mmap(descriptor, _WORD)).cast(_WORD_FORMAT)
        finally:
            os.close(descriptor)

    @property
    def is_over(self) -> bool:
        return self._words[0] != 0

    def stop_publishing(self) -> None:
        self._words[0] = 1


class Receipts:
    """The offsets that one run was given, in their order."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, offset: int) -> None:
        os.write(self._descriptor, struct.pack(f"={_WORD_FORMAT}", offset))


def read_receipts(path: Path) -> tuple[int, ...]:
    """All of a run; none if it was killed before its first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    return struct.unpack(f"={len(data) // _WORD}{_WORD_FORMAT}", data)
