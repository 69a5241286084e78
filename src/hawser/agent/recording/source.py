"""What a recorder takes from: a region of shared memory, a topic's or a queue's."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from hawser.agent.recording.blocks import Block
from hawser.record.recording import Gap

__all__ = ["Source"]


class Source(ABC):
    """A region as its recorder takes it, in the order of its offsets."""

    uuid: str
    """Of the region: one made anew under the same name has another."""
    schema: str | None
    """The fingerprint of the schema that it was made with, if it was."""
    mark: int
    """Up to this offset all is recorded, as far as the region knows."""

    @property
    @abstractmethod
    def head(self) -> int:
        """The newest offset there is."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """Everything before this offset that is not recorded cannot be taken any more."""

    @abstractmethod
    def take(self, timeout: float) -> Block | Gap | None:
        """What comes next, or a gap instead of what no batch can hold; None if there is nothing within
        `timeout` seconds. Closed if the region was deleted."""

    @abstractmethod
    def take_again(self, first: int, last: int) -> Block | Gap | None:
        """Samples that were taken before, of those from `first` to `last`: the first ones that are still
        there, or a gap as in `take`; None if none is."""

    @abstractmethod
    def commit(self) -> None:
        """All that was taken is recorded."""

    @abstractmethod
    def close(self) -> None:
        """Let go; what was taken and not committed is there for the next one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
