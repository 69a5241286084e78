"""Messages of queues: held by a consumer until they are accepted, released or rejected."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Protocol, Self, TypeVar

from hawser.api.sample import Sample
from hawser.errors import Closed, Fenced, UsageError

__all__ = ["OVER", "Held", "Message", "Messages", "ValueLoop", "Values", "Disposition"]

T = TypeVar("T")

Disposition = Literal["accept", "release", "reject"]
# After these a message cannot be settled again; after other errors it may be.
OVER: Final = (Closed, Fenced, UsageError)


class Message(Sample):
    """A message of a queue, held by its consumer until it is accepted, released or rejected.

    A `with` block accepts it at the end, and releases it on an exception, which is raised whether or not the
    release succeeds. A message that is dropped without being settled is released. Settling a message whose
    claim is lost (its lease is over, its loop advanced to the next message, its session is lost, or the queue
    has another leader) raises Fenced and changes nothing: the message is, or was, delivered again. The end of
    a block raises Fenced as well. On one host the data of a message cannot be read once it is settled and no
    view of it is left; views that were made before stay valid. Key, headers and counts can always be read."""

    __slots__ = ()

    delivery_count: int
    """How often it was delivered, this time included."""
    redelivered: bool
    """Whether it was, or may have been, delivered before."""

    @abstractmethod
    def accept(self) -> None:
        """Acknowledge the message: it is never delivered again. Repeating the same settlement changes
        nothing; another one is a UsageError."""

    @abstractmethod
    def release(self) -> None:
        """Give the message back: it is delivered again, before later ones, unless this was its last
        delivery."""

    @abstractmethod
    def reject(self) -> None:
        """Make the message a dead letter, because it can never be handled. A dead letter stays one."""


class _Block(ABC):
    """Accepted at the end of a `with` block, released on an exception, which is raised whether or not the
    release succeeds."""

    __slots__ = ()

    @abstractmethod
    def accept(self) -> None: ...

    @abstractmethod
    def release(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.accept()
        else:
            with suppress(Exception):
                self.release()


class Messages(list[Message], _Block):
    """Messages received together, oldest first. `accept`, `release` and `reject` settle all that are still
    held, in one step; a `with` block accepts them at the end, and releases them on an exception.

    Fenced says that the claim of some was lost: nothing changed for those, and the others are settled."""

    __slots__ = ("_settle",)

    def __init__(
        self, messages: Iterable[Message], settle: Callable[[list[Message], Disposition], None]
    ) -> None:
        super().__init__(messages)
        self._settle = settle

    def accept(self) -> None:
        """Accept all that are still held."""
        self._settle(self, "accept")

    def release(self) -> None:
        """Release all that are still held."""
        self._settle(self, "release")

    def reject(self) -> None:
        """Reject all that are still held: they become dead letters."""
        self._settle(self, "reject")


class Held(Protocol):
    """Messages that are settled together."""

    def accept(self) -> None: ...
    def release(self) -> None: ...
    def reject(self) -> None: ...


class Values(list[T], _Block):
    """Copies of messages received together: decoded by the queue's schema, or bytes. All of them are
    accepted, released or rejected together, as `Messages` are; dropped without being settled they are
    released."""

    __slots__ = ("_held",)

    def __init__(self, values: Iterable[T], held: Held) -> None:
        super().__init__(values)
        self._held = held

    def accept(self) -> None:
        """Accept all."""
        self._held.accept()

    def release(self) -> None:
        """Release all."""
        self._held.release()

    def reject(self) -> None:
        """Reject all: they become dead letters."""
        self._held.reject()


class ValueLoop(_Block, Iterator[T]):
    """The values of messages, one at a time. Advancing to the next value accepts the previous message: Fenced
    or Closed if its claim was lost by then, as after closing the consumer.

    If a loop may end early, a `with` block accepts the message it was at, and releases it on an exception:

        with consumer.values() as values:
            for value in values:
                if handle(value):
                    break

    Without such a block it is released with the loop. It is also released when the loop begins again, by
    another `for` or any other call of `iter()`, as in `islice`: accept it before. Code that reads ahead, like
    another thread or `executor.map`, would accept values before they are processed.

    On one host what an Arrow schema decodes is a view, which keeps its place of `max_held`: allow two or
    more. All other values are copies."""

    __slots__ = ()

    @abstractmethod
    def accept(self) -> None:
        """Accept the current message. Changes nothing if there is none, or if it is settled."""

    @abstractmethod
    def release(self) -> None:
        """Release the current message."""

    @abstractmethod
    def reject(self) -> None:
        """Reject the current message: it becomes a dead letter."""
