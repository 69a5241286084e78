"""Whoever wants to be told what transactions do on a shard.

An observer is made by its factory when a transaction first shows there, and told of everything in the order
in which it is applied; after its end it is dropped. It has no say: what it is told has happened. What it
raises goes no further than to whoever counts that, and it is told of nothing more. Observers are the
leader's: whoever begins to lead makes them anew when it has something to tell, and tells them first what is
staged already. What is applied while nobody leads is told to nobody.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hawser.limits import DEAD_LETTER_SUFFIX
from hawser.log.state.commands import Run
from hawser.log.state.queue import MESSAGES
from hawser.log.state.results import Outcome
from hawser.transaction.identity import TransactionId
from hawser.transaction.participant.staged import Operation, StagedAccept, StagedBatch

__all__ = ["Observers", "TransactionObserver", "TransactionObserverFactory"]


class TransactionObserver(Protocol):
    """What is told of one transaction on one shard."""

    def publish(self, target: str, records: int, index: int) -> None:
        """So many records are staged for this topic or queue, in the entry `index` of the shard's log."""

    def accept(self, queue: str, runs: Sequence[Run]) -> None:
        """Messages of this queue are locked: of each run the first offset, how many there are one behind the
        other, and how often each was delivered in vain."""

    def commit_offsets(self, topic: str, group: str, before: int, after: int) -> None:
        """The group is to go on at offset `after` of this partition, from `before`."""

    def prepare(self) -> None:
        """The branch can be committed and is closed."""

    def commit(self) -> None:
        """Everything that was staged has happened."""

    def rollback(self, outcome: Outcome) -> None:
        """Nothing has happened, for this reason."""


# Of a transaction and a shard, "topic@uuid/partition"; None if it is not to be observed.
TransactionObserverFactory = Callable[[TransactionId, str], TransactionObserver | None]


class Observers:
    """The observers of a shard, made by these factories. `name` is that of the topic here, or with True of
    the queue; `failed` is told what an observer raised."""

    def __init__(
        self,
        shard: str,
        name: Callable[[bool], str],
        factories: Sequence[TransactionObserverFactory],
        failed: Callable[[TransactionId, Exception], None],
    ) -> None:
        self._shard = shard
        self._name = name
        self._factories = tuple(factories)
        self._failed = failed
        # Those that somebody was told of, and are not over.
        self._observers: dict[TransactionId, list[TransactionObserver]] = {}

    def staged(self, transaction: TransactionId, operations: Sequence[Operation]) -> None:
        """The last of these is staged, behind the others."""
        observers = self._observers.get(transaction)
        if observers is None:
            observers = self._begin(transaction, operations[:-1])
        self._stage(transaction, observers, operations[-1])

    def prepared(self, transaction: TransactionId, operations: Sequence[Operation]) -> None:
        """These are all it has."""
        observers = self._observers.get(transaction)
        if observers is None:
            observers = self._begin(transaction, operations)
        self._tell(transaction, observers, "prepare")

    def ended(
        self, transaction: TransactionId, operations: Sequence[Operation], prepared: bool, outcome: Outcome
    ) -> None:
        """With these, `prepared` or not."""
        observers = self._observers.pop(transaction, None)
        if observers is None:
            if prepared:
                self.prepared(transaction, operations)
            else:
                self._begin(transaction, operations)
            observers = self._observers.pop(transaction)
        self._end(transaction, observers, outcome)

    def ended_at_once(self, transaction: TransactionId, operation: Operation, outcome: Outcome) -> None:
        """One operation is all it has, and nothing was kept in between."""
        observers = self._make(transaction)
        self._stage(transaction, observers, operation)
        self._end(transaction, observers, outcome)

    def _begin(
        self, transaction: TransactionId, operations: Sequence[Operation]
    ) -> list[TransactionObserver]:
        """With what is staged already."""
        observers = self._observers[transaction] = self._make(transaction)
        for operation in operations:
            self._stage(transaction, observers, operation)
        return observers

    def _stage(
        self, transaction: TransactionId, observers: list[TransactionObserver], operation: Operation
    ) -> None:
        if isinstance(operation, StagedBatch):
            target = self._name(operation.for_queue)
            self._tell(transaction, observers, "publish", target, operation.records, operation.index)
        elif isinstance(operation, StagedAccept):
            suffix = "" if operation.subqueue == MESSAGES else DEAD_LETTER_SUFFIX
            self._tell(transaction, observers, "accept", self._name(True) + suffix, operation.runs)
        else:
            move = operation.command
            details = self._name(False), move.group, move.before, move.after
            self._tell(transaction, observers, "commit_offsets", *details)

    def _end(
        self, transaction: TransactionId, observers: list[TransactionObserver], outcome: Outcome
    ) -> None:
        if outcome is Outcome.COMMITTED:
            self._tell(transaction, observers, "commit")
        else:
            self._tell(transaction, observers, "rollback", outcome)

    def _tell(
        self, transaction: TransactionId, observers: list[TransactionObserver], what: str, *details: Any
    ) -> None:
        for observer in observers[:]:
            try:
                getattr(observer, what)(*details)
            except Exception as error:
                observers.remove(observer)
                self._failed(transaction, error)

    def _make(self, transaction: TransactionId) -> list[TransactionObserver]:
        made: list[TransactionObserver] = []
        for factory in self._factories:
            try:
                observer = factory(transaction, self._shard)
            except Exception as error:
                self._failed(transaction, error)
            else:
                if observer is not None:
                    made.append(observer)
        return made
