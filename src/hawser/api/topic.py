"""Topics."""

from abc import abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from hawser.api.info import ReadResult, TopicInfo
from hawser.api.publishing import Publisher, Publishing
from hawser.api.subscription import Reliable, Start, Subscription
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Topic"]

T = TypeVar("T")


class Topic(Publishing[T]):
    """A named stream of messages: every subscriber gets every message. Made by `Bus.topic`.

    `T` is what it carries: anything bytes-like, or the values of its schema."""

    @abstractmethod
    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "Future[Receipt]":
        """As publish, but the result is a future. On one host it is done at once, with Full in it when a
        reliable subscriber is in the way. On a cluster what is published so goes out together; Full says that
        too much is waiting."""

    @abstractmethod
    def flush(self) -> None:
        """Return when every `publish_nowait` is done, well or not; on one host they always are."""

    @abstractmethod
    def publisher(self, *, exclusive: bool = False) -> Publisher[T]:
        """A publisher of its own; `exclusive`, on one host, refuses any other one for as long as it lives."""

    @abstractmethod
    def subscribe(
        self,
        *,
        history: int = 0,
        start: Start = None,
        group: str | None = None,
        reliable: Reliable = False,
        resume: bool = False,
        max_held: int | None = None,
        max_lag: int | None = None,
    ) -> Subscription[T]:
        """Subscribe from now on, or from `history` samples before now, or from `start`: "earliest",
        "latest", an offset or a datetime. An offset that is not there raises OffsetOutOfRange; a new group on
        a cluster begins at the nearest one instead.

        On one host `reliable` makes publishers wait rather than overwrite what was not taken; "durable" also
        while this name is not running, up to `max_lag` samples; on a cluster everything is reliable.
        `resume` saves the position under the bus's name for its next run; `group` saves one under its own
        name, moved by `commit()`, and on a cluster its members share the partitions. A subscription resumes
        from its saved position, if there is one, wherever else it would have started."""

    @abstractmethod
    def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        """Copies of the oldest `count` samples kept behind offset `after`, on a cluster of one partition;
        fewer only if there were no more when the call began. If its time runs out on a cluster, it raises
        Timeout or Unavailable; `read` of the error holds the samples that arrived before. OffsetOutOfRange on
        a cluster that has no sample `after`."""

    @abstractmethod
    def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        """Copies of the newest `count` samples kept behind offset `after`; otherwise as `read_oldest`."""

    @abstractmethod
    def info(self) -> TopicInfo:
        """The topic's current state and settings."""

    @abstractmethod
    def forget(self, name: str) -> bool:
        """Delete the position saved under a name ("group:g" for the group g); False if there is none."""

    @abstractmethod
    def delete(self, force: bool = False) -> None:
        """Delete this topic and its history, unless others have; a newer topic of the same name stays. On one
        host UsageError while others use it, unless `force`. On a cluster the call returns when nodes know
        that the topic is gone, and raises at its deadline. Other users of the topic get Closed."""

    @abstractmethod
    def close(self) -> None:
        """Leave the topic with everything that was made from this object. The topic itself stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"
