"""Transactions: what is published and accepted in one happens as a whole, or not at all."""

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
    """What can be done in a transaction. Nothing of it waits for the cluster, except for messages, or while
    much is on its way: an operation that was refused shows in the next call, or at the commit.

    It belongs to one thread at a time. What was published is visible to nobody before the commit; the order
    of operations is kept within one partition or queue, and there is none across them."""

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
        """As `Queue.get`. A message that is not accepted before the transaction ends is then released.

        For a moment after a change of leaders it may be one that somebody else has accepted. To accept it,
        too, makes the commit fail, so that nothing of this transaction happens; accept what you act upon."""

    @abstractmethod
    def get_many(self, queue: Queue[Any], count: int, timeout: float | None = None) -> Messages:
        """As `Queue.get_many`; otherwise as `get`."""

    @abstractmethod
    def accept(self, messages: Message | Sequence[Message]) -> None:
        """Accept a message that is held, or several, if this is committed; however it was got. From here on
        the transaction has it. If it is rolled back the message is delivered again, to whoever comes."""


class Transaction(Work):
    """A transaction over any topics and queues of a cluster. Made by `Bus.transaction`; in a `with` block it
    is committed at the end, and rolled back by an exception."""

    @property
    @abstractmethod
    def state(self) -> TransactionState:
        """How far it is. "unknown" if nobody said what became of its commit."""

    @abstractmethod
    def commit_offsets(self, subscription: Subscription[Any]) -> None:
        """Let the group of this subscription go on behind what was taken of it, if this is committed. If it
        is rolled back, the subscription goes back too, and takes the same again; so call this as soon as the
        samples are taken, before anything that may fail. A function that is run again must take them again:
        with samples of a transaction that was not committed this raises UsageError.

        It covers the samples that any thread took. Threads that share the subscription must take samples and
        call this one at a time. If the rollback of another transaction made some of the samples void, this
        transaction is rolled back."""

    @abstractmethod
    def commit(self) -> None:
        """Return when it is committed: a majority of each shard has it on disk, and it is visible. What is
        for a topic that cannot be reached follows; until then a majority of another shard has it.

        TransactionAborted if it was rolled back, as a whole; it may be run again. OutcomeUnknown, or InDoubt
        over several shards, if nobody says which: then it is one or the other, and must not be run again
        before that is known: `resolve` asks. `Bus.run_transaction` does all that."""

    @abstractmethod
    def resolve(self) -> bool:
        """Whether it is committed. After OutcomeUnknown this asks what became of the commit, and has the
        transaction rolled back if that was not done: so with False it may be run again. OutcomeUnknown, or
        InDoubt, if still nobody says; then ask later. It is remembered for two hours."""

    @abstractmethod
    def rollback(self) -> None:
        """Have nothing of it happen. Once it is over, this changes nothing."""

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
    """The error for whoever wants a transaction on one host."""
    return UsageError(
        f"there are no transactions on one host ({url}); connect to a cluster, "
        'hawser.connect("hawser://host:port"), or start one with `hawser up`'
    )
