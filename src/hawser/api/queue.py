"""Queues: each message is delivered to one consumer at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from hawser.api.info import QueueInfo
from hawser.api.message import Message, Messages, ValueLoop, Values
from hawser.api.sample import Sample
from hawser.api.subscription import is_count
from hawser.errors import UsageError
from hawser.record.record import Receipt

__all__ = ["Consumer", "Queue", "check_prefetch"]

T = TypeVar("T")


class Consumer(ABC, Generic[T]):
    """Gets messages of a queue by iteration. A context manager.

    Each `for` is a separate loop, in any thread; all loops share the prefetched messages. A message that is
    still held when its loop advances is released, and settling it later raises Fenced: settle it before, or
    use `with`:

        for job in queue.consume():
            with job:
                handle(job.data)

    If only the values are needed, `values` is shorter, and faster on one host:

        for value in queue.consume().values():
            handle(value)
    """

    name: str

    @abstractmethod
    def __iter__(self) -> Iterator[Message]:
        """Begin a new loop."""

    @abstractmethod
    def __next__(self) -> Message:
        """Wait for the next message. All callers of this method share one loop. StopIteration once the
        consumer is closed."""

    @abstractmethod
    def values(self) -> ValueLoop[T]:
        """A loop over values, decoded by the queue's schema, or bytes; advancing accepts the previous
        message. A message that cannot be decoded is released, and the error is raised."""

    @abstractmethod
    def close(self) -> None:
        """Leave the queue, and release all held and prefetched messages."""

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
        return f"<Consumer of {self.name!r}>"


class Queue(ABC, Generic[T]):
    """A named queue: every message is delivered to one consumer at a time, oldest first, until one accepts
    it. If a consumer dies, its messages are delivered again. Made by `Bus.queue`; threads may share it.

    `T` is what it carries: anything bytes-like, or the values of its schema."""

    name: str

    @abstractmethod
    def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Put a copy of `data` at the end. While the queue is full it waits: for ever, or `timeout` seconds,
        then Full; with 0 Full at once.

        On one host it is then there for the consumers. On a cluster a majority has it on disk;
        OutcomeUnknown says that it may be in the queue. `timeout` is only for room: if no node answers, the
        put ends after the timeout of the connection with OutcomeUnknown or Unavailable."""

    @abstractmethod
    def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Put in order; `keys` has one for each of the items. At least one item.

        On one host a killed caller leaves a prefix; so does an error, which carries its length as
        `published`. On a cluster it is all or none."""

    @abstractmethod
    def get(self, timeout: float | None = None) -> Message | None:
        """The oldest ready message; None if there is none within `timeout` seconds (None: wait for ever). A
        loop over `get_many(1, timeout)` needs no test for None.

        On one host Full when as many messages as `max_held` allows are held already."""

    @abstractmethod
    def get_many(self, count: int, timeout: float | None = None) -> Messages:
        """Up to `count` of the oldest ready messages; waits only for the first. Empty when the time is
        over."""

    @abstractmethod
    def get_values(self, count: int, timeout: float | None = None) -> Values[T]:
        """As `get_many`, as copies that are settled together. The fastest way to get small messages.

        It ends before a message that cannot be decoded. If that is the first, it is released and the error of
        its decoding is raised; those behind it go back, and no delivery of them is counted on a cluster."""

    @abstractmethod
    def consume(self, prefetch: int | None = None) -> Consumer[T]:
        """Iterate over messages, one at a time. Up to `prefetch` messages are received ahead; no other
        consumer gets them meanwhile. The default suits the queue: no prefetch on one host, nor under a
        lease."""

    @abstractmethod
    def peek(self, count: int) -> list[Sample]:
        """Copies of the oldest `count` messages that are not accepted, held or not; nothing changes."""

    @abstractmethod
    def info(self) -> QueueInfo:
        """The queue's current state and settings."""

    @abstractmethod
    def dead_letters(self, *, create: bool = True) -> "Queue[T]":
        """The queue of this queue's dead letters: messages that were rejected, or delivered `max_deliveries`
        times and never accepted. It works like any other queue and has the same schema; the header
        `hawser-dead-letter` of each message says where it comes from. If `dead_letter` names a queue, that
        queue may have dead letters of other queues, too. On a cluster, `put` and `delete` of dead letters
        that stay with their queue are UsageErrors.

        The `publisher` of a dead letter, and of a retried one, is the process that moved it; on a cluster it
        is empty.

        On one host, and if `dead_letter` names a queue, it is created with the first dead letter, or here;
        NotFound without `create`."""

    @abstractmethod
    def retry_dead_letters(self, count: int | None = None) -> int:
        """Move at most `count` of this queue's dead letters back to its end, oldest first, and return how
        many were moved. Their deliveries are counted anew. UsageError if this queue itself holds dead
        letters. On a cluster `published` of an error is the number moved before it."""

    @abstractmethod
    def forget(self, name: str) -> bool:
        """Give up the right to be the only consumer that an agent keeps under its name, on one host; False if
        there is none."""

    @abstractmethod
    def delete(self, force: bool = False) -> None:
        """Remove this queue and its messages, and no other queue of its name; see `Topic.delete`. On one host
        UsageError while others use it, unless `force`. Its dead letters stay. Other users of the queue get
        Closed."""

    @abstractmethod
    def close(self) -> None:
        """Leave the queue with everything that was made from this object; messages that are still held are
        released. The queue itself stays."""

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
        return f"<Queue {self.name!r}>"


def check_prefetch(prefetch: Any, most_held: int) -> None:
    """UsageError unless a consumer that may hold so many messages can hold `prefetch` ahead of one."""
    if prefetch is not None and not (is_count(prefetch) and prefetch < most_held):
        raise UsageError(
            f"prefetch={prefetch!r} is outside 0 to {most_held - 1}, one less than a consumer may hold, "
            "or None"
        )
