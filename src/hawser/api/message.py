"""Messages of queues, as consumers get them."""

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
    """A message of a queue, held by whoever got it until it is accepted, released or rejected.

    In a `with` block it is accepted at the end, and released by an exception, which goes on whatever becomes
    of the release. A message that is dropped without being settled is released. Settling a message whose
    claim is lost (its lease is over, its loop went on to the next message, its session is lost, or the queue
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
        """It is done, and never delivered again. To say the same again changes nothing; to say something else
        once it is settled is a UsageError."""

    @abstractmethod
    def release(self) -> None:
        """Give it back: it is delivered again, before those put later, unless it was its last delivery."""

    @abstractmethod
    def reject(self) -> None:
        """It can never be handled: it becomes a dead letter. Of a dead letter: it stays one."""


class _Block(ABC):
    """Accepted at the end of a `with` block. An exception releases them, and is what counts, whatever becomes
    of the release."""

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
    """Messages that were got together, oldest first. `accept`, `release` and `reject` are for all of them
    that are still held, in one step; in a `with` block they are accepted at the end, and released by an
    exception.

    Fenced says that the claim of some was taken away: nothing changed for those, the others are settled."""

    __slots__ = ("_settle",)

    def __init__(
        self, messages: Iterable[Message], settle: Callable[[list[Message], Disposition], None]
    ) -> None:
        super().__init__(messages)
        self._settle = settle

    def accept(self) -> None:
        """All that are still held are done."""
        self._settle(self, "accept")

    def release(self) -> None:
        """Give back all that are still held."""
        self._settle(self, "release")

    def reject(self) -> None:
        """All that are still held become dead letters."""
        self._settle(self, "reject")


class Held(Protocol):
    """Messages that are settled together."""

    def accept(self) -> None: ...
    def release(self) -> None: ...
    def reject(self) -> None: ...


class Values(list[T], _Block):
    """Copies of messages that were got together: decoded by the queue's schema, or bytes. All of them are
    accepted, released or rejected together, as `Messages` are; dropped without a word they are released."""

    __slots__ = ("_held",)

    def __init__(self, values: Iterable[T], held: Held) -> None:
        super().__init__(values)
        self._held = held

    def accept(self) -> None:
        """All are done."""
        self._held.accept()

    def release(self) -> None:
        """Give them back."""
        self._held.release()

    def reject(self) -> None:
        """All become dead letters."""
        self._held.reject()


class ValueLoop(_Block, Iterator[T]):
    """The values of messages, one at a time. Each is accepted when the next one is asked for: Fenced, or
    Closed, if its claim was taken away by then, as closing the consumer does.

    For whoever leaves the loop before its end, a `with` block accepts the one it was at, and releases it if
    there was an exception:

        with consumer.values() as values:
            for value in values:
                if handle(value):
                    break

    Without such a block it is released with the loop. It is also released when the loop is begun again, by
    another `for` or whatever else calls `iter()`, as `islice` does: accept it before. Nothing may ask for
    values before those it has are done, neither another thread nor anything that reads ahead.

    On one host what an Arrow schema decodes is a view, which keeps its place of `max_held`: allow two or
    more. All other values are copies."""

    __slots__ = ()

    @abstractmethod
    def accept(self) -> None:
        """The one given out last is done. Nothing changes if there is none, or it was settled."""

    @abstractmethod
    def release(self) -> None:
        """Give back the one given out last."""

    @abstractmethod
    def reject(self) -> None:
        """The one given out last becomes a dead letter."""
