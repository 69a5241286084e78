"""The parts of a state machine, and what they may rely on.

Entries are handed out by kind. A part changes only when it applies one, and what it does then depends on
nothing but the entry and the parts as they are: no clock, no chance, no order of a set, no library whose
judgement changes with its version. An entry that asks for what cannot be is `Rejected` and changes nothing.

Applying reads and writes no disk. What is too large for a checkpoint goes into blocks, which never change
once they are written; a part writes them when it saves and reads them back when somebody looks something up.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

from hawser.log.entry import Entry
from hawser.log.state.results import Result

__all__ = ["BadState", "Blocks", "Context", "Offsets", "Part", "Unsupported"]


class Unsupported(Exception):
    """The log or the state needs a newer program: this member must stop, for it cannot know what to do."""


class BadState(Exception):
    """A saved state, or a block of it, cannot be loaded. Another build may have saved it."""


class Blocks(Protocol):
    """Named, immutable pieces of state. What was written can be read until a checkpoint does not list it."""

    def write(self, name: str, data: bytes) -> None:
        """May come again with the same bytes, after a restart from an earlier checkpoint."""

    def read(self, name: str) -> bytes: ...


PartType = TypeVar("PartType", bound="Part")


class Context:
    """The parts of one machine, for each other."""

    __slots__ = ("_found", "_parts")

    def __init__(self, parts: "Sequence[Part]") -> None:
        self._parts = tuple(parts)
        self._found: dict[type, Part] = {}

    @property
    def offsets(self) -> "Offsets":
        """The part that gives out offsets."""
        return next(part for part in self._parts if isinstance(part, Offsets))

    def part(self, kind: type[PartType]) -> PartType:
        """The part that is of this class; the machine must have one."""
        found = self._found.get(kind)
        if found is None:
            found = next((part for part in self._parts if isinstance(part, kind)), None)
            assert found is not None, f"this machine has no {kind.__name__}"
            self._found[kind] = found
        return found  # type: ignore[return-value]  # what is under a class is of that class


class Part(ABC):
    """One part of the state of a shard."""

    name: ClassVar[str]
    """Under which it is saved, and with which the names of its blocks begin."""

    kinds: ClassVar[Mapping[int, int]]
    """The kinds of entries it applies, each with the highest version it knows."""

    transactional: ClassVar[bool] = False
    """Whether it gets every entry that carries the id of a transaction, whatever its kind."""

    def begin(self, blocks: Blocks) -> None:  # noqa: B027  # most parts have no blocks
        """Called once, before anything else."""

    @abstractmethod
    def apply(self, entry: Entry, context: Context) -> Result:
        """What the entry asks for, or `Rejected` and no change. Its version is one of those declared."""

    @abstractmethod
    def save(self) -> tuple[bytes, Sequence[str]]:
        """(state, names of all blocks it needs), the blocks written. The part goes on as before, also if this
        raises what `Blocks.write` raises."""

    @abstractmethod
    def load(self, state: bytes) -> None:
        """Become what was saved; BadState if it cannot be."""

    @abstractmethod
    def digest(self) -> bytes:
        """All that can be observed of the part, the same bytes for the same state however it came about."""

    @property
    def needed(self) -> int | None:
        """The lowest index of an entry whose payload may still be read; None if there is none."""
        return None


class Offsets(Part):
    """The part that gives out offsets: those from `start` up to but not including `end` can be read."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The first offset that is kept."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The offset that the next record gets."""
