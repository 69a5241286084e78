"""The parts of a state machine, and their contract.

The machine passes entries to parts by kind. A part changes only when it applies an entry, and the change
depends only on the entry and the parts: no clock, no randomness, no order of a set, no library whose results
change with its version. An entry with an impossible request is `Rejected` and changes nothing.

Applying does not read or write the disk. State that is too large for a checkpoint goes into immutable blocks;
a part writes them when it saves and reads them back for lookups.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

from hawser.log.entry import Entry
from hawser.log.state.results import Result

__all__ = ["BadState", "Blocks", "Context", "Offsets", "Part", "Unsupported"]


class Unsupported(Exception):
    """The log or the state needs a newer program, so this member must stop."""


class BadState(Exception):
    """A saved state, or one of its blocks, cannot be loaded. Another build may have saved it."""


class Blocks(Protocol):
    """Named, immutable pieces of state. A block can be read until a checkpoint no longer lists it."""

    def write(self, name: str, data: bytes) -> None:
        """May be called again with the same bytes, after a restart from an earlier checkpoint."""

    def read(self, name: str) -> bytes: ...


PartType = TypeVar("PartType", bound="Part")


class Context:
    """Gives the parts of one machine access to each other."""

    __slots__ = ("_found", "_parts")

    def __init__(self, parts: "Sequence[Part]") -> None:
        self._parts = tuple(parts)
        self._found: dict[type, Part] = {}

    @property
    def offsets(self) -> "Offsets":
        """The part that assigns offsets."""
        return next(part for part in self._parts if isinstance(part, Offsets))

    def part(self, kind: type[PartType]) -> PartType:
        """The part of this class, which the machine must have."""
        found = self._found.get(kind)
        if found is None:
            found = next((part for part in self._parts if isinstance(part, kind)), None)
            assert found is not None, f"this machine has no {kind.__name__}"
            self._found[kind] = found
        return found  # type: ignore[return-value]  # what is under a class is of that class


class Part(ABC):
    """One part of the state of a shard."""

    name: ClassVar[str]
    """The name under which it is saved, and the prefix of its blocks."""

    kinds: ClassVar[Mapping[int, int]]
    """The kinds of entries it applies, each with the highest known version."""

    transactional: ClassVar[bool] = False
    """Whether it applies every entry with a transaction's id, of any kind."""

    def begin(self, blocks: Blocks) -> None:  # noqa: B027  # most parts have no blocks
        """Called once, before anything else."""

    @abstractmethod
    def apply(self, entry: Entry, context: Context) -> Result:
        """Apply the entry, whose version is known; `Rejected` means no change."""

    @abstractmethod
    def save(self) -> tuple[bytes, Sequence[str]]:
        """(state, names of all blocks it needs); writes new blocks. The part is unchanged, even if
        `Blocks.write` raises."""

    @abstractmethod
    def load(self, state: bytes) -> None:
        """Load a saved state; BadState if it is invalid."""

    @abstractmethod
    def digest(self) -> bytes:
        """Everything observable of the part; equal states have equal bytes."""

    @property
    def needed(self) -> int | None:
        """The lowest index of an entry whose payload may still be read; None without one."""
        return None


class Offsets(Part):
    """A part that assigns offsets; those from `start` up to but not including `end` can be read."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The first offset that can be read."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The offset of the next record."""
