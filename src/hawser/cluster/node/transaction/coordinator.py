"""The coordinator of one shard: runs the transactions that this shard decides, while this node leads it.

The pure coordinator (`hawser.transaction.coordinator.coordinator`) turns events into effects; the driver
proposes entries, sends requests to the other shards, and feeds the answers back as events. A client gets the
result of a decision when every shard that can be reached has carried it out, so committed messages are
readable. Shards that cannot be reached are told later, by this leader or the next.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from hawser.cluster import wire
from hawser.cluster.node.transaction.admission import Admitted
from hawser.cluster.node.transaction.client_registry import ABSENT_SECONDS, UNSEEN_SECONDS
from hawser.cluster.node.transaction.context import DEPOSED, AnswerCollector, Host, NodeServices, Slot
from hawser.log.entry import Kind
from hawser.log.state.results import Answered, Finished, Outcome, Reason, Rejected, Result, decode_result
from hawser.transaction.commands import (
    CoordinatorBatch,
    CoordinatorCall,
    CoordinatorClose,
    CoordinatorDecide,
    id_of,
)
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.record import Record
from hawser.transaction.identity import APPLICATION_FORMAT, CLAIMS, TransactionId, Xid, owner_of
from hawser.transaction.xa.table import Call, Code

__all__ = ["CoordinatorDriver"]

_log = logging.getLogger("hawser.cluster.node")

_COMPLETIONS: Final = (Call.COMMIT_ONE_PHASE, Call.COMMIT, Call.ROLLBACK)
_MOST_BROKEN: Final = 1024
_OVER: Final = Rejected(Reason.TRANSACTION_OVER)
# The result of a batch that was decided before, without the branches that it names.
_SKIPPED: Final = Finished(Outcome.DROPPED)


class CoordinatorDriver:
    """The driver of one shard's coordinator."""

    def __init__(self, host: Host, decisions: Decisions, services: NodeServices) -> None:
        self._host = host
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._decisions = decisions
        self._ledger = decisions.ledger
        self._coordinator = c.Coordinator(decisions, host.name)
        self._events: deque[c.Event] = deque()
        self._is_working = False
        # Requests whose result waits for other shards.
        self._waiting: set[Slot] = set()
        # Transactions whose step raised an error; it is logged once for each.
        self._broken: set[TransactionId] = set()
        self._add(c.Began(self._now))

    @property
    def _now(self) -> float:
        return self._loop.time()

    @property
    def unfinished_count(self) -> int:
        """The number of transactions that are not over on every shard."""
        return len(self._ledger.register)

    # The coordinator.

    def _add(self, event: c.Event) -> None:
        """Processes an event. Events that it causes are queued and processed after it."""
        self._events.append(event)
        if self._is_working:
            return
        self._is_working = True
        try:
            while self._events and not self._closed:
                self._work(self._events.popleft())
        finally:
            self._is_working = False

    def _work(self, event: c.Event) -> None:
        try:
            effects = self._coordinator.step(event)
        except Exception:
            # A broken invariant, or votes that a client made up. The transaction keeps its state, for a
            # person to look at; no other is affected. It is retried, and logged once.
            transaction = getattr(event, "transaction", None)
            if transaction is None or transaction not in self._broken:
                _log.exception(
                    "shard %s: this should never happen, please report it: %s", self._host.name, event
                )
            if transaction is not None and len(self._broken) < _MOST_BROKEN:
                self._broken.add(transaction)
            return
        for effect in effects:
            if isinstance(effect, c.Tell):
                entry = wire.Labelled(effect.kind, effect.payload, effect.label)
                request = wire.Transact(effect.shard, (entry,))
                self._services.peers.tell(request, partial(self._hear, effect))
            elif isinstance(effect, c.Propose):
                self._host.propose(effect.kind, effect.payload)
            else:
                assert isinstance(effect.tag, Slot)
                self._waiting.discard(effect.tag)
                effect.tag.tell(effect.result)

    def _hear(self, told: c.Tell, answer: wire.Answer) -> None:
        if self._closed:
            return
        if isinstance(answer, wire.Transacted):
            result: Result | None = decode_result(answer.results[0])
        else:
            result = _OVER if self._is_gone(told, answer) else None
        if result is None:
            self._add(c.Lost(self._now, told.shard, told.transaction))
        else:
            self._add(c.Heard(self._now, told.shard, told.transaction, told.kind, result))

    def _is_gone(self, told: c.Tell, answer: wire.Answer) -> bool:
        """Whether the shard does not exist. A rollback need not reach a shard that the map does not have: a
        branch without a recorded decision is rolled back anyway."""
        if self._services.peers.is_gone(told.shard, self._now):
            return True
        is_refused = isinstance(answer, wire.Failed) and not answer.retryable
        return told.kind == Kind.BRANCH_ABORT and (is_refused or not self._services.peers.knows(told.shard))

    def applied(self) -> None:
        """Called after entries were applied."""
        if self._coordinator.has_news:
            self._add(c.Changed(self._now))

    def tick(self) -> None:
        """Called periodically."""
        if self._decisions.is_unused:
            return
        now = self._now
        self._add(
            c.Tick(now, tuple(each for each in sorted(self._ledger.sessions) if self._is_lost(each, now)))
        )

    def _is_lost(self, session: str, now: float) -> bool:
        """A session without undecided work is kept only to be notified, so its limit is shorter."""
        seconds = UNSEEN_SECONDS if self._ledger.is_undecided(session) else ABSENT_SECONDS
        return self._services.clients.is_lost(owner_of(session), now, seconds)

    # Clients.

    def begin(self, each: Admitted, slot: Slot) -> bytes | None:
        """The payload to propose; None if the slot gets its result without a proposal, or later."""
        if isinstance(each.command, CoordinatorClose) and self._is_known(each.command):
            slot.on_result = partial(self._settle, each.command)
            slot.set_result(self._ledger.answer(id_of(each.command.transaction)))
            return None
        if isinstance(each.command, CoordinatorCall | CoordinatorClose | CoordinatorDecide):
            slot.on_result = partial(self._settle, each.command)
        elif isinstance(each.command, CoordinatorBatch):
            slot.on_result = partial(self._settle_batch, each.command)
        return each.payload

    def _is_known(self, command: CoordinatorClose) -> bool:
        """Whether closing the transaction again would change nothing."""
        return self._ledger.register.get(id_of(command.transaction)) is not None

    def settle_branch(self, transaction: TransactionId, slot: Slot, result: Any) -> bool:
        """As `_settle`, for a branch of this shard that ended together with branches on other shards."""
        if not self._is_spreading(transaction, None, result):
            return True
        self._wait(slot, transaction, known=result)
        return False

    def _settle(
        self, command: CoordinatorCall | CoordinatorClose | CoordinatorDecide, slot: Slot, result: Any
    ) -> bool:
        """Whether the client gets the result now."""
        transaction, call, request = self._subject(command)
        if isinstance(result, Answered) and result.code == Code.PENDING:
            self._wait(slot, transaction, call, request)
        elif self._is_spreading(transaction, call, result):
            self._wait(slot, transaction, known=result)
        else:
            return True
        return False

    def _settle_batch(self, command: CoordinatorBatch, slot: Slot, result: Any) -> bool:
        """As `_settle`, for all branches that the batch names."""
        # A repeated commit of a claim that the coordinator has forgotten skips nothing.
        is_claim = command.application.startswith(CLAIMS)
        self._services.observers.skipped_batches += result == _SKIPPED and not is_claim
        named = (Xid(APPLICATION_FORMAT, command.application, branch) for branch in command.branches)
        transactions = [TransactionId(xid, 1) for xid in named]
        spreading = [each for each in transactions if self._is_spreading(each, None, result)]
        collector = AnswerCollector(
            len(spreading),
            lambda answer: slot.tell(answer if isinstance(answer, wire.Failed) else result),
        )
        for place, transaction in enumerate(spreading):
            self._wait(Slot(collector, place), transaction)
        return not spreading

    def _wait(
        self,
        slot: Slot,
        transaction: TransactionId,
        call: Call | None = None,
        request: bytes = b"",
        known: Result | None = None,
    ) -> None:
        if self._closed:
            slot.tell(DEPOSED)
        else:
            self._waiting.add(slot)
            self._add(c.Await(self._now, slot, transaction, call, request, known))

    def _subject(
        self, command: CoordinatorCall | CoordinatorClose | CoordinatorDecide
    ) -> tuple[TransactionId, Call | None, bytes]:
        """The transaction that the command is about; for a call also the call and the request's name."""
        if not isinstance(command, CoordinatorCall):
            return id_of(command.transaction), None, b""
        return id_of(command.xid), Call(command.call), command.request

    def _is_spreading(self, transaction: TransactionId, call: Call | None, result: Any) -> bool:
        """Whether the transaction is decided and some shards have not confirmed it."""
        is_ok = isinstance(result, Answered) and result.code == Code.OK and call in _COMPLETIONS
        record = self._ledger.register.get(transaction)
        return (is_ok or isinstance(result, Finished)) and record is not None and bool(record.waiting)

    # Looking.

    def seen(self, records: Iterable[tuple[TransactionId, Record]]) -> tuple[wire.RecordSeen, ...]:
        """Reports these transactions."""
        now = self._now
        return tuple(
            wire.RecordSeen(
                transaction.xid,
                transaction.incarnation,
                record.state("").value,
                record.outcome,
                record.heuristic,
                {
                    shard: 1 if shard in record.deliveries else sum(counts.values())
                    for shard, counts in record.participants.items()
                },
                tuple(record.waiting),
                record.timeout_seconds,
                self._coordinator.age(transaction, now),
            )
            for transaction, record in records
        )

    def close(self) -> None:
        """The term is over: waiting requests are answered with DEPOSED."""
        self._closed = True
        self._ledger.on_change = None
        for slot in self._waiting:
            slot.tell(DEPOSED)
        self._waiting.clear()
