"""The decisions of a coordinator shard, about XA transactions and branches of applications.

| transaction | known here from | decided by | a commit needs |
|---|---|---|---|
| XA | its start (`xa/calls.py`) | calls of its transaction manager | all prepared |
| branch of an application | its close | a batch of the application | all prepared |
| on a lane | | its own branch on this shard (`branches.py`) | |

For all of them the coordinator tells the other shards, and answers a shard with a prepared branch that asks.
If a participant asks about a transaction that is unknown here, an entry rolls it back first, and a later
close is too late.

A decision is one entry, so branches cannot differ. Timeouts and lost sessions are entries like any other; the
first one in the log counts, and every caller learns its result. Only the transaction manager decides a
prepared transaction, or a person with a reason (a heuristic decision), which is kept until it is forgotten by
a call. A branch with `orphan_seconds` may be dropped by an entry after that time.

**Batches of applications.** One entry commits the branches that it names, as batch n, and drops the
application's other branches up to n. Batches count up. The highest is kept for ever, with the query that
wrote it and a digest of its source, so a repeated batch changes nothing: the answer is `DROPPED` unless it
names only committed branches. A branch of a decided batch cannot be prepared. An application that writes a
single batch (`ONCE`) expires like a tombstone; after that a repeated decision is rejected because its
branches are unknown, and a repeated attempt is prepared and waits as an orphan.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import decoder
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.results import Expired, Finished, Outcome, Prepared, Reason, Rejected, Result
from hawser.transaction.commands import (
    CoordinatorBatch,
    CoordinatorCall,
    CoordinatorClose,
    CoordinatorDecide,
    CoordinatorForget,
    CoordinatorSessionLost,
    CoordinatorTold,
    CoordinatorVotes,
    id_of,
)
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.coordinator.record import Phase, Record
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, ONCE, TransactionId, Xid
from hawser.transaction.register import SavedAge, SavedTombstone
from hawser.transaction.xa.calls import Calls, SavedAnswer
from hawser.transaction.xa.table import Call

__all__ = ["Decisions"]

_read_call = decoder(CoordinatorCall)
_read_close = decoder(CoordinatorClose)
_read_votes = decoder(CoordinatorVotes)
_read_decide = decoder(CoordinatorDecide)
_read_told = decoder(CoordinatorTold)
_read_lost = decoder(CoordinatorSessionLost)
_read_batch = decoder(CoordinatorBatch)
_read_forget = decoder(CoordinatorForget)
_BAD = Rejected(Reason.BAD_PAYLOAD)
_CALLS = frozenset(Call)
_OWN_FORMATS = (LANE_FORMAT, APPLICATION_FORMAT)


class _State(msgspec.Struct, frozen=True, array_like=True):
    records: list[tuple[int, bytes, bytes, int, Record]]
    tombstones: list[SavedTombstone]
    # The highest incarnation whose tombstone is gone.
    forgotten: int
    answers: list[SavedAnswer]
    # By application: its query, and the first batch that is not decided.
    applications: dict[bytes, tuple[bytes, int]]
    # The count of marks.
    marks: int
    ages: list[SavedAge]
    # By application that writes one batch: the count of marks at its decision.
    once: dict[bytes, int]
    # By application: the digest of the source of its highest batch.
    sources: dict[bytes, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Decisions(Part):
    """The transactions for which this shard is the coordinator."""

    name: ClassVar = "home"
    kinds: ClassVar = {
        Kind.HOME_CALL: 1,
        Kind.HOME_CLOSE: 1,
        Kind.HOME_VOTES: 1,
        Kind.HOME_DECIDE: 1,
        Kind.HOME_TOLD: 1,
        Kind.HOME_SESSION_LOST: 1,
        Kind.HOME_BATCH: 1,
        Kind.HOME_FORGET: 1,
    }

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.calls = Calls(self.ledger)
        self.applications: dict[bytes, tuple[bytes, int]] = {}
        # By application: the digest of the source of its highest batch.
        self.sources: dict[bytes, bytes] = {}
        # By application that writes one batch: the count of marks at its decision.
        self._once: dict[bytes, int] = {}
        self._handlers: dict[int, Callable[[Entry], Result]] = {
            Kind.HOME_CALL: self._call,
            Kind.HOME_CLOSE: self._close,
            Kind.HOME_VOTES: self._votes,
            Kind.HOME_DECIDE: self._decide,
            Kind.HOME_TOLD: self._told,
            Kind.HOME_SESSION_LOST: self._session_lost,
            Kind.HOME_BATCH: self._batch,
            Kind.HOME_FORGET: self._forget,
        }

    @property
    def is_remembering(self) -> bool:
        """Whether anything here expires."""
        return self.ledger.register.is_remembering or bool(self._once)

    def old(self, marks: int) -> Iterator[TransactionId]:
        """The records that may expire after so many marks: tombstones, and applications that have written
        their only batch. An application is given as an xid without a branch, with the next batch as its
        incarnation."""
        register = self.ledger.register
        yield from register.old(marks)
        for application, written in self._once.items():
            if register.marks - written >= marks:
                yield TransactionId(
                    Xid(APPLICATION_FORMAT, application, b""), self.applications[application][1]
                )

    @property
    def is_unused(self) -> bool:
        """Whether this shard has no transaction, no application and no tombstone."""
        return not (len(self.ledger.register) or self.applications or self.ledger.register.is_remembering)

    def apply(self, entry: Entry, context: Context) -> Result:
        return self._handlers[entry.kind](entry)

    def _call(self, entry: Entry) -> Result:
        command = _read_call(entry)
        if command is None or command.call not in _CALLS or command.xid[0] in _OWN_FORMATS:
            return _BAD
        return self.calls.apply(command, entry.index)

    def _close(self, entry: Entry) -> Result:
        command = _read_close(entry)
        if (
            command is None
            or not command.participants
            or not all(counts for _, counts in command.participants)
        ):
            return _BAD
        transaction = id_of(command.transaction)
        if transaction.xid.format != APPLICATION_FORMAT or not transaction.incarnation:
            return _BAD
        ledger = self.ledger
        if ledger.register.get(transaction) is not None:
            return ledger.answer(transaction)
        refused = self._refuse(transaction, command) or ledger.refuse(transaction)
        if refused is not None:
            return refused
        record = Record(
            Phase.CLOSED,
            entry.index,
            participants={shard: dict(counts) for shard, counts in command.participants},
            query=command.query,
            batch=command.batch,
            orphan_seconds=command.orphan_seconds,
        )
        ledger.begin(transaction, record)
        return ledger.answer(transaction)

    def _refuse(self, transaction: TransactionId, command: CoordinatorClose) -> Result | None:
        """The result of a close that comes too late; None if it is in time."""
        query, undecided = self.applications.get(transaction.xid.global_id, (command.query, 0))
        if query != command.query:
            return Rejected(Reason.OTHER_QUERY)
        return Finished(Outcome.DROPPED) if command.batch < undecided else None

    def _votes(self, entry: Entry) -> Result:
        command = _read_votes(entry)
        if command is None:
            return _BAD
        transaction = id_of(command.transaction)
        result = self.ledger.vote(transaction, command.shards)
        self.calls.voted(transaction)
        return result

    def _decide(self, entry: Entry) -> Result:
        command = _read_decide(entry)
        if command is None or command.transaction[0] == LANE_FORMAT or command.outcome is Outcome.READ_ONLY:
            return _BAD
        transaction = id_of(command.transaction)
        register = self.ledger.register
        record = register.get(transaction)
        commit = command.outcome is Outcome.COMMITTED
        if record is None:
            if commit or register.verdict(transaction) is not None:
                return self.ledger.answer(transaction)
            if transaction.xid.format != APPLICATION_FORMAT and transaction.incarnation > entry.index:
                # This incarnation has not been assigned yet.
                return _BAD
            # Keeps it from beginning later.
            register.bury(transaction, command.outcome)
            return Finished(command.outcome)
        if record.outcome is not None:
            return Finished(record.outcome)
        prepared = record.phase is Phase.PREPARED
        if not prepared and (commit or command.heuristic):
            return Rejected(Reason.NOT_PREPARED)
        orphaned = command.outcome is Outcome.ORPHANED and record.orphan_seconds > 0
        if prepared and not (command.prepared or command.heuristic or orphaned):
            return Prepared(len(record.participants))
        record.heuristic = command.heuristic
        result = self.ledger.decide(transaction, record, command.outcome)
        self.calls.voted(transaction)
        return result

    def _told(self, entry: Entry) -> Result:
        command = _read_told(entry)
        if command is None:
            return _BAD
        return Expired(self.ledger.tell({id_of(fields): shards for fields, shards in command.told}))

    def _session_lost(self, entry: Entry) -> Result:
        command = _read_lost(entry)
        return _BAD if command is None else Expired(self.ledger.lose(command.session))

    def _batch(self, entry: Entry) -> Result:
        command = _read_batch(entry)
        if command is None:
            return _BAD
        query, undecided = self.applications.get(command.application, (command.query, 0))
        if query != command.query:
            return Rejected(Reason.OTHER_QUERY)
        named = [
            TransactionId(Xid(APPLICATION_FORMAT, command.application, branch), 1)
            for branch in command.branches
        ]
        if command.batch < undecided:
            is_done = all(self.ledger.outcome(each) is Outcome.COMMITTED for each in named)
            return Finished(Outcome.COMMITTED if is_done else Outcome.DROPPED)
        for number, transaction in enumerate(named):
            record = self.ledger.register.get(transaction)
            if record is None or record.phase is not Phase.PREPARED or record.batch != command.batch:
                return Rejected(Reason.NO_BRANCH, 0, number)
        self.applications[command.application] = command.query, command.batch + 1
        self.sources.pop(command.application, None)
        if command.source:
            self.sources[command.application] = command.source
        if command.query == ONCE:
            self._once[command.application] = self.ledger.register.marks
        self._decide_all(command, frozenset(named))
        return Finished(Outcome.COMMITTED)

    def _decide_all(self, command: CoordinatorBatch, named: frozenset[TransactionId]) -> None:
        for transaction, record in list(self.ledger.register):
            xid = transaction.xid
            concerned = xid.format == APPLICATION_FORMAT and xid.global_id == command.application
            if concerned and record.outcome is None and record.batch <= command.batch:
                outcome = Outcome.COMMITTED if transaction in named else Outcome.DROPPED
                self.ledger.decide(transaction, record, outcome)

    def _forget(self, entry: Entry) -> Result:
        command = _read_forget(entry)
        if command is None:
            return _BAD
        if not command.transactions:
            self.ledger.register.marks += 1
        return Expired(sum(self._is_forgotten(id_of(fields)) for fields in command.transactions))

    def _is_forgotten(self, transaction: TransactionId) -> bool:
        xid, incarnation = transaction
        if xid.format != APPLICATION_FORMAT or xid.branch_id:
            return self.ledger.register.forget(transaction)
        is_known = self.applications.get(xid.global_id) == (ONCE, incarnation)
        if is_known:
            del self.applications[xid.global_id], self._once[xid.global_id]
            self.sources.pop(xid.global_id, None)
        return is_known

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def digest(self) -> bytes:
        applications = dict(sorted(self.applications.items()))
        register = self.ledger.register
        once, sources = dict(sorted(self._once.items())), dict(sorted(self.sources.items()))
        saved = (*register.save(), register.forgotten, self.calls.save(), applications)
        return _encode(_State(*saved, register.marks, register.ages(), once, sources))

    def load(self, state: bytes) -> None:
        try:
            saved = _decode(state)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadState(f"the saved decisions about transactions cannot be read: {error}") from error
        self.ledger.register.load(saved.records, saved.tombstones, saved.marks, saved.ages)
        self.ledger.register.forgotten = saved.forgotten
        self.ledger.loaded()
        self.calls.load(saved.answers)
        self.applications, self.sources = saved.applications, saved.sources
        once = {each for each, (query, _) in saved.applications.items() if query == ONCE}
        if saved.once.keys() != once or any(each > saved.marks for each in saved.once.values()):
            raise BadState("the saved ages of applications contradict themselves")
        if not saved.sources.keys() <= saved.applications.keys():
            raise BadState("a saved digest belongs to no application")
        self._once = saved.once
        for _, record in self.ledger.register:
            if (record.phase is Phase.DECIDED) != (record.outcome is not None):
                raise BadState("a saved transaction is decided without an outcome, or the other way")
