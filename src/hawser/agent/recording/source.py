"""The interface of a recorder's source: a region of shared memory, of a topic, a queue or the trace."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from hawser.agent.recording.blocks import Block
from hawser.record.recording import Gap

__all__ = ["Source"]


class Source(ABC):
    """A region whose samples are taken in the order of their offsets."""

    uuid: str
    """The uuid of the region; a region that is created again under the same name has another."""
    schema: str | None
    """The fingerprint of the region's schema, or None."""
    mark: int
    """The saved position in the region: all samples up to this offset are recorded."""

    @property
    @abstractmethod
    def head(self) -> int:
        """The newest offset."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """The first offset that can be taken; unrecorded samples before it are lost."""

    @abstractmethod
    def take(self, timeout: float) -> Block | Gap | None:
        """The next samples, or a gap in place of a sample that is too large for a batch; None if there is
        none within `timeout` seconds. Closed if the region was deleted."""

    @abstractmethod
    def take_again(self, first: int, last: int) -> Block | Gap | None:
        """Samples that were taken before, of those from `first` to `last`: the first ones that are still
        there, or a gap as in `take`; None if none is."""

    @abstractmethod
    def commit(self) -> None:
        """Save the position: all taken samples are recorded."""

    @abstractmethod
    def close(self) -> None:
        """Close the region. Samples that were taken and not committed are taken again by the next source."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
