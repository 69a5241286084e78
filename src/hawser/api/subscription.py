"""Subscriptions: taking samples, by call, by iteration, or in an event loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from hawser.api.sample import Sample
from hawser.errors import UsageError
from hawser.limits import MAX_COUNT, is_wait

__all__ = ["Reliable", "Start", "Subscription", "check_count", "check_start", "check_timeout", "is_count"]

T = TypeVar("T")

Start = Literal["earliest", "latest"] | int | datetime | None
Reliable = bool | Literal["durable"]


class Subscription(ABC, Generic[T]):
    """Takes every sample of a topic, from its start on, in order; on a cluster in the order of each
    partition.

    An iterator (`for` and `async for`) and a context manager. Iterating lets go of the previous
    sample at each step; what is still viewed stays valid."""

    name: str

    @abstractmethod
    def take(self, timeout: float | None = None) -> Sample | None:
        """The next sample; None if there is none within `timeout` seconds (None: wait for ever).

        Raises Full when as many samples as `max_held` allows are held already."""

    @abstractmethod
    def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        """Up to `count` available samples; waits only for the first."""

    @abstractmethod
    def take_value(self, timeout: float | None = None) -> T | None:
        """The next message as a copy: decoded by the topic's schema, or bytes; None if there is none
        within `timeout` seconds. The fastest way to take small messages."""

    @abstractmethod
    def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        """As `take_value`, for up to `count` available messages; waits only for the first.

        It ends before a message that cannot be decoded, and the next call raises the error. If that message
        is the first, this call raises."""

    @abstractmethod
    def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        """Up to `count` available batches, each a pyarrow.RecordBatch with the columns key, value, headers,
        timestamp, partition and offset; waits only for the first. Only on a cluster, which stores batches."""

    @property
    @abstractmethod
    def missed(self) -> int:
        """Exactly how many samples were overwritten, or trimmed, before they were taken."""

    @property
    @abstractmethod
    def received(self) -> int:
        """How many samples were taken."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Offset of the last sample taken or missed; on a cluster of the last one taken, in its partition."""

    @property
    @abstractmethod
    def held(self) -> int:
        """How many samples are held now: taken, and neither released nor forgotten. On a cluster none is."""

    @property
    @abstractmethod
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""

    @abstractmethod
    def commit(self) -> None:
        """Save the position reached so far for the `group`; its next member resumes behind it.

        On a cluster Fenced says that another member has taken over some of the messages taken since the last
        commit, and will take them again; the others are committed, and the subscription continues. UsageError
        while a transaction moves the same partitions, or if such a transaction was not committed and no
        message was taken since."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Samples still held stay valid."""

    @abstractmethod
    def values(self) -> Iterator[T]:
        """Iterate over the decoded values of a typed topic."""

    def __iter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> Sample: ...

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Sample: ...

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
        return f"<Subscription of {self.name!r}>"


def check_start(history: int, start: Start) -> None:
    """UsageError unless `history` and `start` are valid together."""
    check_count(history, 0, "history")
    if start is not None and history:
        raise UsageError("history and start both say where to begin; give one of them")
    if start is None or start in ("earliest", "latest"):
        return
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError(f"start={start!r} has no time zone; say which, as in start.astimezone()")
        return
    if not is_count(start) or int(start) < 1:
        raise UsageError(
            f'start={start!r} is not "earliest", "latest", an offset from 1 on or a datetime with a time zone'
        )


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 to 2**63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def check_count(count: Any, least: int, what: str = "count") -> int:
    """UsageError unless it is a whole number from `least` to 2**63 - 1."""
    if type(count) is int and least <= count <= MAX_COUNT:  # nearly always, and for every batch
        return count
    if not is_count(count) or count < least:
        raise UsageError(f"{what}={count!r} is not a whole number from {least} to 2**63 - 1")
    return int(count)


def check_timeout(timeout: Any) -> None:
    """UsageError unless it is a valid timeout."""
    if timeout is not None and not is_wait(timeout):
        raise UsageError("timeout is seconds, 0 or more, or None to wait for ever")
