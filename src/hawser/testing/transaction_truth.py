"""The reference model of transactions in a simulation.

`TransactionTruth` is one shard: the operations that each transaction staged, from the committed log. All of
them take effect at one entry, or none does. `Book` is all shards together: a transaction is decided once,
commits only if every participating shard prepared it, and answers to clients stay true.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import QueueSettle, decoder
from hawser.log.state.queue import MESSAGE_BYTES, MESSAGES
from hawser.log.state.results import Finished, Outcome, Prepared, Result, Staged
from hawser.record.batch import Batch
from hawser.testing.checks import Violation
from hawser.testing.queue_truth import Message, those
from hawser.transaction.commands import (
    BranchAbort,
    BranchCommit,
    BranchPrepare,
    CoordinatorDecide,
    Counts,
    id_of,
)
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import Label, TransactionId, Xid

if TYPE_CHECKING:
    from hawser.testing.truth import Truth

__all__ = ["Book", "TransactionTruth"]

_read_settle: Final = decoder(QueueSettle)
_read_prepare: Final = decoder(BranchPrepare)
_read_commit: Final = decoder(BranchCommit)
_read_abort: Final = decoder(BranchAbort)
_read_decide: Final = decoder(CoordinatorDecide)


class Book:
    """The outcomes of all transactions, as far as any log or client has them."""

    def __init__(self) -> None:
        self.decisions: dict[TransactionId, Outcome] = {}
        # Of each: the shards that have promised to commit it and whom they wait for, those where it happened,
        # and all that take part in one that is committed.
        self.promised: dict[TransactionId, set[str]] = {}
        self.homes: dict[TransactionId, str] = {}
        self.happened: dict[TransactionId, set[str]] = {}
        self.participants: dict[TransactionId, frozenset[str]] = {}
        self.deliveries: dict[TransactionId, Mapping[str, bytes]] = {}
        # Transactions that must not commit: a shard has rolled back, or a client got that answer.
        self.void: dict[TransactionId, str] = {}
        # The shards that rolled back each one, and the latest use of each xid on each shard.
        self._rolled_back: set[tuple[TransactionId, str]] = set()
        self._latest: dict[tuple[Xid, str], int] = {}
        self.told = 0

    def see(self, transaction: TransactionId, shard: str) -> None:
        """Note that the shard takes part in a transaction."""
        place = transaction.xid, shard
        self._latest[place] = max(transaction.incarnation, self._latest.get(place, 0))

    def promise(self, transaction: TransactionId, shard: str, coordinator: str) -> None:
        self.promised.setdefault(transaction, set()).add(shard)
        if self.homes.setdefault(transaction, coordinator) != coordinator:
            raise Violation(
                0, f"{transaction} is to be decided by {self.homes[transaction]} and by {coordinator}"
            )

    def decide(
        self,
        transaction: TransactionId,
        outcome: Outcome,
        participants: frozenset[str],
        decider: str = "",
        deliveries: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Its coordinator has this outcome in its log, or the shard whose own branch decides; those that
        something is delivered to have no say."""
        first = self.decisions.setdefault(transaction, outcome)
        if _is_commit(first) != _is_commit(outcome):
            raise Violation(0, f"{transaction} was decided as {first.name}, and then as {outcome.name}")
        if not _is_commit(outcome) or transaction in self.participants:
            return
        if transaction in self.void:
            raise Violation(0, f"{transaction} is to be committed, and {self.void[transaction]}")
        missing = participants - self.promised.get(transaction, set()) - {decider}
        if missing:
            raise Violation(0, f"{transaction} is to be committed, and {sorted(missing)} never promised that")
        self.participants[transaction] = participants | deliveries.keys()
        self.deliveries[transaction] = deliveries

    def end(self, transaction: TransactionId, shard: str, outcome: Outcome, was_prepared: bool) -> None:
        """Note the end of a branch on a shard."""
        self.see(transaction, shard)
        decided = self._decided(transaction)
        if was_prepared and decided is None:
            raise Violation(0, f"{transaction} was prepared on {shard}, and ended before it was decided")
        if decided is not None and _is_commit(decided) != _is_commit(outcome):
            raise Violation(0, f"{transaction} is {decided.name}, and on {shard} it was {outcome.name}")
        if not _is_commit(outcome):
            self._rolled_back.add((transaction, shard))
            self.void.setdefault(transaction, f"was rolled back on {shard}")
            return
        if decided is None:
            raise Violation(0, f"{transaction} was committed on {shard}, and nobody has decided that")
        happened = self.happened.setdefault(transaction, set())
        if shard in happened:
            raise Violation(0, f"{transaction} was committed twice on {shard}")
        happened.add(shard)

    def _decided(self, transaction: TransactionId) -> Outcome | None:
        """What was decided: also by a coordinator that has rolled its own branch back, or has gone on
        without."""
        coordinator = self.homes.get(transaction, "")
        is_forsaken = self._latest.get((transaction.xid, coordinator), 0) > transaction.incarnation
        if (transaction, coordinator) in self._rolled_back or is_forsaken:
            self.decisions.setdefault(transaction, Outcome.ROLLED_BACK)
        return self.decisions.get(transaction)

    def tell(self, transaction: TransactionId, committed: bool, who: str) -> None:
        """Check the outcome in an answer to a client."""
        self.told += 1
        decided = self.decisions.get(transaction)
        if decided is None and not committed:
            self.void.setdefault(transaction, f"{who} was told that it is not")
        elif decided is None or _is_commit(decided) != committed:
            raise Violation(0, f"{who} was told that {transaction} is done: {committed}; it is {decided}")

    def audit(self) -> None:
        """Check the end: committed transactions took effect on every shard, others on none."""
        for transaction, outcome in self.decisions.items():
            happened = self.happened.get(transaction, set())
            expected = self.participants[transaction] if _is_commit(outcome) else frozenset()
            if happened != expected:
                raise Violation(
                    0, f"{transaction} is {outcome.name} on {sorted(expected)}, and happened on {happened}"
                )

    @property
    def committed(self) -> int:
        return len(self.participants)


def _is_commit(outcome: Outcome) -> bool:
    return outcome is Outcome.COMMITTED


class _Put(msgspec.Struct):
    """Values for the topic or the queue, and their bytes there."""

    values: list[bytes]
    size_bytes: int
    for_queue: bool


class _Branch(msgspec.Struct):
    """The operations that one transaction staged on one shard, in order."""

    counts: Counter[int]
    operations: list[_Put | list[Message]]
    prepared: bool = False

    @property
    def put_bytes(self) -> int:
        puts = [each for each in self.operations if isinstance(each, _Put) and each.for_queue]
        return sum(each.size_bytes for each in puts)

    def has(self, counts: Counts) -> bool:
        return self.counts == Counter({worker: count for worker, count in counts if count})


class TransactionTruth:
    """The transactions of one shard, as committed."""

    def __init__(self, truth: "Truth", shard: str, book: Book) -> None:
        self.shard = shard
        self.book = book
        self.branches: dict[TransactionId, _Branch] = {}
        self.outcomes: dict[TransactionId, Outcome] = {}
        # By coordinator: the number of its last delivery.
        self._delivered: dict[str, int] = {}
        self._truth = truth

    def extend(self, entry: Entry, result: Result) -> None:
        """Apply a committed entry with a label, and compare its result."""
        label = Label.read(entry.transaction)
        assert label is not None
        if entry.kind == Kind.BRANCH_PREPARE:
            self._prepare(entry, label.id, result)
        elif entry.kind == Kind.BRANCH_COMMIT:
            self._commit(entry, label.id, result)
        elif entry.kind == Kind.BRANCH_ABORT:
            self._abort(entry, label.id, result)
        elif label.delivery:
            self._deliver(entry, label, result)
        else:
            self._stage(entry, label, result)

    def extend_coordinator(self, entry: Entry, result: Result, coordinator: Decisions) -> None:
        """Check a committed entry of the coordinator: all its decisions are in the book."""
        if entry.kind == Kind.HOME_DECIDE and isinstance(result, Finished):
            command = _read_decide(entry)
            assert command is not None
            transaction = id_of(command.transaction)
            if not _is_commit(result.outcome):
                self.book.decide(transaction, result.outcome, frozenset())
        for transaction, record in coordinator.ledger.register:
            if record.outcome is not None:
                self.book.decide(transaction, record.outcome, frozenset(record.participants))

    # Operations.

    def _stage(self, entry: Entry, label: Label, result: Result) -> None:
        ends = label.last and isinstance(result, Finished | Prepared)
        if not ends and not isinstance(result, Staged):
            return
        branch = self.branches.get(label.id)
        last = branch.counts[label.worker] if branch is not None else 0
        is_other = isinstance(result, Staged) and (label.last or result.number != label.number)
        is_other = is_other or (isinstance(result, Prepared) and not label.coordinator)
        if isinstance(result, Finished) and label.others and self._is_repeat(entry, label.id, result):
            return
        if label.id in self.outcomes or is_other:
            raise Violation(0, f"{label} of {entry.id} was {result}, and is over on {self.shard}")
        if label.number <= last:
            return
        if label.number != last + 1 or (branch is not None and branch.prepared):
            raise Violation(0, f"{label} of {entry.id} was {result} on {self.shard} behind {last}: {branch}")
        if branch is None:
            branch = self._begin(label.id)
        branch.counts[label.worker] += 1
        if entry.kind in (Kind.BATCH, Kind.QUEUE_PUT):
            branch.operations.append(self._put(entry))
        elif entry.kind == Kind.QUEUE_SETTLE:
            branch.operations.append(self._lock(entry))
        counts = ((label.worker, label.number),)
        if label.coordinator:
            self._close(entry, label.id, BranchPrepare(counts, label.coordinator), result)
        elif isinstance(result, Finished):
            self._end_alone(entry, label.id, branch, BranchCommit(counts, label.others), result.outcome)

    def _deliver(self, entry: Entry, label: Label, result: Result) -> None:
        """Check a delivery: in the order of the coordinator's commits, each once."""
        if not isinstance(result, Finished) or self._is_repeat(entry, label.id, result):
            return
        if label.delivery <= self._delivered.get(label.coordinator, 0):
            raise Violation(0, f"{label} of {entry.id} was delivered behind a later one on {self.shard}")
        if self.book.deliveries.get(label.id, {}).get(self.shard) != bytes(entry.payload):
            raise Violation(0, f"{label} of {entry.id} is not what was to be delivered to {self.shard}")
        self._delivered[label.coordinator] = label.delivery
        self.branches[label.id] = _Branch(Counter(), [self._put(entry)])
        self._end(label.id, result.outcome)

    def _put(self, entry: Entry) -> _Put:
        batch = Batch.read(entry.payload)
        values = [record.value for record in batch.records()]
        size_bytes = len(entry.frame) + MESSAGE_BYTES * batch.count
        return _Put(values, size_bytes, entry.kind == Kind.QUEUE_PUT)

    def _begin(self, transaction: TransactionId) -> _Branch:
        """Roll back an earlier use of the xid that is still open."""
        for earlier, branch in list(self.branches.items()):
            if earlier.xid == transaction.xid and not branch.prepared:
                self._end(earlier, Outcome.ROLLED_BACK)
        branch = self.branches[transaction] = _Branch(Counter(), [])
        self.book.see(transaction, self.shard)
        return branch

    def _lock(self, entry: Entry) -> list[Message]:
        command = _read_settle(entry)
        assert command is not None
        locked = []
        for run in command.accepted:
            for message in those(self._truth.queue.subqueues[command.subqueue], run):
                if message.done or message.locked or message.deliveries != run[2]:
                    raise Violation(0, f"{command} of {entry.id} was staged, and {message} is not there")
                message.locked = True
                locked.append(message)
        return locked

    # Ends.

    def _prepare(self, entry: Entry, transaction: TransactionId, result: Result) -> None:
        command = _read_prepare(entry)
        assert command is not None
        self._close(entry, transaction, command, result)

    def _close(
        self, entry: Entry, transaction: TransactionId, command: BranchPrepare, result: Result
    ) -> None:
        """By its last operation, or by an entry that counts them."""
        branch = self.branches.get(transaction)
        if isinstance(result, Prepared):
            if branch is None or not branch.has(command.counts):
                raise Violation(0, f"{command} of {entry.id} promised what {self.shard} has not: {branch}")
            if not branch.prepared:
                branch.prepared = True
                self._truth.queue.reserved_bytes += branch.put_bytes
                self.book.promise(transaction, self.shard, command.coordinator)
        elif isinstance(result, Finished) and not self._is_repeat(entry, transaction, result):
            self._voted_down(entry, transaction, command.counts, result.outcome)

    def _commit(self, entry: Entry, transaction: TransactionId, result: Result) -> None:
        command = _read_commit(entry)
        assert command is not None
        if not isinstance(result, Finished) or self._is_repeat(entry, transaction, result):
            return
        branch = self.branches.get(transaction)
        if not _is_commit(result.outcome):
            self._voted_down(entry, transaction, command.counts or (), result.outcome)
        elif branch is None or branch.prepared != (command.counts is None):
            raise Violation(0, f"{command} of {entry.id} was committed on {self.shard}: {branch}")
        elif command.counts is not None:
            self._end_alone(entry, transaction, branch, command, result.outcome)
        else:
            self._end(transaction, Outcome.COMMITTED)

    def _end_alone(
        self,
        entry: Entry,
        transaction: TransactionId,
        branch: _Branch,
        command: BranchCommit,
        outcome: Outcome,
    ) -> None:
        """By its last operation, or by an entry that counts them; nobody else decides."""
        counts = command.counts or ()
        if not _is_commit(outcome):
            self._voted_down(entry, transaction, counts, outcome)
            return
        if not branch.has(counts):
            raise Violation(0, f"{transaction} of {entry.id} was committed without {counts}: {branch}")
        if branch.put_bytes:
            self._truth.queue.judge_room(branch.put_bytes, is_full=False)
        shards = frozenset((self.shard, *command.others))
        self.book.decide(transaction, Outcome.COMMITTED, shards, self.shard, command.deliveries)
        self._end(transaction, Outcome.COMMITTED)

    def _voted_down(self, entry: Entry, transaction: TransactionId, counts: Counts, outcome: Outcome) -> None:
        """For a reason that is one."""
        branch = self.branches.get(transaction)
        incomplete = branch is None or not branch.has(counts)
        if _is_commit(outcome) or (branch is not None and branch.prepared):
            raise Violation(0, f"{transaction} was {outcome.name} by {entry.id} on {self.shard}: {branch}")
        if incomplete != (outcome is Outcome.INCOMPLETE):
            raise Violation(0, f"{transaction} was {outcome.name} by {entry.id} with {counts}: {branch}")
        if branch is not None and outcome is Outcome.NO_ROOM:
            self._truth.queue.judge_room(branch.put_bytes, is_full=True)
        self._end(transaction, outcome)

    def _abort(self, entry: Entry, transaction: TransactionId, result: Result) -> None:
        command = _read_abort(entry)
        assert command is not None
        branch = self.branches.get(transaction)
        prepared = branch is not None and branch.prepared
        if isinstance(result, Prepared) and not prepared:
            raise Violation(0, f"{command} of {entry.id} found {transaction} prepared: {branch}")
        if not isinstance(result, Finished) or self._is_repeat(entry, transaction, result):
            return
        if result.outcome is not command.outcome or (prepared and not command.decided):
            raise Violation(0, f"{command} of {entry.id} ended {transaction} as {result}: {branch}")
        self._end(transaction, result.outcome)

    def _is_repeat(self, entry: Entry, transaction: TransactionId, result: Finished) -> bool:
        """Whether it was over already, as what it is said to be."""
        outcome = self.outcomes.get(transaction)
        if outcome is not None and outcome is not result.outcome:
            raise Violation(0, f"{transaction} was {outcome.name} on {self.shard}; {entry.id} had {result}")
        return outcome is not None

    def _end(self, transaction: TransactionId, outcome: Outcome) -> None:
        """Apply all operations, or none."""
        branch = self.branches.pop(transaction, None)
        self.outcomes[transaction] = outcome
        self.book.end(transaction, self.shard, outcome, branch is not None and branch.prepared)
        if branch is None:
            return
        if branch.prepared:
            self._truth.queue.reserved_bytes -= branch.put_bytes
        for operation in branch.operations:
            if not isinstance(operation, _Put):
                for message in operation:
                    message.locked = False
                    message.done = _is_commit(outcome)
                    message.deliveries += not _is_commit(outcome)
            elif _is_commit(outcome):
                self._publish(operation)

    def _publish(self, operation: _Put) -> None:
        if operation.for_queue:
            self._truth.queue.append(MESSAGES, operation.values, operation.size_bytes)
        else:
            self._truth.values.extend(operation.values)
