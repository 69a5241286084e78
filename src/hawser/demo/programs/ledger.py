"""The assignment of a publisher, and the ledger of its receipts, which is correct after a kill at any
instant.

Each receipt is one short write, which is complete or missing. A written receipt is in the kernel, so it
survives the kill of its process.
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
    """The assignment of a publisher, given on its command line."""

    url: str
    topic: str
    directory: str
    name: str
    index: int
    run: int
    rate: float

    @property
    def receipts(self) -> Path:
        """The file with the offset of each message of this run."""
        return Path(self.directory) / f"{self.name}-{self.run}.receipts"


class Control:
    """A word in shared memory that tells all publishers to stop."""

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
    """The offsets of one run's messages, in order."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, offset: int) -> None:
        os.write(self._descriptor, struct.pack(f"={_WORD_FORMAT}", offset))


def read_receipts(path: Path) -> tuple[int, ...]:
    """The receipts of a run; none if it was killed before its first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    return struct.unpack(f"={len(data) // _WORD}{_WORD_FORMAT}", data)
