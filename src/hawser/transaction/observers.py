"""Whoever wants to be told what transactions do on a shard.

An observer is made by its factory when a transaction first shows there, and told of everything in the order
in which it is applied; after its end it is dropped. It has no say: what it is told has happened. What it
raises goes no further than to whoever counts that, and it is told of nothing more. Observers are the
leader's: whoever begins to lead makes them anew, and tells them nothing of what came before.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from hawser.log.state.results import Outcome
from hawser.transaction.identity import TransactionId
from hawser.transaction.staged import Operation, StagedAccept, StagedBatch

__all__ = ["Observers", "TransactionObserver", "TransactionObserverFactory"]


class TransactionObserver(Protocol):
    """What is told of one transaction on one shard."""

    def publish(self, records: int, for_queue: bool) -> None:
        """So many records are staged for the shard's topic or queue."""

    def accept(self, shelf: int, messages: int) -> None:
        """So many messages of a shelf of its queue are locked."""

    def prepare(self) -> None:
        """The branch can be committed and is closed."""

    def commit(self) -> None:
        """Everything that was staged has happened."""

    def rollback(self, outcome: Outcome) -> None:
        """Nothing has happened, for this reason."""


TransactionObserverFactory = Callable[[TransactionId], TransactionObserver | None]


class Observers:
    """The observers of a shard, made by these factories; `failed` is told what one raised."""

    def __init__(
        self,
        factories: Sequence[TransactionObserverFactory],
        failed: Callable[[TransactionId, Exception], None],
    ) -> None:
        self._factories = tuple(factories)
        self._observers: dict[TransactionId, list[TransactionObserver]] = {}
        self._failed = failed

    def staged(self, transaction: TransactionId, operation: Operation) -> None:
        """An operation is staged; positions of groups are nobody's business."""
        if isinstance(operation, StagedBatch):
            records, for_queue = operation.records, operation.for_queue
            self._tell(transaction, lambda each: each.publish(records, for_queue))
        elif isinstance(operation, StagedAccept):
            shelf, messages = operation.shelf, sum(run[1] for run in operation.runs)
            self._tell(transaction, lambda each: each.accept(shelf, messages))

    def prepared(self, transaction: TransactionId) -> None:
        self._tell(transaction, lambda each: each.prepare())

    def ended(self, transaction: TransactionId, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            self._tell(transaction, lambda each: each.commit())
        else:
            self._tell(transaction, lambda each: each.rollback(outcome))
        del self._observers[transaction]

    def _tell(self, transaction: TransactionId, tell: Callable[[TransactionObserver], None]) -> None:
        observers = self._observers.get(transaction)
        if observers is None:
            observers = self._observers[transaction] = self._make(transaction)
        for observer in list(observers):
            try:
                tell(observer)
            except Exception as error:
                observers.remove(observer)
                self._failed(transaction, error)

    def _make(self, transaction: TransactionId) -> list[TransactionObserver]:
        made: list[TransactionObserver] = []
        for factory in self._factories:
            try:
                observer = factory(transaction)
            except Exception as error:
                self._failed(transaction, error)
            else:
                made += [] if observer is None else [observer]
        return made
