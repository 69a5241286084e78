"""The coordinator: the leader of a coordinator shard collects votes and spreads decisions.

Pure: `step(event) -> effects`. The ledger has everything that must survive; the rest only avoids repeated
questions. A new leader makes a new coordinator, which asks and tells again whatever is unfinished. Every
request may be repeated.

| phase of the record | the coordinator |
|---|---|
| ACTIVE | waits for calls; proposes a rollback at the timeout or when a session is lost |
| CLOSED | collects votes and proposes them, or a rollback after a vote against or at the timeout |
| PREPARED | answers waiting clients; proposes to drop an orphan when its time is over |
| DECIDED | tells participants the outcome, delivers batches; reports who has it (`CoordinatorTold`) |

Its caller

1. makes one when this member begins to lead and has applied all earlier entries, calls `step(Began(now))`,
   and drops it when the term ends;
2. calls `step(Changed(now))` whenever entries were applied;
3. has a `Tell` proposed by the leader of its shard and always returns the result: `Heard`, or `Lost` without
   an answer. Until then that shard is told nothing else of the transaction. A deleted shard counts as an
   answer that the transaction is over: it had no prepared branch, or it could not have been deleted, and
   undelivered batches for it are void;
4. proposes a `Propose` on this shard; its result shows in the ledger;
5. calls `step(Tick(now))` regularly.

Time decides when something is proposed, never the outcome: a timeout is an entry that rolls back what is not
prepared. Shards that have an outcome are reported in one entry for many transactions, at the next tick or
after ENOUGH_FINISHED of them, because no client waits for that.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec

from hawser.log.entry import Kind
from hawser.log.protocol.events import Tag
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Answered, Finished, Outcome, Prepared, Reason, Rejected, Result
from hawser.transaction.commands import (
    BranchAbort,
    BranchCommit,
    BranchPrepare,
    CoordinatorDecide,
    CoordinatorForget,
    CoordinatorSessionLost,
    CoordinatorTold,
    CoordinatorVotes,
    to_fields,
)
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.record import Phase, Record
from hawser.transaction.expiry import OLD_MARKS, ExpiryTimer
from hawser.transaction.identity import Label, TransactionId
from hawser.transaction.xa.table import Call, Code

__all__ = [
    "Await",
    "Began",
    "Changed",
    "Coordinator",
    "Effect",
    "Event",
    "Heard",
    "Lost",
    "Propose",
    "Reply",
    "Tell",
    "Tick",
]

# The pause before a request is repeated.
RETRY_SECONDS: Final = 1.0
# This many finished transactions are reported at once.
ENOUGH_FINISHED: Final = 64
# The most deliveries in flight to a shard.
MOST_UNDER_WAY: Final = 64
# Answers of a shard without this branch, or for a deleted shard.
_GONE: Final = (Reason.TRANSACTION_OVER, Reason.OLD_INCARNATION)


class Began(msgspec.Struct, frozen=True):
    """This member leads the coordinator shard."""

    now: float


class Changed(msgspec.Struct, frozen=True):
    """Entries were applied."""

    now: float


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; these of the `Ledger.sessions` are lost."""

    now: float
    lost: tuple[str, ...] = ()


class Heard(msgspec.Struct, frozen=True):
    """The result of a `Tell`."""

    now: float
    shard: str
    transaction: TransactionId
    kind: int
    result: Result


class Lost(msgspec.Struct, frozen=True):
    """A `Tell` got no answer from a leader."""

    now: float
    shard: str
    transaction: TransactionId


class Await(msgspec.Struct, frozen=True):
    """A client waits for the outcome of a transaction, or with `call` and `request` for the result of that
    call. `known` is the result if it is already known and only all shards have to hear it first."""

    now: float
    tag: Tag
    transaction: TransactionId
    call: Call | None = None
    request: bytes = b""
    known: Result | None = None


Event = Began | Changed | Tick | Heard | Lost | Await


class Tell(msgspec.Struct, frozen=True):
    """Propose this entry on that shard."""

    shard: str
    transaction: TransactionId
    kind: int
    payload: bytes
    label: bytes


class Propose(msgspec.Struct, frozen=True):
    """Propose this entry on the coordinator shard."""

    kind: int
    payload: bytes


class Reply(msgspec.Struct, frozen=True):
    """Answer a client."""

    tag: Tag
    result: Result


Effect = Tell | Propose | Reply


class _Work:
    """The soft state of one transaction."""

    __slots__ = (
        "armed", "asked", "away", "began", "deadline", "is_in_line", "phase", "proposed", "told", "under_way",
        "votes", "waiters",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.began = now
        self.votes: set[str] = set()
        self.told: set[str] = set()
        # Shards without an answer since the phase began.
        self.away: set[str] = set()
        # Shards with a `Tell` in flight, the time of the last `Tell` to each, and the time of the last
        # proposal.
        self.under_way: set[str] = set()
        self.asked: dict[str, float] = {}
        self.proposed = float("-inf")
        self.phase: Phase | None = None
        self.armed = 0
        self.deadline = float("inf")
        self.waiters: list[Await] = []
        # Whether only deliveries are left.
        self.is_in_line = False

    def begin_to_tell(self, shard: str, now: float) -> bool:
        """Whether to tell the shard now; False if a `Tell` is in flight or was sent less than RETRY_SECONDS
        ago."""
        if shard in self.under_way or now - self.asked.get(shard, float("-inf")) < RETRY_SECONDS:
            return False
        self.asked[shard] = now
        self.under_way.add(shard)
        return True

    def begin_to_propose(self, now: float) -> bool:
        """Whether to propose now; False less than RETRY_SECONDS after the last proposal."""
        if now - self.proposed < RETRY_SECONDS:
            return False
        self.proposed = now
        return True


class _Line:
    """The deliveries to one shard, in order. `early` ones were rejected because an earlier one was missing.
    While the shard does not answer (`is_away`), only the first is sent, as a probe."""

    __slots__ = ("early", "is_away", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[TransactionId, None] = {}
        self.early: set[TransactionId] = set()
        self.is_away = False


class Coordinator:
    """The coordinator of the shard with this name."""

    def __init__(self, decisions: Decisions, shard: str) -> None:
        self._decisions = decisions
        self._ledger = decisions.ledger
        self._shard = shard
        self._works: dict[TransactionId, _Work] = {}
        self._touched: dict[TransactionId, None] = {}
        # Transactions whose shards all have the outcome, before that is reported.
        self._finished: set[TransactionId] = set()
        self._lines: dict[str, _Line] = {}
        self._effects: list[Effect] = []
        self._expiry = ExpiryTimer()
        self._ledger.on_change = self._touch
        self._do: dict[type, Callable[[Any], None]] = {
            Began: self._begin,
            Tick: self._tick,
            Heard: self._hear,
            Lost: self._lose,
            Await: self._await,
        }

    def step(self, event: Event) -> list[Effect]:
        """The effects of this event; their order does not matter."""
        self._effects = []
        do = self._do.get(type(event))
        if do is not None:
            do(event)
        while self._touched:
            touched, self._touched = self._touched, {}
            for transaction in touched:
                self._drive(transaction, event.now)
        return self._effects

    def _touch(self, transaction: TransactionId) -> None:
        self._touched[transaction] = None

    @property
    def has_news(self) -> bool:
        """Whether applied entries have changed something that no step has seen."""
        return bool(self._touched)

    def age(self, transaction: TransactionId, now: float) -> float:
        """The seconds since this coordinator first saw the transaction."""
        work = self._works.get(transaction)
        return 0.0 if work is None else now - work.began

    # Events.

    def _begin(self, event: Began) -> None:
        for transaction, _ in self._ledger.register:
            self._touch(transaction)

    def _tick(self, event: Tick) -> None:
        self._report()
        for session in event.lost:
            self._propose(Kind.HOME_SESSION_LOST, CoordinatorSessionLost(session))
        for transaction, work in self._works.items():
            if not work.is_in_line:
                self._touch(transaction)
        for shard, line in self._lines.items():
            self._advance(shard, line, event.now)
        old = self._expiry.old(self._decisions.old(OLD_MARKS), event.now)
        if old:
            self._propose(Kind.HOME_FORGET, CoordinatorForget(tuple(map(to_fields, old))))
        if self._decisions.is_remembering and self._expiry.is_due(event.now):
            self._propose(Kind.HOME_FORGET, CoordinatorForget(()))

    def _await(self, event: Await) -> None:
        self._works.setdefault(event.transaction, _Work(event.now)).waiters.append(event)
        self._touch(event.transaction)

    def _lose(self, event: Lost) -> None:
        """Note that a shard did not answer. Clients no longer wait until it has the outcome, and the line of
        its deliveries only sends the first one, until it answers again."""
        work = self._works.get(event.transaction)
        if work is None:
            return
        work.under_way.discard(event.shard)
        work.away.add(event.shard)
        self._touch(event.transaction)
        line = self._lines.get(event.shard)
        if line is not None and event.transaction in line.transactions:
            line.is_away = True
            line.early.clear()
            for transaction in line.transactions:
                behind = self._works[transaction]
                behind.away.add(event.shard)
                if behind.waiters:
                    self._touch(transaction)

    def _hear(self, event: Heard) -> None:
        """Take a shard's answer: its vote, the rejection of a delivery that came before an earlier one, or
        that it has the outcome."""
        record = self._ledger.register.get(event.transaction)
        work = self._works.get(event.transaction)
        if work is not None:
            work.under_way.discard(event.shard)
        if record is None or work is None or event.shard not in record.participants:
            return
        work.away.discard(event.shard)
        if record.phase is Phase.CLOSED and event.kind == Kind.BRANCH_PREPARE:
            self._count(event, work)
        elif isinstance(event.result, Rejected) and event.result.reason is Reason.GAP:
            # It is sent again as soon as the one before it is delivered.
            work.asked.pop(event.shard, None)
            if event.shard in self._lines:
                self._lines[event.shard].early.add(event.transaction)
        elif record.outcome is not None and event.kind != Kind.BRANCH_PREPARE:
            self._check(event, record.outcome)
            work.told.add(event.shard)
            self._leave_line(event)
        self._touch(event.transaction)

    def _leave_line(self, event: Heard) -> None:
        """Remove a delivery that was applied, and send the next ones."""
        line = self._lines.get(event.shard)
        if line is None or event.transaction not in line.transactions:
            return
        del line.transactions[event.transaction]
        line.early.clear()
        line.is_away = False
        if line.transactions:
            self._advance(event.shard, line, event.now)
        else:
            del self._lines[event.shard]

    def _count(self, event: Heard, work: _Work) -> None:
        """Count a vote; one vote against rolls the transaction back."""
        if isinstance(event.result, Prepared):
            work.votes.add(event.shard)
            return
        outcome = event.result.outcome if isinstance(event.result, Finished) else Outcome.INCOMPLETE
        assert outcome is not Outcome.COMMITTED, f"{event.transaction} was committed before it was decided"
        self._decide(event.transaction, outcome)

    def _check(self, event: Heard, outcome: Outcome) -> None:
        """Assert that the participant applied what was decided."""
        result = event.result
        committed = outcome is Outcome.COMMITTED
        if isinstance(result, Finished):
            assert (result.outcome is Outcome.COMMITTED) == committed, (event, outcome)
        else:
            assert isinstance(result, Rejected) and result.reason in _GONE, (event, outcome)

    # Progress of one transaction.

    def _drive(self, transaction: TransactionId, now: float) -> None:
        """Do what the record's phase asks for; without a record answer the clients and forget the rest."""
        record = self._ledger.register.get(transaction)
        work = self._works.setdefault(transaction, _Work(now))
        if record is None:
            self._finished.discard(transaction)
            self._answer(transaction, work)
            for line in self._lines.values():
                line.transactions.pop(transaction, None)
            if not work.waiters:
                del self._works[transaction]
            return
        if record.phase is not work.phase:
            work.phase = record.phase
            work.asked.clear()
            work.away.clear()
            work.proposed = float("-inf")
        self._arm(record, work, now)
        if record.phase is Phase.CLOSED:
            self._collect(transaction, record, work, now)
        elif record.phase is Phase.PREPARED:
            self._answer(transaction, work)
        elif record.outcome is not None:
            self._spread(transaction, record, work, now)
        if now >= work.deadline:
            self._time_out(transaction, record, work, now)

    def _arm(self, record: Record, work: _Work, now: float) -> None:
        """Set the deadline: the timeout from the entry that armed it, or the orphan time once it is
        prepared."""
        if record.phase is Phase.PREPARED:
            if work.armed >= 0:
                work.armed = -1
                work.deadline = now + record.orphan_seconds if record.orphan_seconds else float("inf")
        elif record.outcome is not None:
            work.deadline = float("inf")
        elif work.armed != record.armed:
            work.armed = record.armed
            work.deadline = now + record.timeout_seconds

    def _time_out(self, transaction: TransactionId, record: Record, work: _Work, now: float) -> None:
        if work.begin_to_propose(now):
            prepared = record.phase is Phase.PREPARED
            self._decide(transaction, Outcome.ORPHANED if prepared else Outcome.TIMED_OUT)

    def _collect(self, transaction: TransactionId, record: Record, work: _Work, now: float) -> None:
        """Ask the participants to prepare; propose the votes when all are in."""
        shards = record.participants.keys()
        for shard in sorted(shards - work.votes):
            if work.begin_to_tell(shard, now):
                prepare = encode_command(BranchPrepare(record.counts(shard), self._shard))
                label = Label(transaction).encode()
                self._effects.append(Tell(shard, transaction, Kind.BRANCH_PREPARE, prepare, label))
        if shards <= work.votes and work.begin_to_propose(now):
            votes = CoordinatorVotes(to_fields(transaction), tuple(sorted(shards)))
            self._propose(Kind.HOME_VOTES, votes)

    def _spread(self, transaction: TransactionId, record: Record, work: _Work, now: float) -> None:
        """Tell the outcome to each participant that has not confirmed it: branches get their end at once,
        deliveries wait in the line of their shard. Waiting clients are answered when only shards that do not
        answer are left."""
        untold = [shard for shard in record.waiting if shard not in work.told]
        for shard in untold:
            if shard in record.deliveries:
                self._line_up(transaction, shard, now)
            elif work.begin_to_tell(shard, now):
                self._effects.append(self._word(transaction, record, shard))
        work.is_in_line = bool(untold) and all(shard in record.deliveries for shard in untold)
        if record.waiting and not untold:
            self._finished.add(transaction)
            if len(self._finished) >= ENOUGH_FINISHED:
                self._report()
        if set(untold) <= work.away:
            self._answer(transaction, work)

    def _line_up(self, transaction: TransactionId, shard: str, now: float) -> None:
        """Put the delivery at the end of the shard's line, unless it is in it, and send what may be sent."""
        line = self._lines.setdefault(shard, _Line())
        if transaction not in line.transactions:
            line.transactions[transaction] = None
            if line.is_away:
                self._works[transaction].away.add(shard)
            self._advance(shard, line, now)

    def _advance(self, shard: str, line: _Line, now: float) -> None:
        """Send the first deliveries that are not in flight and not waiting for an earlier one."""
        in_front = islice(line.transactions, 1 if line.is_away else MOST_UNDER_WAY)
        for place, transaction in enumerate(in_front):
            record, work = self._ledger.register.get(transaction), self._works[transaction]
            is_early = place > 0 and transaction in line.early
            if record is not None and not is_early and work.begin_to_tell(shard, now):
                self._effects.append(self._word(transaction, record, shard))

    def _word(self, transaction: TransactionId, record: Record, shard: str) -> Tell:
        """The entry that tells a shard the decision: its batch if it has no branch, else the end of its
        branch. The label of a batch numbers it and names the one before, so the shard applies the batches in
        order and each once; a repeat changes nothing."""
        assert record.outcome is not None
        if shard in record.deliveries:
            before, batch = record.deliveries[shard]
            number = record.delivery
            label = Label(transaction, 1, last=True, coordinator=self._shard, delivery=number, before=before)
            return Tell(shard, transaction, Kind.BATCH, batch, label.encode())
        kind: int = Kind.BRANCH_COMMIT
        payload: Payload = BranchCommit()
        if record.outcome is not Outcome.COMMITTED:
            kind, payload = Kind.BRANCH_ABORT, BranchAbort(record.outcome, decided=True)
        return Tell(shard, transaction, kind, encode_command(payload), Label(transaction).encode())

    def _answer(self, transaction: TransactionId, work: _Work) -> None:
        """Answer the waiting clients whose result is known."""
        left: list[Await] = []
        for waiter in work.waiters:
            result: Result
            if waiter.call is None:
                result = waiter.known or self._ledger.answer(transaction)
            else:
                result = self._decisions.calls.later(waiter.call, transaction, waiter.request)
            if isinstance(result, Answered) and result.code == Code.PENDING:
                left.append(waiter)
            else:
                self._effects.append(Reply(waiter.tag, result))
        work.waiters = left

    # Effects.

    def _decide(self, transaction: TransactionId, outcome: Outcome) -> None:
        self._propose(Kind.HOME_DECIDE, CoordinatorDecide(to_fields(transaction), outcome))

    def _report(self) -> None:
        """Propose an entry with the shards that have the outcomes."""
        self._finished.clear()
        told = []
        for transaction, work in self._works.items():
            record = self._ledger.register.get(transaction) if work.told else None
            shards = tuple(each for each in record.waiting if each in work.told) if record is not None else ()
            if shards:
                told.append((to_fields(transaction), shards))
        if told:
            self._propose(Kind.HOME_TOLD, CoordinatorTold(tuple(told)))

    def _propose(self, kind: int, payload: Payload) -> None:
        self._effects.append(Propose(kind, encode_command(payload)))
