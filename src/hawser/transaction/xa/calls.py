"""Applies calls of the XA interface on the coordinator shard; `xa.table.TABLE` has their results.

A call names the incarnation of the xid that it concerns. It finds nothing if that is not the latest one, so a
late call about an earlier use changes nothing. A start names the highest incarnation that its client has
heard of from this coordinator, and begins a higher one. If a higher incarnation of the xid is known or has
expired, the same start may have been applied before: it is rejected with the highest incarnation to expect,
and begins nothing.

A call also has a name of its own, the request. A repeat under the same name gets the same answer and does
nothing, even after the xid was used again. The last MOST_ANSWERS answers are kept; an answer that depends on
votes is filled in when they are in.
"""

from collections.abc import Callable
from typing import Final

from hawser.log.state.results import Answered, Outcome, Reason, Rejected, Result
from hawser.transaction.commands import CoordinatorCall, id_of
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.coordinator.record import Phase, Record, state_of
from hawser.transaction.identity import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MOST_WORKERS,
    TransactionId,
)
from hawser.transaction.xa.table import TABLE, Call, Code, State

__all__ = ["MOST_ANSWERS", "Calls", "SavedAnswer"]

MOST_ANSWERS: Final = 4096

# request, code, incarnation, worker, value.
SavedAnswer = tuple[bytes, int, int, int, int]

_STARTS: Final = (Call.START, Call.START_JOIN, Call.START_RESUME)
_ENDS: Final = (Call.END, Call.END_FAIL, Call.END_SUSPEND)
_COMPLETIONS: Final = (Call.COMMIT_ONE_PHASE, Call.COMMIT, Call.ROLLBACK)


class Calls:
    """The calls on one ledger. `answers` are the last answers by request, the oldest first."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.answers: dict[bytes, Answered] = {}
        self._do: dict[Call, Callable[[TransactionId, Record, CoordinatorCall, int], Result]] = {
            Call.START_JOIN: self._join,
            Call.START_RESUME: self._join,
            Call.PREPARE: self._prepare,
            Call.COMMIT_ONE_PHASE: self._commit_one_phase,
            Call.COMMIT: self._commit,
            Call.ROLLBACK: self._roll_back,
            Call.FORGET: self._forget,
            Call.SET_TIMEOUT: self._set_timeout,
        }

    def find(self, command: CoordinatorCall) -> TransactionId:
        """The transaction the call concerns: the one it names, or for a start the latest of its xid."""
        transaction = id_of(command.xid)
        if command.call != Call.START:
            return transaction
        return TransactionId(transaction.xid, self._ledger.register.latest(transaction.xid))

    def state(self, transaction: TransactionId, session: str) -> State:
        """The state as this session sees it."""
        register = self._ledger.register
        if transaction.incarnation != register.latest(transaction.xid):
            return State.UNKNOWN
        record = register.get(transaction)
        if record is not None:
            return record.state(session)
        outcome = register.outcome(transaction)
        return State.UNKNOWN if outcome is None else state_of(outcome)

    def apply(self, command: CoordinatorCall, index: int) -> Result:
        """Apply the call in the entry at this index; gives its result."""
        call = Call(command.call)
        earlier = self.answers.get(command.request) if command.request else None
        if earlier is not None:
            return earlier
        answer = self._first(call, command, index)
        if command.request and isinstance(answer, Answered):
            self._keep(command, answer)
        return answer

    def _keep(self, command: CoordinatorCall, answer: Answered) -> None:
        self.answers[command.request] = answer
        if len(self.answers) > MOST_ANSWERS:
            del self.answers[next(iter(self.answers))]
        if answer.code == Code.PENDING:
            record = self._ledger.register.get(id_of(command.xid))
            assert record is not None
            record.asked.append(command.request)

    def voted(self, transaction: TransactionId) -> None:
        """Fill in the answers that waited for the votes, if they are in or no longer needed."""
        record = self._ledger.register.get(transaction)
        if record is None or record.phase is Phase.CLOSED:
            return
        call = Call.COMMIT_ONE_PHASE if record.one_phase else Call.PREPARE
        asked, record.asked = record.asked, []
        for request in asked:
            if request in self.answers:
                self.answers[request] = self.answer(call, transaction)

    def later(self, call: Call, transaction: TransactionId, request: bytes) -> Answered:
        """The answer of a call that had to wait."""
        return self.answers.get(request) or self.answer(call, transaction)

    def answer(self, call: Call, transaction: TransactionId, session: str = "") -> Answered:
        """The answer of the call in the present state, without applying it."""
        state = self.state(transaction, session)
        value = self._value(call, transaction) if state is not State.UNKNOWN else 0
        return Answered(TABLE[call, state], transaction.incarnation, 0, value)

    def _value(self, call: Call, transaction: TransactionId) -> int:
        record = self._ledger.register.get(transaction)
        if record is None:
            return self._ledger.register.outcome(transaction) or 0
        return record.timeout_seconds if call is Call.GET_TIMEOUT else record.outcome or 0

    def _first(self, call: Call, command: CoordinatorCall, index: int) -> Result:
        if call is Call.SET_TIMEOUT and command.seconds > MAX_TIMEOUT_SECONDS:
            return Answered(Code.INVALID_ARGUMENT)
        transaction = self.find(command)
        answer = self.answer(call, transaction, command.session)
        is_start = call in _STARTS and answer.code == Code.OK
        if is_start and self._ledger.works_elsewhere(command.session, transaction):
            return Answered(Code.ILLEGAL_STATE)
        if call is Call.START and answer.code == Code.OK:
            return self._start(command, index)
        record = self._ledger.register.get(transaction)
        if record is None:
            if call in _COMPLETIONS and answer.value not in (0, Outcome.COMMITTED):
                self._ledger.acknowledge(transaction)
            return answer
        return self._on_record(call, command, index, transaction, record, answer)

    def _on_record(
        self,
        call: Call,
        command: CoordinatorCall,
        index: int,
        transaction: TransactionId,
        record: Record,
        answer: Answered,
    ) -> Result:
        if call in _ENDS and answer.code in (Code.OK, *_ROLLED_BACK):
            if command.worker and command.worker != record.sessions[command.session][0]:
                # A late end of earlier work of this session.
                return Answered(Code.ILLEGAL_STATE)
            self._end(call, transaction, record, command)
        elif answer.code in _ROLLED_BACK:
            self._learn(call, transaction, record, command.session)
        elif answer.code in (Code.OK, Code.PENDING) and call in self._do:
            return self._do[call](transaction, record, command, index)
        return answer

    def _learn(self, call: Call, transaction: TransactionId, record: Record, session: str) -> None:
        """Note that the session learns that only a rollback is possible."""
        if call in _COMPLETIONS:
            self._ledger.acknowledge(transaction)
        elif call in _STARTS:
            self._ledger.part(transaction, record, session)
            self._ledger.settle(transaction, record)

    # The effects of calls.

    def _start(self, command: CoordinatorCall, index: int) -> Result:
        """Begin an incarnation. Its number is the index of this entry, higher than all assigned before."""
        xid, heard = id_of(command.xid)
        register = self._ledger.register
        if heard < max(register.latest(xid), register.forgotten):
            # This index rather than the known one: incarnations that expire meanwhile began before this
            # entry.
            return Rejected(Reason.OLD_INCARNATION, index, heard)
        transaction = TransactionId(xid, index)
        refused = self._ledger.refuse(transaction)
        if refused is not None:
            return refused
        seconds = min(command.seconds, MAX_TIMEOUT_SECONDS) or DEFAULT_TIMEOUT_SECONDS
        record = Record(Phase.ACTIVE, index, timeout_seconds=seconds, workers=1)
        self._ledger.begin(transaction, record)
        self._ledger.relate(transaction, record, command.session, 1, False)
        return Answered(Code.OK, index, 1)

    def _join(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Result:
        """The session becomes a new worker, even if it had suspended its work: the suspension named all that
        the old worker staged."""
        if record.workers >= MOST_WORKERS:
            return Rejected(Reason.TOO_MANY_WORKERS, record.workers)
        record.workers += 1
        self._ledger.relate(transaction, record, command.session, record.workers, False)
        return Answered(Code.OK, transaction.incarnation, record.workers)

    def _end(self, call: Call, transaction: TransactionId, record: Record, command: CoordinatorCall) -> None:
        """End the session's work and note what it staged, even if only a rollback is possible."""
        worker = self._ledger.part(transaction, record, command.session)
        assert worker is not None
        if call is Call.END_SUSPEND and record.outcome is None:
            self._ledger.relate(transaction, record, command.session, worker, True)
        self._ledger.enlist(transaction, record, worker, command.participants)
        if record.outcome is not None:
            self._ledger.settle(transaction, record)
        elif call is Call.END_FAIL:
            self._ledger.decide(transaction, record, Outcome.FAILED)

    def _prepare(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        if record.phase is Phase.ACTIVE:
            if not record.participants:
                # It ends here; the tombstone tells it from an xid that was never used.
                self._ledger.register.bury(transaction, Outcome.READ_ONLY)
                return Answered(Code.READONLY, transaction.incarnation)
            self._ledger.close(transaction, record, one_phase=False)
        return self.answer(Call.PREPARE, transaction, command.session)

    def _commit_one_phase(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        if record.phase is Phase.ACTIVE:
            self._ledger.close(transaction, record, one_phase=True)
            if not record.participants:
                self._ledger.decide(transaction, record, Outcome.COMMITTED)
        return self.answer(Call.COMMIT_ONE_PHASE, transaction, command.session)

    def _commit(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        if record.outcome is None:
            assert record.phase is Phase.PREPARED
            self._ledger.decide(transaction, record, Outcome.COMMITTED)
        return Answered(Code.OK, transaction.incarnation)

    def _roll_back(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        if record.outcome is None:
            self._ledger.decide(transaction, record, Outcome.ROLLED_BACK)
            self.voted(transaction)
        else:
            self._ledger.acknowledge(transaction)
        return Answered(Code.OK, transaction.incarnation)

    def _forget(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        record.heuristic = ""
        record.acknowledged = record.outcome is not Outcome.COMMITTED
        self._ledger.settle(transaction, record)
        return Answered(Code.OK, transaction.incarnation)

    def _set_timeout(
        self, transaction: TransactionId, record: Record, command: CoordinatorCall, index: int
    ) -> Answered:
        """Set the timeout and let it run from this entry; 0 is the default."""
        record.timeout_seconds = command.seconds or DEFAULT_TIMEOUT_SECONDS
        record.armed = index
        self._ledger.changed(transaction)
        return Answered(Code.OK, transaction.incarnation, 0, record.timeout_seconds)

    # Saving.

    def save(self) -> list[SavedAnswer]:
        return [
            (request, answer.code, answer.incarnation, answer.worker, answer.value)
            for request, answer in self.answers.items()
        ]

    def load(self, saved: list[SavedAnswer]) -> None:
        self.answers = {request: Answered(*fields) for request, *fields in saved}


_ROLLED_BACK: Final = (Code.RB_ROLLBACK, Code.RB_TIMEOUT)
