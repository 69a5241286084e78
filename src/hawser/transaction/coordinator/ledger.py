"""The ledger of a coordinator shard: its transactions, and their steps.

    active --close--> closed --vote--> prepared --decide--> decided --tell--> over
                      closed --vote, if it is one-phase------^
                      anything that is not prepared --decide: rolled back--^
    (a branch of this shard ends for others, too) --announce, deliver--> decided

The first decision counts. A commit needs all votes; a rollback needs nothing before the transaction is
prepared. A transaction is over when every participant has the outcome in its log, no session is associated
with it, and a heuristic decision was forgotten. For an announced one the ledger only has to tell the other
shards: the register of branches remembers its outcome.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hawser.log.state.results import Answered, Finished, Outcome, Prepared, Reason, Rejected, Result
from hawser.transaction.commands import Deliveries
from hawser.transaction.coordinator.record import Phase, Record
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.transaction.register import Register
from hawser.transaction.xa.table import Code

__all__ = ["MOST_TRANSACTIONS", "Ledger"]

MOST_TRANSACTIONS: Final = 65_536
# Above this many unfinished transactions, rollbacks are no longer announced. Deliveries have bounds of their
# own and are not counted, so a topic that is away affects no other.
ENOUGH_TRANSACTIONS: Final = 1024
# The most deliveries kept for a shard that cannot be reached.
MOST_UNDELIVERED: Final = 4096
MOST_UNDELIVERED_BYTES: Final = 8 << 20


class Ledger:
    """Transactions by their ids. `on_change` is called with each one that the coordinator must act on."""

    def __init__(self) -> None:
        self.register: Register[Record] = Register()
        self.most = MOST_TRANSACTIONS
        # By shard, in order: number and bytes of each undelivered batch; derived from the records.
        self._undelivered: dict[str, dict[int, int]] = {}
        # The number of transactions with undelivered batches.
        self._delivering = 0
        # By session: where it works or has suspended its work; derived from the records.
        self._related: dict[str, set[TransactionId]] = {}
        self.on_change: Callable[[TransactionId], None] | None = None

    def outcome(self, transaction: TransactionId) -> Outcome | None:
        """The decision for a shard with a prepared branch; None if there is none yet.

        The ledger keeps a decision until that shard has heard it. So an unknown transaction was not
        committed; to rule out a later commit, roll it back here first.
        """
        record = self.register.get(transaction)
        if record is not None:
            return record.outcome
        is_old = self.register.latest(transaction.xid) > transaction.incarnation
        return self.register.outcome(transaction) or (Outcome.ROLLED_BACK if is_old else None)

    @property
    def sessions(self) -> set[str]:
        """The sessions that work in a transaction or have suspended work."""
        return set(self._related)

    def works_elsewhere(self, session: str, transaction: TransactionId) -> bool:
        """Whether the session works in another transaction that it has not suspended."""
        others = self._related.get(session, set()) - {transaction}
        records = map(self.register.get, others)
        return any(each is not None and not each.sessions.get(session, (0, True))[1] for each in records)

    def is_undecided(self, session: str) -> bool:
        """Whether the session works, or has suspended its work, in a transaction that is not decided."""
        records = map(self.register.get, self._related.get(session, ()))
        return any(each is not None and each.outcome is None for each in records)

    def relate(
        self, transaction: TransactionId, record: Record, session: str, worker: int, is_suspended: bool
    ) -> None:
        """Note that the session works in it as this worker, or has suspended that work."""
        record.sessions[session] = worker, is_suspended
        self._related.setdefault(session, set()).add(transaction)

    def part(self, transaction: TransactionId, record: Record, session: str) -> int | None:
        """Remove the session from the transaction; gives the worker it was."""
        related = self._related.get(session, set())
        related.discard(transaction)
        if not related:
            self._related.pop(session, None)
        worker, _ = record.sessions.pop(session, (None, False))
        return worker

    def loaded(self) -> None:
        """Derive the other tables after the register was loaded."""
        for transaction, record in self.register:
            self._delivering += bool(record.deliveries)
            for shard, (_, batch) in record.deliveries.items():
                self._add(shard, record.delivery, batch)
            for session, (worker, is_suspended) in record.sessions.items():
                self.relate(transaction, record, session, worker, is_suspended)

    def refuse(self, transaction: TransactionId) -> Result | None:
        """The result if it may not begin; None if it may."""
        outcome = self.register.outcome(transaction)
        if outcome is not None:
            return Finished(outcome)
        return self.register.verdict(transaction) or self.why_full()

    def why_full(self) -> Rejected | None:
        """The rejection while no transaction can begin; None if one can."""
        count = self._count
        return Rejected(Reason.TOO_MANY_TRANSACTIONS, count) if count >= self.most else None

    @property
    def _count(self) -> int:
        return len(self.register) - self._delivering

    def why_not_for_all(
        self, transaction: TransactionId, deliveries: Deliveries | None = None
    ) -> Rejected | None:
        """The rejection of a commit of a branch here for others, or with these deliveries; None if it is
        possible."""
        xid, incarnation = transaction
        latest = self.register.latest(xid)
        if latest >= incarnation:
            # Its client has ended a later one, which was announced.
            return Rejected(Reason.OLD_INCARNATION, latest, incarnation)
        for shard, batch in (deliveries or {}).items():
            sizes = self._undelivered.get(shard, {}).values()
            if len(sizes) >= MOST_UNDELIVERED or sum(sizes) + len(batch) > MOST_UNDELIVERED_BYTES:
                return Rejected(Reason.TOO_MANY_TRANSACTIONS, len(sizes))
        return self.why_full()

    def begin(self, transaction: TransactionId, record: Record) -> None:
        self.register.begin(transaction, record)
        self.changed(transaction)

    def announce(self, transaction: TransactionId, outcome: Outcome, others: Iterable[str]) -> None:
        """Tell the others the outcome of a branch of this shard, which decides for them. Nothing changes if
        they know or are being told. Above ENOUGH_TRANSACTIONS a rollback is not announced: the others ask."""
        if self.register.latest(transaction.xid) >= transaction.incarnation:
            return
        if outcome is not Outcome.COMMITTED and self._count >= ENOUGH_TRANSACTIONS:
            return
        self._end(transaction, Record(Phase.CLOSED, 0), outcome, others)

    def deliver(
        self, transaction: TransactionId, index: int, others: Iterable[str], deliveries: Deliveries
    ) -> None:
        """Note a commit by the entry at this index that decides for the others and has batches to deliver."""
        record = Record(Phase.CLOSED, 0, delivery=index)
        for shard, batch in deliveries.items():
            before = self._undelivered.get(shard)
            record.deliveries[shard] = next(reversed(before)) if before else 0, batch
            self._add(shard, index, batch)
        self._delivering += bool(deliveries)
        self._end(transaction, record, Outcome.COMMITTED, (*others, *deliveries))

    def _end(
        self, transaction: TransactionId, record: Record, outcome: Outcome, shards: Iterable[str]
    ) -> None:
        """Record a decision made by a branch; these shards are to be told."""
        record.participants = {shard: {} for shard in shards}
        self.register.begin(transaction, record)
        self.decide(transaction, record, outcome)

    def enlist(
        self, transaction: TransactionId, record: Record, worker: int, counts: Iterable[tuple[str, int]]
    ) -> None:
        """Add the operations of a worker on these shards."""
        for shard, count in counts:
            if not count:
                continue
            record.participants.setdefault(shard, {})[worker] = count
            if record.outcome is not None and shard not in record.waiting:
                record.waiting.append(shard)
        self.changed(transaction)

    def close(self, transaction: TransactionId, record: Record, one_phase: bool) -> None:
        """Close the transaction to new work and ask its shards to vote."""
        assert record.phase is Phase.ACTIVE and not record.sessions
        record.phase = Phase.CLOSED
        record.one_phase = one_phase
        self.changed(transaction)

    def vote(self, transaction: TransactionId, shards: Iterable[str]) -> Result:
        """All of these shards have prepared."""
        record = self.register.get(transaction)
        if record is None or record.outcome is not None:
            return self.answer(transaction)
        if record.phase is Phase.ACTIVE or set(shards) != record.participants.keys():
            return Rejected(Reason.NOT_PREPARED)
        if record.one_phase:
            return self.decide(transaction, record, Outcome.COMMITTED)
        record.phase = Phase.PREPARED
        self.changed(transaction)
        return Prepared(len(record.participants))

    def answer(self, transaction: TransactionId) -> Result:
        """The result for a caller that asks about it."""
        record = self.register.get(transaction)
        outcome = record.outcome if record is not None else self.register.outcome(transaction)
        if outcome is not None:
            return Finished(outcome)
        if record is None:
            return self.register.verdict(transaction) or Rejected(Reason.TRANSACTION_OVER)
        return Prepared(len(record.participants)) if record.phase is Phase.PREPARED else _PENDING

    def decide(self, transaction: TransactionId, record: Record, outcome: Outcome) -> Finished:
        """Record the outcome, which is final."""
        assert record.outcome is None
        assert outcome is not Outcome.COMMITTED or record.phase is not Phase.ACTIVE or not record.participants
        record.phase = Phase.DECIDED
        record.outcome = outcome
        record.waiting = sorted(record.participants)
        self.settle(transaction, record)
        self.changed(transaction)
        return Finished(outcome)

    def tell(self, told: Mapping[TransactionId, Iterable[str]]) -> int:
        """Note the shards that have the outcomes in their logs; gives the number of transactions that are
        over."""
        before = len(self.register)
        for transaction, shards in told.items():
            record = self.register.get(transaction)
            if record is not None and record.outcome is not None:
                record.waiting = [shard for shard in record.waiting if shard not in shards]
                self._strike(record, shards)
                self.settle(transaction, record)
        return before - len(self.register)

    def _add(self, shard: str, number: int, batch: bytes) -> None:
        self._undelivered.setdefault(shard, {})[number] = len(batch)

    def _strike(self, record: Record, shards: Iterable[str]) -> None:
        """Remove the deliveries to these shards, which have them."""
        for shard in shards:
            if record.deliveries.pop(shard, None) is not None:
                self._delivering -= not record.deliveries
                sizes = self._undelivered[shard]
                del sizes[record.delivery]
                if not sizes:
                    del self._undelivered[shard]

    def acknowledge(self, transaction: TransactionId) -> None:
        """Note that a caller has learned of the rollback."""
        record = self.register.get(transaction)
        if record is None:
            self.register.bury(transaction, Outcome.ROLLED_BACK)
        else:
            record.acknowledged = True
            for session in list(record.sessions):
                self.part(transaction, record, session)
            self.settle(transaction, record)

    def lose(self, session: str) -> int:
        """End the work of a lost session; gives the number of transactions that fail."""
        failed = 0
        for transaction, record in list(self.register):
            if self.part(transaction, record, session) is None:
                continue
            if record.outcome is None:
                self.decide(transaction, record, Outcome.SESSION_LOST)
                failed += 1
            else:
                self.settle(transaction, record)
        return failed

    def settle(self, transaction: TransactionId, record: Record) -> None:
        """Replace the record by a tombstone if the transaction is over."""
        if record.outcome is None or record.waiting or record.sessions or record.heuristic:
            return
        if transaction.xid.format == LANE_FORMAT:
            # The branches of this shard keep the outcome.
            self.register.remove(transaction)
            return
        # The caller of a one-phase commit learns the outcome from its result and sends no rollback.
        told = record.acknowledged or record.one_phase
        rolled_back = told and record.outcome is not Outcome.COMMITTED
        self.register.bury(transaction, Outcome.ROLLED_BACK if rolled_back else record.outcome)

    def changed(self, transaction: TransactionId) -> None:
        if self.on_change is not None:
            self.on_change(transaction)


_PENDING: Final = Answered(Code.PENDING)
