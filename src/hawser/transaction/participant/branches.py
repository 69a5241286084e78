"""The branches of a shard: what each transaction has staged there, and how it ends.

| state | entry | condition | next state |
|---|---|---|---|
| none | operation 1 | | open |
| none | operation 1 that commits | the commit is possible | ended: COMMITTED |
| open | operation | its number is the next of its worker | open |
| open | prepare, or an operation that prepares | the operations are complete and can commit | prepared |
| open | the same | otherwise: the vote is against | ended: rolled back |
| open | commit with counts, or an operation that commits | as for prepare | ended: COMMITTED, or rolled back
|
| none, open | abort | | ended: rolled back |
| open | first operation of a later incarnation | | ended: rolled back |
| prepared | commit or abort that is decided | | ended: the decision |

Promise: a prepared branch can be committed at any time, because prepare reserves what the commit needs; only
the coordinator's decision ends it. A commit is one entry and everything staged takes effect in it, so no
replica ever has a part of it. Readers do not wait for open branches, because staged messages have no offsets
yet.

**Numbers.** An operation has the number behind the last of its worker. A repeat changes nothing, and an
operation behind a gap is rejected. The counts in prepare and commit therefore say exactly whether all
operations are here.

**Lanes.** One branch of a transaction on a lane is the decision. The branches of the other shards are
prepared with this shard as their coordinator; the entry that commits this branch or rolls it back decides for
all of them. The coordinator tells them (`Ledger.announce`), and answers when they ask.

**Deliveries.** A message for a topic needs no branch, because a topic never refuses one. Such batches come
with the committing entry, and the coordinator delivers each once: it numbers them, and this shard keeps the
number of the last one that it applied.

**Memory.** `register.py` remembers the outcome, so a repeat of any entry gets the same answer. Memory holds
the place of each staged batch in the log and never its bytes; a commit makes the records readable where they
lie. So the disk bounds the staged bytes, and memory the number of operations. A new operation is rejected
above the limits, and a new prepare is voted down; staged work is never dropped.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import decoder
from hawser.log.state.machine import shard_parts
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.results import (
    Done,
    Expired,
    Finished,
    Outcome,
    Prepared,
    Reason,
    Rejected,
    Result,
    Staged,
)
from hawser.log.state.topic import PAGE_PLACES
from hawser.transaction.commands import (
    BranchAbort,
    BranchCommit,
    BranchForget,
    BranchLimit,
    BranchLimitChange,
    BranchPrepare,
    Counts,
    Shards,
    id_of,
)
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.identity import LANE_FORMAT, Label, TransactionId
from hawser.transaction.participant import staged
from hawser.transaction.participant.observers import Observers
from hawser.transaction.participant.staged import Operation, StagedBatch
from hawser.transaction.register import Register, SavedAge, SavedTombstone

__all__ = [
    "DEFAULT_LIMIT",
    "Branch",
    "Branches",
    "transactional_parts",
]

_read_prepare = decoder(BranchPrepare)
_read_commit = decoder(BranchCommit)
_read_abort = decoder(BranchAbort)
_read_forget = decoder(BranchForget)
_read_limit = decoder(BranchLimitChange)
_BAD = Rejected(Reason.BAD_PAYLOAD)
_DONE = Done()
_COMMITTED = Finished(Outcome.COMMITTED)
# An operation takes about 300 bytes of memory.
DEFAULT_LIMIT: Final = BranchLimit(
    most_open=4096, most_bytes=16 << 30, most_prepared=4096, most_operations=1 << 20
)


class Branch(msgspec.Struct, array_like=True):
    """What one transaction has on this shard.

    `opened` is the index of its first entry, `owners` are the sessions that work in it, `places` the worker
    and the number of each operation. `coordinator` is the shard that decides once the branch is prepared;
    `prepared_ns` is the time of that by the clock of a leader, or 0.
    """

    opened: int
    timeout_seconds: int
    owners: list[int] = []
    counts: dict[int, int] = {}
    operations: list[Operation] = []
    places: list[tuple[int, int]] = []
    size_bytes: int = 0
    coordinator: str = ""
    prepared_ns: int = 0

    @property
    def is_prepared(self) -> bool:
        return bool(self.coordinator)

    def add(self, label: Label, operation: Operation, size_bytes: int) -> None:
        """Add the next operation of its worker."""
        self.counts[label.worker] = label.number
        self.operations.append(operation)
        self.places.append((label.worker, label.number))
        self.size_bytes += size_bytes
        if label.owner not in self.owners:
            self.owners.append(label.owner)


class _Tally:
    """The number of branches in one state, and what they have staged."""

    __slots__ = ("count", "operations", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.operations = 0
        self.size_bytes = 0

    def add(self, branch: Branch) -> None:
        self.count += 1
        self.operations += len(branch.operations)
        self.size_bytes += branch.size_bytes

    def remove(self, branch: Branch) -> None:
        self.count -= 1
        self.operations -= len(branch.operations)
        self.size_bytes -= branch.size_bytes
        assert min(self.count, self.operations, self.size_bytes) >= 0


class _State(msgspec.Struct, frozen=True, array_like=True):
    limit: BranchLimit
    branches: list[tuple[int, bytes, bytes, int, Branch]]
    tombstones: list[SavedTombstone]
    delivered: dict[str, int]
    deleted: dict[str, int]
    # The count of marks.
    marks: int
    ages: list[SavedAge]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Branches(Part):
    """Every branch of this shard. `observers` are called on the leader only."""

    name: ClassVar = "branches"
    kinds: ClassVar = {
        Kind.BRANCH_PREPARE: 1,
        Kind.BRANCH_COMMIT: 1,
        Kind.BRANCH_ABORT: 1,
        Kind.BRANCH_FORGET: 1,
        Kind.BRANCH_LIMIT: 1,
    }
    transactional: ClassVar = True

    def __init__(self) -> None:
        self.limit = DEFAULT_LIMIT
        self.register: Register[Branch] = Register()
        # By coordinator shard: the number of the last delivery that was applied here.
        self.delivered: dict[str, int] = {}
        # By deleted coordinator shard: the count of marks when a leader noted the deletion.
        self.deleted: dict[str, int] = {}
        self.observers: Observers | None = None
        self._open = _Tally()
        self._prepared = _Tally()
        # The lowest index of a staged batch; None without one, 0 if not known.
        self._lowest: int | None = None
        self._unlabelled: dict[int, Callable[[Entry], Result]] = {
            Kind.BRANCH_FORGET: self._forget,
            Kind.BRANCH_LIMIT: self._set_limit,
        }
        self._handlers: dict[int, Callable[[Entry, Label, Context], Result]] = {
            Kind.BRANCH_PREPARE: self._prepare,
            Kind.BRANCH_COMMIT: self._commit,
            Kind.BRANCH_ABORT: self._abort,
        }

    @property
    def open_count(self) -> int:
        return self._open.count

    @property
    def prepared_count(self) -> int:
        return self._prepared.count

    @property
    def staged_bytes(self) -> int:
        """The staged bytes of all branches."""
        return self._open.size_bytes + self._prepared.size_bytes

    @property
    def staged_count(self) -> int:
        """The staged operations of all branches."""
        return self._open.operations + self._prepared.operations

    @property
    def needed(self) -> int | None:
        if self._lowest == 0:
            operations = (each for _, branch in self.register for each in branch.operations)
            indices = (each.index for each in operations if isinstance(each, StagedBatch))
            self._lowest = min(indices, default=None)
        return self._lowest

    def judge(self, label: Label) -> Result | None:
        """The result of an operation with this label without applying it; None if it would be staged."""
        if label.delivery:
            is_here = label.delivery <= self.delivered.get(label.coordinator, 0)
            return _COMMITTED if is_here else None
        return self._judge(label, self.register.get(label.id))

    def _judge(self, label: Label, branch: Branch | None) -> Result | None:
        if branch is None:
            verdict = self.register.verdict(label.id)
            if verdict is None:
                return None if label.number == 1 else Rejected(Reason.GAP, 1, label.number)
            # A client that commits for others is answered once they have heard.
            is_done = verdict.reason is Reason.TRANSACTION_OVER and verdict.current == Outcome.COMMITTED
            return _COMMITTED if label.others and is_done else verdict
        last = branch.counts.get(label.worker, 0)
        if 0 < label.number <= last:
            return self._vote(label.id) if label.coordinator and branch.is_prepared else Staged(label.number)
        if branch.is_prepared:
            return Rejected(Reason.TRANSACTION_CLOSED)
        return None if label.number == last + 1 else Rejected(Reason.GAP, last + 1, label.number)

    def decision(self, transaction: TransactionId, ledger: Ledger) -> Outcome | None:
        """The decision of this coordinator for a shard with a prepared branch; None if there is none yet."""
        outcome = ledger.outcome(transaction)
        if outcome is not None or transaction.xid.format != LANE_FORMAT:
            return outcome
        # The ledger keeps a commit until that shard has heard it, so an old incarnation was rolled back.
        is_old = self.register.latest(transaction.xid) > transaction.incarnation
        return self.register.outcome(transaction) or (Outcome.ROLLED_BACK if is_old else None)

    # Applying.

    def apply(self, entry: Entry, context: Context) -> Result:
        unlabelled = self._unlabelled.get(entry.kind)
        if unlabelled is not None:
            return unlabelled(entry)
        label = Label.read(entry.transaction)
        if label is None:
            return _BAD
        handler = self._handlers.get(entry.kind, self._deliver if label.delivery else self._stage)
        return handler(entry, label, context)

    def _deliver(self, entry: Entry, label: Label, context: Context) -> Result:
        """Apply a batch that the coordinator has committed."""
        last = self.delivered.get(label.coordinator, 0)
        if label.before > last:
            return Rejected(Reason.GAP, last, label.before)
        if label.delivery > last:
            operation = staged.stage(entry, (), context) if entry.kind == Kind.BATCH else _BAD
            if isinstance(operation, Rejected):
                return operation
            self.delivered[label.coordinator] = label.delivery
            staged.commit((operation,), context, False)
            if self.observers is not None:
                self.observers.ended_at_once(label.id, operation, Outcome.COMMITTED)
        return _COMMITTED

    def _stage(self, entry: Entry, label: Label, context: Context) -> Result:
        branch = self.register.get(label.id)
        verdict = self._judge(label, branch)
        if verdict is not None:
            carries = label.carried and isinstance(verdict, Staged)
            return self._carry(entry, label) if carries else verdict
        size_bytes = len(entry.frame)
        if branch is None and self._open.count >= self.limit.most_open:
            return Rejected(Reason.TOO_MANY_TRANSACTIONS, self._open.count)
        full = self.register.why_full(label.id.xid) if branch is None else None
        if label.others:
            full = full or context.part(Decisions).ledger.why_not_for_all(label.id)
        if full is not None:
            return full
        full = self._why_full(size_bytes)
        if full is not None:
            return full
        operation = staged.stage(entry, branch.operations if branch is not None else (), context)
        if isinstance(operation, Rejected):
            return operation
        if branch is None and label.last and not label.coordinator:
            return self._commit_alone(label, operation, context)
        if branch is None:
            branch = self._begin(entry, label, context)
        branch.add(label, operation, size_bytes)
        self._open.size_bytes += size_bytes
        self._open.operations += 1
        if self._lowest is None and isinstance(operation, StagedBatch):
            self._lowest = operation.index
        if self.observers is not None:
            self.observers.staged(label.id, branch.operations)
        if not label.last:
            return Staged(label.number)
        counts = ((label.worker, label.number),)
        if label.coordinator:
            return self._close(label.id, counts, label.coordinator, context)
        outcome = self._obstacle(branch, counts, context) or Outcome.COMMITTED
        return self._announced(label.id, self._end(label.id, outcome, context), label.others, context)

    def _why_full(self, size_bytes: int) -> Rejected | None:
        """The rejection of one more operation of this size; None if there is room."""
        staged_bytes, count, limit = self.staged_bytes + size_bytes, self.staged_count + 1, self.limit
        if staged_bytes > limit.most_bytes:
            return Rejected(Reason.TOO_MUCH_STAGED, limit.most_bytes, staged_bytes)
        if count > limit.most_operations:
            return Rejected(Reason.TOO_MANY_OPERATIONS, limit.most_operations, count)
        return None

    def _begin(self, entry: Entry, label: Label, context: Context) -> Branch:
        """Open the branch of this first operation."""
        self._forsake_earlier(label.id, context)
        branch = Branch(entry.index, label.timeout_seconds)
        self.register.begin(label.id, branch)
        self._open.count += 1
        return branch

    def _forsake_earlier(self, transaction: TransactionId, context: Context) -> None:
        """Roll back earlier incarnations that are still open: their client has moved on."""
        for earlier in self.register.incarnations(transaction.xid):
            forsaken = self.register.get(earlier)
            if forsaken is not None and not forsaken.is_prepared:
                self._end(earlier, Outcome.ROLLED_BACK, context)

    def _commit_alone(self, label: Label, operation: Operation, context: Context) -> Result:
        """Commit an operation that is the first and the last, without keeping a branch in between."""
        transaction = label.id
        self._forsake_earlier(transaction, context)
        obstacle = staged.obstacle((operation,), context)
        finish = staged.commit if obstacle is None else staged.undo
        finish((operation,), context, False)
        finished = _COMMITTED if obstacle is None else Finished(obstacle)
        self.register.bury(transaction, finished.outcome)
        if self.observers is not None:
            self.observers.ended_at_once(transaction, operation, finished.outcome)
        return self._announced(transaction, finished, label.others, context)

    def _carry(self, entry: Entry, label: Label) -> Result:
        """Use this later entry for the batch, so that the log before it can be removed."""
        branch = self.register.get(label.id)
        assert branch is not None
        # Operations of one worker are in order, so it is at this position at the earliest.
        place = branch.places.index((label.worker, label.number), label.number - 1)
        carried = staged.carry(branch.operations[place], entry)
        if carried is None:
            return _BAD
        branch.operations[place] = carried
        self._lowest = 0
        return Staged(label.number)

    def _prepare(self, entry: Entry, label: Label, context: Context) -> Result:
        command = _read_prepare(entry)
        if command is None:
            return _BAD
        ended = self._ended(label.id, context)
        if ended is not None:
            return ended
        branch = self.register.get(label.id)
        if branch is not None and branch.is_prepared:
            return self._vote(label.id)
        return self._close(label.id, command.counts, command.coordinator, context, command.asked_ns)

    def _close(
        self,
        transaction: TransactionId,
        counts: Counts,
        coordinator: str,
        context: Context,
        asked_ns: int = 0,
    ) -> Result:
        """Prepare the branch if its operations are complete and can be committed; otherwise roll it back."""
        branch = self.register.get(transaction)
        obstacle = self._obstacle(branch, counts, context)
        if branch is None or obstacle is not None:
            return self._end(transaction, obstacle or Outcome.INCOMPLETE, context)
        if self._prepared.count >= self.limit.most_prepared:
            return self._end(transaction, Outcome.TOO_MUCH, context)
        staged.reserve(branch.operations, context)
        self._open.remove(branch)
        self._prepared.add(branch)
        branch.coordinator, branch.prepared_ns = coordinator, asked_ns
        if self.observers is not None:
            self.observers.prepared(transaction, branch.operations)
        return self._vote(transaction)

    def _vote(self, transaction: TransactionId) -> Prepared:
        """The vote of a prepared branch."""
        branch = self.register.get(transaction)
        assert branch is not None and branch.is_prepared
        return Prepared(len(branch.operations))

    def _ended(self, transaction: TransactionId, context: Context) -> Result | None:
        """The answer if the transaction has ended. The ledger still knows it if other shards have not heard,
        even if its lane has moved on or its tombstone expired."""
        outcome = self.register.outcome(transaction)
        is_lane = transaction.xid.format == LANE_FORMAT
        if is_lane and outcome is None and self.register.get(transaction) is None:
            record = context.part(Decisions).ledger.register.get(transaction)
            outcome = record.outcome if record is not None else None
        return self.register.verdict(transaction) if outcome is None else Finished(outcome)

    def _obstacle(self, branch: Branch | None, counts: Counts, context: Context) -> Outcome | None:
        """The outcome that prevents a commit of these operations; None if they can be committed."""
        wanted = {worker: count for worker, count in counts if count}
        if branch is None or branch.counts != wanted:
            return Outcome.INCOMPLETE
        return staged.obstacle(branch.operations, context)

    def _commit(self, entry: Entry, label: Label, context: Context) -> Result:
        command = _read_commit(entry)
        if command is None:
            return _BAD
        ended = self._ended(label.id, context)
        if ended is not None:
            return self._announced(label.id, ended, command.others, context)
        branch = self.register.get(label.id)
        if command.counts is not None:
            if branch is not None and branch.is_prepared:
                return Rejected(Reason.TRANSACTION_CLOSED)
            ledger, deliveries = context.part(Decisions).ledger, command.deliveries
            if not all(map(staged.is_deliverable, deliveries.values())):
                return _BAD
            refused = ledger.why_not_for_all(label.id, deliveries) if command.others or deliveries else None
            if refused is not None:
                return refused
            outcome = self._obstacle(branch, command.counts, context) or Outcome.COMMITTED
            ended = self._end(label.id, outcome, context)
            # Not for a repeated entry: its deliveries were registered the first time.
            if deliveries and ended == _COMMITTED:
                ledger.deliver(label.id, entry.index, command.others, deliveries)
                return ended
            return self._announced(label.id, ended, command.others, context)
        if branch is None:
            # Only a prepared branch is committed by decision: this one was committed, and its tombstone
            # expired.
            return Rejected(Reason.TRANSACTION_OVER)
        if not branch.is_prepared:
            return Rejected(Reason.NOT_PREPARED)
        return self._end(label.id, Outcome.COMMITTED, context)

    def _abort(self, entry: Entry, label: Label, context: Context) -> Result:
        command = _read_abort(entry)
        if command is None or command.outcome is Outcome.COMMITTED:
            return _BAD
        ended = self._ended(label.id, context)
        if ended is None:
            branch = self.register.get(label.id)
            if branch is not None and branch.is_prepared and not command.decided:
                return Prepared(len(branch.operations))
            ended = self._end(label.id, command.outcome, context)
        return self._announced(label.id, ended, command.others, context)

    def _announced(
        self, transaction: TransactionId, ended: Result, others: Shards, context: Context
    ) -> Result:
        """The same result; the coordinator is to tell the others."""
        if others and isinstance(ended, Finished):
            context.part(Decisions).ledger.announce(transaction, ended.outcome, others)
        return ended

    def _end(self, transaction: TransactionId, outcome: Outcome, context: Context) -> Result:
        """End the transaction, also one that has no branch here, so that it cannot begin later. It is
        rejected if the register has no room to remember the outcome."""
        if not self.register.may_bury(transaction):
            return Rejected(Reason.TRANSACTION_OVER)
        branch = self.register.get(transaction)
        if branch is not None:
            (self._prepared if branch.is_prepared else self._open).remove(branch)
            finish = staged.commit if outcome is Outcome.COMMITTED else staged.undo
            finish(branch.operations, context, branch.is_prepared)
            if self._lowest is not None and branch.opened <= self._lowest:
                self._lowest = 0
        self.register.bury(transaction, outcome)
        if branch is not None and self.observers is not None:
            self.observers.ended(transaction, branch.operations, branch.is_prepared, outcome)
        return Finished(outcome)

    def _forget(self, entry: Entry) -> Result:
        command = _read_forget(entry)
        if command is None:
            return _BAD
        if not command.transactions and not command.homes and not command.deleted:
            self.register.marks += 1
        for coordinator in command.deleted:
            if coordinator in self.delivered:
                self.deleted.setdefault(coordinator, self.register.marks)
        for coordinator in command.homes:
            self.delivered.pop(coordinator, None)
            self.deleted.pop(coordinator, None)
        return Expired(sum(self.register.forget(id_of(fields)) for fields in command.transactions))

    def _set_limit(self, entry: Entry) -> Result:
        command = _read_limit(entry)
        if command is None:
            return _BAD
        is_closed = not (self.limit.most_open or command.opens)
        most_open = 0 if is_closed else command.most_open
        self.limit = BranchLimit(
            most_open, command.most_bytes, command.most_prepared, command.most_operations
        )
        return _DONE

    # Saving.

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def digest(self) -> bytes:
        homes = dict(sorted(self.delivered.items())), dict(sorted(self.deleted.items()))
        register = self.register
        return _encode(_State(self.limit, *register.save(), *homes, register.marks, register.ages()))

    def load(self, state: bytes) -> None:
        try:
            saved = _decode(state)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadState(f"the saved branches of transactions cannot be read: {error}") from error
        self.limit = saved.limit
        self.register.load(saved.branches, saved.tombstones, saved.marks, saved.ages)
        if any(each not in saved.delivered or at > saved.marks for each, at in saved.deleted.items()):
            raise BadState("the saved coordinator shards that were deleted contradict their deliveries")
        self.delivered, self.deleted = saved.delivered, saved.deleted
        self._lowest = 0
        for _, branch in self.register:
            if not len(branch.operations) == len(branch.places) == sum(branch.counts.values()) > 0:
                raise BadState("a saved branch of a transaction has not as many operations as it counts")
            (self._prepared if branch.is_prepared else self._open).add(branch)


def transactional_parts(page_places: int = PAGE_PLACES) -> tuple[Part, ...]:
    """The parts of the state machine of any shard, with transactions."""
    return (*shard_parts(page_places), Branches(), Decisions())
