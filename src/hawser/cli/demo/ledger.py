"""What the processes of the demo write down, in files of their own: true after a kill at any instant.

Stores of a process reach a shared mapping in the order it made them, and a process that is killed does not
take them back. So a note is written beside the last one and then made valid by one word. Lists grow by one
short write each, which is there as a whole or not at all.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

__all__ = ["Assignment", "Control", "Note", "Notebook", "Numbers", "Phase", "read_note", "read_numbers"]

_WORD: Final = 8
_WORD_FORMAT: Final = "Q"


class Assignment(msgspec.Struct, frozen=True):
    """What a process of the demo is told on its command line."""

    url: str
    topic: str
    directory: str
    name: str
    index: int
    run: int
    kind: str
    rate: float
    stage_pid: int

    def orphaned(self) -> bool:
        """Whether the stage is gone, and nobody is left to tell this process to end."""
        return os.getppid() != self.stage_pid

    def file(self, kind: str) -> Path:
        """The file in which this run writes things of that kind down."""
        return Path(self.directory) / f"{self.name}-{self.run}.{kind}"


class Phase:
    """What the stage asks everybody to do."""

    RUN = 0
    STOP_PUBLISHING = 1
    DRAIN = 2


class Control:
    """Words that all processes read: the phase, and the head up to which to drain."""

    def __init__(self, directory: Path) -> None:
        self._words = _map_words(directory / "control", 2)

    @property
    def phase(self) -> int:
        return self._words[0]

    @property
    def final_head(self) -> int:
        return self._words[1]

    def stop_publishing(self) -> None:
        self._words[0] = Phase.STOP_PUBLISHING

    def drain(self, final_head: int) -> None:
        self._words[1] = final_head
        self._words[0] = Phase.DRAIN


class Note(NamedTuple):
    """How far a run of a subscriber is. `previous` is the position one message before."""

    base: int
    position: int
    previous: int
    received: int
    missed: int
    digest: int
    faults: int
    finished: int


class Notebook:
    """Keeps the last note of a run."""

    def __init__(self, path: Path) -> None:
        self._words = _map_words(path, 1 + 2 * len(Note._fields))

    def write(self, note: Note) -> None:
        generation = self._words[0] + 1
        start = 1 + generation % 2 * len(note)
        for place, value in enumerate(note, start):
            self._words[place] = value
        self._words[0] = generation


def read_note(path: Path) -> Note | None:
    """The last note of a run; None if it was killed before its first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    words = struct.unpack(f"={len(data) // _WORD}{_WORD_FORMAT}", data)
    if not words or words[0] == 0:
        return None
    start = 1 + words[0] % 2 * len(Note._fields)
    return Note(*words[start : start + len(Note._fields)])


class Numbers:
    """A list of numbers that only grows."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, *numbers: int) -> None:
        os.write(self._descriptor, struct.pack(f"={len(numbers)}{_WORD_FORMAT}", *numbers))


def read_numbers(path: Path) -> tuple[int, ...]:
    """All numbers of a list; none if the file was not made."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    return struct.unpack(f"={len(data) // _WORD}{_WORD_FORMAT}", data)


def _map_words(path: Path, count: int) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, count * _WORD)
        return memoryview(mmap.mmap(descriptor, count * _WORD)).cast(_WORD_FORMAT)
    finally:
        os.close(descriptor)
