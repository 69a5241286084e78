"""Observers of transactions: called on the leader after each event of a branch was applied.

A factory makes an observer when a transaction first appears on a shard. The observer learns every event in
the order of application and is dropped after the end. It cannot influence the transaction. An exception of an
observer is reported and counted, and the observer is not called again. A new leader makes its observers anew
when the next event of a transaction is applied, and first replays what is already staged. Events applied
while the shard has no leader are not reported.
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
    """The events of one transaction on one shard."""

    def publish(self, target: str, records: int, index: int) -> None:
        """`records` records for this topic or queue are staged, in the entry `index` of the shard's log."""

    def accept(self, queue: str, runs: Sequence[Run]) -> None:
        """Messages of this queue are locked: for each range the first offset, the number of messages, and the
        number of failed deliveries of each."""

    def commit_offsets(self, topic: str, group: str, before: int, after: int) -> None:
        """The commit will move the group on this partition from offset `before` to `after`."""

    def prepare(self) -> None:
        """The branch is prepared."""

    def commit(self) -> None:
        """Everything staged has taken effect."""

    def rollback(self, outcome: Outcome) -> None:
        """Nothing staged has taken effect, for this reason."""


# Called with the transaction and the shard, "topic@uuid/partition"; returns None to observe nothing.
TransactionObserverFactory = Callable[[TransactionId, str], TransactionObserver | None]


class Observers:
    """The observers of a shard, made by these factories. `name` gives the name of the topic here, or with
    True of the queue; `failed` receives the exceptions of observers."""

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
        # Of transactions that have not ended.
        self._observers: dict[TransactionId, list[TransactionObserver]] = {}

    def staged(self, transaction: TransactionId, operations: Sequence[Operation]) -> None:
        """The last of these operations was staged."""
        observers = self._observers.get(transaction)
        if observers is None:
            observers = self._begin(transaction, operations[:-1])
        self._stage(transaction, observers, operations[-1])

    def prepared(self, transaction: TransactionId, operations: Sequence[Operation]) -> None:
        """The branch with these operations was prepared."""
        observers = self._observers.get(transaction)
        if observers is None:
            observers = self._begin(transaction, operations)
        self._tell(transaction, observers, "prepare")

    def ended(
        self, transaction: TransactionId, operations: Sequence[Operation], prepared: bool, outcome: Outcome
    ) -> None:
        """The branch with these operations ended."""
        observers = self._observers.pop(transaction, None)
        if observers is None:
            if prepared:
                self.prepared(transaction, operations)
            else:
                self._begin(transaction, operations)
            observers = self._observers.pop(transaction)
        self._end(transaction, observers, outcome)

    def ended_at_once(self, transaction: TransactionId, operation: Operation, outcome: Outcome) -> None:
        """A transaction of one operation was staged and ended by the same entry."""
        observers = self._make(transaction)
        self._stage(transaction, observers, operation)
        self._end(transaction, observers, outcome)

    def _begin(
        self, transaction: TransactionId, operations: Sequence[Operation]
    ) -> list[TransactionObserver]:
        """Make the observers and replay what is already staged."""
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
