"""Transactions: everything published and accepted in one takes effect as a whole, or not at all."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from hawser.api.message import Message, Messages
from hawser.api.queue import Queue
from hawser.api.subscription import Subscription
from hawser.api.topic import Topic
from hawser.errors import UsageError

__all__ = ["Transaction", "TransactionState", "Work", "no_transactions"]

TransactionState = Literal["open", "committing", "rolling back", "committed", "rolled back", "unknown"]


class Work(ABC):
    """The operations of a transaction. They do not wait for the cluster, except to get messages, or while
    much is unacknowledged: a refused operation shows in the next call, or at the commit.

    One thread at a time may use it. Published messages are visible only after the commit. The order of
    operations is kept within one partition or queue, but not across them."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Its name, as `hawser tx show` takes it."""

    @abstractmethod
    def publish(
        self,
        target: Topic[Any] | Queue[Any],
        data: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Publish a copy of `data` to a topic, or put it into a queue, if this is committed."""

    @abstractmethod
    def publish_many(
        self,
        target: Topic[Any] | Queue[Any],
        items: Iterable[Any],
        *,
        keys: Iterable[bytes | None] | None = None,
    ) -> None:
        """As `publish`, in order; `keys` has one for each of the items. At least one item."""

    @abstractmethod
    def get(self, queue: Queue[Any], timeout: float | None = None) -> Message | None:
        """As `Queue.get`. A message that is not accepted when the transaction ends is released.

        The read is unconfirmed: just after a change of leaders another consumer may have accepted the
        message. Then accepting it makes the commit fail, and the transaction has no effect. So accept every
        message that you act upon."""

    @abstractmethod
    def get_many(self, queue: Queue[Any], count: int, timeout: float | None = None) -> Messages:
        """As `Queue.get_many`; otherwise as `get`."""

    @abstractmethod
    def accept(self, messages: Message | Sequence[Message]) -> None:
        """Accept a held message, or several, when the transaction commits, however they were received. They
        belong to the transaction from here on. If it is rolled back they are delivered again, to any
        consumer."""


class Transaction(Work):
    """A transaction over any topics and queues of a cluster. Made by `Bus.transaction`; in a `with` block it
    is committed at the end, and rolled back by an exception."""

    @property
    @abstractmethod
    def state(self) -> TransactionState:
        """The state of the transaction; "unknown" if no shard has answered its commit."""

    @abstractmethod
    def commit_offsets(self, subscription: Subscription[Any]) -> None:
        """Move the subscription's group behind the samples taken, when the transaction commits. If it is
        rolled back, the subscription goes back and takes the same samples again; so call this right after
        taking them, before anything that may fail. A function that is run again must take them again: with
        samples of a transaction that was not committed this raises UsageError.

        It covers the samples that any thread took. Threads that share the subscription must take samples and
        call this one at a time. If the rollback of another transaction made some of the samples void, this
        transaction is rolled back."""

    @abstractmethod
    def commit(self) -> None:
        """Return when it is committed: a majority of each shard has it on disk, and it is visible. Messages
        for a topic that cannot be reached follow later; until then a majority of another shard has them.

        TransactionAborted if it was rolled back, as a whole; it may be run again. OutcomeUnknown, or InDoubt
        over several shards, if no shard answers: do not run it again before its outcome is known; `resolve`
        asks for it. `Bus.run_transaction` does all that."""

    @abstractmethod
    def resolve(self) -> bool:
        """Whether it is committed. After OutcomeUnknown this asks for the outcome, and rolls an undecided
        transaction back: after False it may be run again. OutcomeUnknown or InDoubt if still no shard
        answers; ask again later. The outcome is remembered for two hours."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo everything in it. Changes nothing once it is over."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def __repr__(self) -> str:
        return f"<Transaction {self.id}, {self.state}>"


def no_transactions(url: str) -> UsageError:
    """The error for a transaction on one host."""
    return UsageError(
        f"there are no transactions on one host ({url}); connect to a cluster, "
        'hawser.connect("hawser://host:port"), or start one with `hawser up`'
    )
