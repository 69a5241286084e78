"""Defects to plant into transactions: into what is applied, those who drive them, and their clients."""

from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.entry import Entry
from hawser.log.replica import Replica
from hawser.log.state.commands import encode_command
from hawser.log.state.queue import Queue
from hawser.log.state.results import Finished, Outcome, Result
from hawser.testing.clients import Inquiry, Verdict
from hawser.testing.transaction_service import TransactionService, recoverable
from hawser.transaction.client import Transaction
from hawser.transaction.commands import BranchCommit
from hawser.transaction.coordinator.coordinator import Coordinator, _Work
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.coordinator.record import Phase
from hawser.transaction.identity import LANE_FORMAT
from hawser.transaction.participant import branches, staged
from hawser.transaction.participant.branches import Branches
from hawser.transaction.register import Register

__all__ = ["TRANSACTION_DEFECTS", "home_looks_only_at_its_branch"]

Plant = Callable[[pytest.MonkeyPatch], None]


def prepared_without_all_operations(patch: pytest.MonkeyPatch) -> None:
    def obstacle(self: Any, branch: Any, counts: Any, context: Any) -> Any:
        return Outcome.INCOMPLETE if branch is None else staged.obstacle(branch.operations, context)

    patch.setattr(Branches, "_obstacle", obstacle)


def home_commits_without_all_operations(patch: pytest.MonkeyPatch) -> None:
    """The branch that decides for others is committed as it is."""
    original = Branches._commit

    def commit(self: Any, entry: Any, label: Any, context: Any) -> Result:
        command = branches._read_commit(entry)
        branch = self.register.get(label.id)
        if command is not None and (command.others or command.deliveries) and branch is not None:
            found = BranchCommit(tuple(branch.counts.items()), command.others, command.deliveries)
            entry = Entry.make(entry.epoch, entry.index, entry.kind, encode_command(found))
        return original(self, entry, label, context)

    patch.setattr(Branches, "_commit", commit)


def prepared_ends_by_time(patch: pytest.MonkeyPatch) -> None:
    original = Branches._abort

    def abort(self: Any, entry: Any, label: Any, context: Any) -> Result:
        branch = self.register.get(label.id)
        if branch is None or not branch.is_prepared:
            return original(self, entry, label, context)
        return self._end(label.id, Outcome.TIMED_OUT, context)  # type: ignore[no-any-return]

    patch.setattr(Branches, "_abort", abort)


def rollback_keeps_the_messages(patch: pytest.MonkeyPatch) -> None:
    def undo(operations: Any, context: Any, reserved: bool) -> None:
        if reserved:
            staged.release(operations, context)

    patch.setattr(staged, "undo", undo)


def commit_leaves_out_the_last_operation(patch: pytest.MonkeyPatch) -> None:
    original = staged.commit

    def commit(operations: Any, context: Any, reserved: bool) -> None:
        if reserved:
            staged.release(operations, context)
        original(operations[:-1] or operations, context, False)

    patch.setattr(staged, "commit", commit)


def visible_when_staged(patch: pytest.MonkeyPatch) -> None:
    original = staged.stage

    def stage(entry: Any, before: Any, context: Any) -> Any:
        operation = original(entry, before, context)
        if isinstance(operation, staged.StagedBatch):
            staged._commit_batch(operation, context)
        return operation

    patch.setattr(staged, "stage", stage)


def one_vote_is_enough(patch: pytest.MonkeyPatch) -> None:
    original = Coordinator._collect

    def collect(self: Any, transaction: Any, record: Any, work: Any, now: float) -> None:
        if work.votes:
            work.votes.update(record.participants)
        original(self, transaction, record, work, now)

    patch.setattr(Coordinator, "_collect", collect)


def committed_by_the_first_vote(patch: pytest.MonkeyPatch) -> None:
    """A client does not wait for the other votes."""
    original = Transaction._hear_vote

    def hear_vote(self: Any, shard: Any, result: Any) -> Any:
        self._voting &= {shard}
        return original(self, shard, result)

    patch.setattr(Transaction, "_hear_vote", hear_vote)


def second_decision_counts(patch: pytest.MonkeyPatch) -> None:
    original = Decisions._decide

    def decide(self: Any, entry: Any) -> Result:
        result = original(self, entry)
        for _, record in self.ledger.register:
            if record.phase is Phase.DECIDED and isinstance(result, Finished) and record.waiting:
                record.outcome = Outcome.ROLLED_BACK
        return result

    patch.setattr(Decisions, "_decide", decide)


def undecided_is_rolled_back_by_who_asks(patch: pytest.MonkeyPatch) -> None:
    """What home has not decided yet is taken for what it knows nothing of."""

    def inquire(self: Any, replica: Replica, inquiry: Inquiry) -> Verdict:
        coordinator = replica.machine.part(Decisions)
        if inquiry.transaction is None:
            return Verdict(None, tuple(recoverable(coordinator)))
        decision = replica.machine.part(Branches).decision(inquiry.transaction, coordinator.ledger)
        return Verdict(decision or Outcome.ROLLED_BACK)

    patch.setattr(TransactionService, "inquire", inquire)


def unknown_is_rolled_back_without_an_entry(patch: pytest.MonkeyPatch) -> None:
    """Whoever has it prepared may have it committed yet."""
    original = TransactionService.inquire

    def inquire(self: Any, replica: Replica, inquiry: Inquiry) -> Verdict:
        verdict = original(self, replica, inquiry)
        return verdict if verdict.is_known else Verdict(Outcome.ROLLED_BACK)

    patch.setattr(TransactionService, "inquire", inquire)


def late_entries_begin_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Register, "verdict", lambda self, transaction: None)
    patch.setattr(Register, "outcome", lambda self, transaction: None)
    patch.setattr(Register, "latest", lambda self, xid: 0)


def snapshot_forgets_who_is_prepared(patch: pytest.MonkeyPatch) -> None:
    original = Branches.load

    def load(self: Any, state: bytes) -> None:
        original(self, state)
        for _, branch in self.register:
            branch.coordinator = ""

    patch.setattr(Branches, "load", load)


def snapshot_leaves_out_what_is_over(patch: pytest.MonkeyPatch) -> None:
    original = Register.load
    patch.setattr(Register, "load", lambda self, live, *_: original(self, live, [], 0, []))


def staged_batch_deleted(patch: pytest.MonkeyPatch) -> None:
    """The log is shortened over it."""
    patch.setattr(Branches, "needed", property(lambda self: None))


def accept_locks_nothing(patch: pytest.MonkeyPatch) -> None:
    def stage(entry: Any, context: Any) -> Any:
        command = staged._read_settle(entry)
        assert command is not None
        subqueue = context.part(Queue).subqueues[command.subqueue]
        if not all(subqueue.are_there(*run) for run in command.accepted):
            return staged._BAD
        return staged.StagedAccept(command.subqueue, command.accepted)

    patch.setattr(staged, "_stage_accept", stage)


def silence_taken_for_a_rollback(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: Any) -> Any:
        self._finish(Outcome.ROLLED_BACK)
        return []

    patch.setattr(Transaction, "resolve", resolve)


def told_only_once(patch: pytest.MonkeyPatch) -> None:
    """Home does not ask again for an answer that was lost: nothing ends."""
    original = _Work.begin_to_tell

    def begin_to_tell(self: Any, shard: str, now: float) -> bool:
        return shard not in self.asked and original(self, shard, now)

    patch.setattr(_Work, "begin_to_tell", begin_to_tell)


def home_forgets_when_one_was_told(patch: pytest.MonkeyPatch) -> None:
    original = Ledger.tell

    def tell(self: Any, told: Any) -> int:
        for transaction in told:
            record = self.register.get(transaction)
            if record is not None and record.outcome is not None:
                record.waiting = [shard for shard in record.waiting if shard in told[transaction]]
        return original(self, told)

    patch.setattr(Ledger, "tell", tell)
    _report_each(patch)


def _report_each(patch: pytest.MonkeyPatch) -> None:
    """That a shard has heard is written down at once."""
    spread = Coordinator._spread

    def report_each(self: Any, transaction: Any, record: Any, work: Any, now: float) -> None:
        spread(self, transaction, record, work, now)
        if work.told:
            self._report()

    patch.setattr(Coordinator, "_spread", report_each)


def others_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """They ask, and are told what is remembered of the lane: that is the next transaction on it, by then."""
    patch.setattr(Ledger, "announce", lambda self, transaction, outcome, others: None)


def others_forgotten_when_one_was_told(patch: pytest.MonkeyPatch) -> None:
    """As soon as one of them has heard what a lane's home has decided, that is removed."""
    original = Ledger.settle

    def settle(self: Any, transaction: Any, record: Any) -> None:
        if transaction.xid.format == LANE_FORMAT and len(record.waiting) < len(record.participants):
            record.waiting = []
        original(self, transaction, record)

    patch.setattr(Ledger, "settle", settle)
    _report_each(patch)


def lane_that_went_on_presumed_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks after the lane went on is not told what others are still being told."""
    original = Branches.decision

    def decision(self: Any, transaction: Any, ledger: Any) -> Outcome | None:
        is_lane = transaction.xid.format == LANE_FORMAT
        if is_lane and self.register.latest(transaction.xid) > transaction.incarnation:
            return Outcome.ROLLED_BACK
        return original(self, transaction, ledger)

    patch.setattr(Branches, "decision", decision)


def home_looks_only_at_its_branch(patch: pytest.MonkeyPatch) -> None:
    """A shard has asked too early, and wants home to roll back what that has committed since. No seed comes
    to it; `test_transactions.py` does."""

    def ended(self: Any, transaction: Any, context: Any) -> Result | None:
        outcome = self.register.outcome(transaction)
        return self.register.verdict(transaction) if outcome is None else Finished(outcome)

    patch.setattr(Branches, "_ended", ended)


def delivered_as_often_as_it_comes(patch: pytest.MonkeyPatch) -> None:
    original = Branches._deliver

    def deliver(self: Any, entry: Any, label: Any, context: Any) -> Result:
        if label.delivery <= self.delivered.get(label.coordinator, 0):
            self.delivered[label.coordinator] = label.delivery - 1
        return original(self, entry, label, context)

    patch.setattr(Branches, "_deliver", deliver)


def delivered_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """What comes behind a later one is thought to be there."""
    original = Branches._deliver

    def deliver(self: Any, entry: Any, label: Any, context: Any) -> Result:
        return original(self, entry, label._replace(before=0), context)

    patch.setattr(Branches, "_deliver", deliver)


def delivered_again_by_a_commit_that_comes_again(patch: pytest.MonkeyPatch) -> None:
    original = Branches._commit

    def commit(self: Any, entry: Any, label: Any, context: Any) -> Result:
        result = original(self, entry, label, context)
        command, ledger = branches._read_commit(entry), context.part(Decisions).ledger
        is_committed = result == Finished(Outcome.COMMITTED)
        if command is not None and command.deliveries and is_committed and not ledger.register.get(label.id):
            ledger.deliver(label.id, entry.index, command.others, command.deliveries)
        return result

    patch.setattr(Branches, "_commit", commit)


def delivered_though_it_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    original = Branches._commit

    def commit(self: Any, entry: Any, label: Any, context: Any) -> Result:
        is_known = self.register.verdict(label.id) is not None
        result = original(self, entry, label, context)
        command, ledger = branches._read_commit(entry), context.part(Decisions).ledger
        if command is not None and command.deliveries and not is_known and not ledger.register.get(label.id):
            ledger.deliver(label.id, entry.index, command.others, command.deliveries)
        return result

    patch.setattr(Branches, "_commit", commit)


def told_without_what_is_delivered(patch: pytest.MonkeyPatch) -> None:
    """Home forgets what it has to deliver as soon as those that were prepared have heard."""
    original = Ledger.tell

    def tell(self: Any, told: Any) -> int:
        for transaction in told:
            record = self.register.get(transaction)
            if record is not None:
                told = {**told, transaction: record.waiting}
        return original(self, told)

    patch.setattr(Ledger, "tell", tell)


TRANSACTION_DEFECTS: dict[str, Plant] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        prepared_without_all_operations,
        home_commits_without_all_operations,
        prepared_ends_by_time,
        rollback_keeps_the_messages,
        commit_leaves_out_the_last_operation,
        visible_when_staged,
        one_vote_is_enough,
        committed_by_the_first_vote,
        second_decision_counts,
        undecided_is_rolled_back_by_who_asks,
        unknown_is_rolled_back_without_an_entry,
        late_entries_begin_anew,
        snapshot_forgets_who_is_prepared,
        snapshot_leaves_out_what_is_over,
        staged_batch_deleted,
        accept_locks_nothing,
        silence_taken_for_a_rollback,
        told_only_once,
        home_forgets_when_one_was_told,
        others_are_not_told,
        delivered_as_often_as_it_comes,
        delivered_in_any_order,
        delivered_again_by_a_commit_that_comes_again,
        delivered_though_it_is_rolled_back,
        told_without_what_is_delivered,
        others_forgotten_when_one_was_told,
        lane_that_went_on_presumed_rolled_back,
    )
}
