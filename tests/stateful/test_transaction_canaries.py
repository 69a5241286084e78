"""Canaries of `test_transactions.py`: each is a bug that one could write, and a few lives find it."""

from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.queue.claims import Claims
from hawser.log.state.groups import Groups
from hawser.log.state.part import BadState
from hawser.log.state.queue import Queue
from hawser.log.state.results import Finished, Outcome, Prepared, Result
from hawser.transaction.client import Transaction
from hawser.transaction.commands import id_of
from hawser.transaction.coordinator.coordinator import Coordinator
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.coordinator.record import Phase
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.transaction.participant import maintenance, staged
from hawser.transaction.participant.branches import Branches
from hawser.transaction.register import Register
from hawser.transaction.xa.calls import Calls
from hawser.transaction.xa.table import Call

from .test_transactions import STEPS, run

Record_property = Callable[[str, object], None]
Patch = pytest.MonkeyPatch


def must_be_caught(record_property: Record_property, seeds: int = 150) -> None:
    for seed in range(seeds):
        try:
            run(seed, STEPS)
        except (AssertionError, KeyError, BadState, ValueError) as error:
            record_property("caught in life", seed)
            record_property("as", (str(error) or type(error).__name__).splitlines()[0][:60])
            return
    pytest.fail("the planted bug was not caught")


def test_a_branch_is_prepared_although_an_operation_is_missing(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    def obstacle(self: Any, branch: Any, counts: Any, context: Any) -> Any:
        return Outcome.INCOMPLETE if branch is None else staged.obstacle(branch.operations, context)

    monkeypatch.setattr(Branches, "_obstacle", obstacle)
    must_be_caught(record_property)


def test_a_time_out_ends_what_is_prepared(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Branches._end

    def prepare(self: Any, entry: Any, label: Any, context: Any) -> Result:
        branch = self.register.get(label.id)
        if branch is None or not branch.is_prepared:
            return abort(self, entry, label, context)
        return real(self, label.id, Outcome.TIMED_OUT, context)

    abort = Branches._abort
    monkeypatch.setattr(Branches, "_abort", prepare)
    must_be_caught(record_property)


def test_rollback_keeps_the_messages(monkeypatch: Patch, record_property: Record_property) -> None:
    def undo(operations: Any, context: Any, reserved: bool) -> None:
        if reserved:
            staged.release(operations, context)

    monkeypatch.setattr(staged, "undo", undo)
    must_be_caught(record_property)


def test_rollback_forgets_what_was_reserved(monkeypatch: Patch, record_property: Record_property) -> None:
    real = staged.undo
    monkeypatch.setattr(
        staged, "undo", lambda operations, context, reserved: real(operations, context, False)
    )
    must_be_caught(record_property)


def test_commit_leaves_out_the_last_operation(monkeypatch: Patch, record_property: Record_property) -> None:
    real = staged.commit

    def commit(operations: Any, context: Any, reserved: bool) -> None:
        if reserved:
            staged.release(operations, context)
        real(operations[:-1] or operations, context, False)

    monkeypatch.setattr(staged, "commit", commit)
    must_be_caught(record_property)


def test_messages_are_visible_when_they_are_staged(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    def stage(entry: Any, before: Any, context: Any) -> Any:
        operation = staged_before(entry, before, context)
        if isinstance(operation, staged.StagedBatch):
            staged._commit_batch(operation, context)
        return operation

    staged_before = staged.stage
    monkeypatch.setattr(staged, "stage", stage)
    must_be_caught(record_property)


def test_one_vote_is_enough(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Coordinator._collect

    def collect(self: Any, transaction: Any, record: Any, work: Any, now: float) -> None:
        if work.votes:
            work.votes.update(record.participants)
        real(self, transaction, record, work, now)

    monkeypatch.setattr(Coordinator, "_collect", collect)
    must_be_caught(record_property)


def test_home_forgets_when_the_first_was_told(monkeypatch: Patch, record_property: Record_property) -> None:
    def tell(self: Any, told: Any) -> int:
        for transaction in told:
            record = self.register.get(transaction)
            if record is not None and record.outcome is not None:
                record.waiting = []
                record.sessions.clear()
                record.heuristic = ""
                self.register.bury(transaction, record.outcome)
                self.register.forget(transaction)
        return len(told)

    real = Coordinator._spread

    def spread(self: Any, transaction: Any, record: Any, work: Any, now: float) -> None:
        real(self, transaction, record, work, now)
        if work.told:
            self._report()

    monkeypatch.setattr(Ledger, "tell", tell)
    monkeypatch.setattr(Coordinator, "_spread", spread)
    must_be_caught(record_property)


def test_a_second_decision_counts(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Decisions._decide

    def decide(self: Any, entry: Any) -> Result:
        result = real(self, entry)
        for _, record in self.ledger.register:
            if record.phase is Phase.DECIDED and isinstance(result, Finished) and record.waiting:
                record.outcome = Outcome.ROLLED_BACK
        return result

    monkeypatch.setattr(Decisions, "_decide", decide)
    must_be_caught(record_property)


def test_what_comes_late_begins_anew(monkeypatch: Patch, record_property: Record_property) -> None:
    monkeypatch.setattr(Register, "verdict", lambda self, transaction: None)
    monkeypatch.setattr(Register, "outcome", lambda self, transaction: None)
    monkeypatch.setattr(Register, "latest", lambda self, xid: 0)
    must_be_caught(record_property)


def test_what_became_of_a_lane_makes_room_for_others(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    real = Register.bury

    def bury(self: Any, transaction: Any, outcome: Outcome) -> None:
        real(self, transaction, outcome)
        if len(self._lanes) > 2:
            del self._lanes[next(iter(self._lanes))]

    monkeypatch.setattr(Register, "bury", bury)
    must_be_caught(record_property)


def test_votes_are_believed_where_a_rollback_was_forgotten(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    real = Branches._abort

    def abort(self: Any, entry: Any, label: Any, context: Any) -> Result:
        result = real(self, entry, label, context)
        if isinstance(result, Finished) and result.outcome is not Outcome.COMMITTED:
            self.register.forget(label.id)
        return result

    monkeypatch.setattr(Branches, "_abort", abort)
    must_be_caught(record_property)


def test_the_one_that_decides_misses_an_operation(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    real = Branches._commit

    def obstacle(branch: Any, counts: Any, context: Any) -> Any:
        return Outcome.INCOMPLETE if branch is None else staged.obstacle(branch.operations, context)

    def commit(self: Any, entry: Any, label: Any, context: Any) -> Result:
        with monkeypatch.context() as patch:
            patch.setattr(self, "_obstacle", obstacle)
            return real(self, entry, label, context)

    monkeypatch.setattr(Branches, "_commit", commit)
    must_be_caught(record_property, 200)


def test_nobody_is_told_what_a_branch_has_decided(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    """They ask when its lane has gone on."""
    monkeypatch.setattr(Ledger, "announce", lambda self, transaction, outcome, others: None)
    must_be_caught(record_property)


def test_a_decision_is_forgotten_when_the_lane_goes_on(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    real = Branches.decision

    def decision(self: Any, transaction: Any, ledger: Any) -> Outcome | None:
        if self.register.latest(transaction.xid) > transaction.incarnation:
            return Outcome.ROLLED_BACK
        return real(self, transaction, ledger)

    monkeypatch.setattr(Branches, "decision", decision)
    must_be_caught(record_property)


def test_a_decision_is_forgotten_when_the_first_was_told(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    """Of lanes alone; the others ask when the lane has gone on."""
    real = Ledger.tell

    def tell(self: Any, told: Any) -> int:
        for transaction in told:
            record = self.register.get(transaction)
            if record is not None and transaction.xid.format == LANE_FORMAT:
                record.waiting = []
        return real(self, told)

    monkeypatch.setattr(Ledger, "tell", tell)
    must_be_caught(record_property)


def test_a_new_leader_tells_nobody_what_was_decided(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    monkeypatch.setattr(Coordinator, "_begin", lambda self, event: None)
    must_be_caught(record_property)


def test_a_client_commits_before_all_have_voted(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Transaction._hear_vote

    def hear(self: Any, shard: Any, result: Any) -> Any:
        self._voting &= {shard}
        return real(self, shard, result)

    monkeypatch.setattr(Transaction, "_hear_vote", hear)
    must_be_caught(record_property)


def test_a_client_overlooks_a_vote_against_it(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Transaction._hear_vote
    monkeypatch.setattr(Transaction, "_hear_vote", lambda self, shard, result: real(self, shard, Prepared(1)))
    must_be_caught(record_property)


def test_a_snapshot_leaves_out_what_is_over(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Register.load
    monkeypatch.setattr(Register, "load", lambda self, live, *_: real(self, live, [], 0, []))
    must_be_caught(record_property)


def test_a_snapshot_forgets_who_is_prepared(monkeypatch: Patch, record_property: Record_property) -> None:
    real = Branches.load

    def load(self: Any, state: bytes) -> None:
        real(self, state)
        for _, branch in self.register:
            branch.coordinator = ""

    monkeypatch.setattr(Branches, "load", load)
    must_be_caught(record_property)


def test_a_prepared_put_reserves_nothing(monkeypatch: Patch, record_property: Record_property) -> None:
    def reserve(operations: Any, context: Any) -> None:
        for group in staged._positions(operations):
            context.part(Groups).lock(group)

    monkeypatch.setattr(staged, "reserve", reserve)
    must_be_caught(record_property)


def test_the_staged_batch_may_be_deleted(monkeypatch: Patch, record_property: Record_property) -> None:
    """The log is shortened over it."""
    monkeypatch.setattr(Branches, "needed", property(lambda self: None))
    must_be_caught(record_property)


def test_an_accept_locks_nothing(monkeypatch: Patch, record_property: Record_property) -> None:
    def stage(entry: Any, context: Any) -> Any:
        command = staged._read_settle(entry)
        assert command is not None
        subqueue = context.part(Queue).subqueues[command.subqueue]
        for first, count, deliveries in command.accepted:
            if not subqueue.are_there(first, count, deliveries):
                return staged._BAD
        return staged.StagedAccept(command.subqueue, command.accepted)

    monkeypatch.setattr(staged, "_stage_accept", stage)
    must_be_caught(record_property)


def test_a_late_retry_of_a_call_is_a_new_one(monkeypatch: Patch, record_property: Record_property) -> None:
    """Its client is told something else than before."""
    real = Calls.apply

    def apply(self: Any, command: Any, index: int) -> Result:
        self.answers.clear()
        return real(self, command, index)

    monkeypatch.setattr(Calls, "apply", apply)
    must_be_caught(record_property)


def test_a_late_call_is_about_whatever_use_there_is(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    """It ends the next one, once home has forgotten its name."""
    real = Calls.apply

    def find(self: Any, command: Any) -> TransactionId:
        transaction = id_of(command.xid)
        if command.call not in (Call.START, Call.ROLLBACK, Call.COMMIT):
            return transaction
        return TransactionId(transaction.xid, self._ledger.register.latest(transaction.xid))

    def apply(self: Any, command: Any, index: int) -> Result:
        if len(self.answers) > 20:
            self.answers.clear()
        return real(self, command, index)

    monkeypatch.setattr(Calls, "apply", apply)
    for seed in range(5):
        run(seed, STEPS)
    monkeypatch.setattr(Calls, "find", find)
    must_be_caught(record_property)


def test_a_client_takes_silence_for_a_rollback(monkeypatch: Patch, record_property: Record_property) -> None:
    def resolve(self: Any) -> Any:
        self._finish(Outcome.ROLLED_BACK)
        return []

    monkeypatch.setattr(Transaction, "resolve", resolve)
    must_be_caught(record_property)


def test_a_vote_is_taken_back_by_a_repeat(monkeypatch: Patch, record_property: Record_property) -> None:
    """Prepare again rolls back."""
    real = Branches._prepare

    def prepare(self: Any, entry: Any, label: Any, context: Any) -> Result:
        branch = self.register.get(label.id)
        if branch is not None and branch.is_prepared:
            return self._end(label.id, Outcome.ROLLED_BACK, context)  # type: ignore[no-any-return]
        return real(self, entry, label, context)

    monkeypatch.setattr(Branches, "_prepare", prepare)
    must_be_caught(record_property)


def test_a_shard_ends_what_a_lost_session_had_ended(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    monkeypatch.setattr(maintenance, "_asks", lambda transaction, branch: branch.is_prepared)
    must_be_caught(record_property)


def test_home_fails_what_a_lost_session_had_ended(
    monkeypatch: Patch, record_property: Record_property
) -> None:
    def part(self: Any, transaction: Any, record: Any, session: str) -> Any:
        worker, _ = record.sessions.get(session, (None, False))
        return worker

    monkeypatch.setattr(Ledger, "part", part)
    must_be_caught(record_property)


def test_what_comes_back_is_lent_to_nobody(monkeypatch: Patch, record_property: Record_property) -> None:
    monkeypatch.setattr(Claims, "_came_back", lambda self, first, count: None)
    must_be_caught(record_property)


def test_what_comes_back_is_lent_twice(monkeypatch: Patch, record_property: Record_property) -> None:
    def came_back(self: Any, first: int, count: int) -> None:
        self._returned.extend(range(first, first + count))

    monkeypatch.setattr(Claims, "_came_back", came_back)
    must_be_caught(record_property)
