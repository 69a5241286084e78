"""The participant: the branches of transactions on one shard, while this node leads it.

A branch is open while operations are staged, prepared after a prepare, and ended by a commit or rollback
(`hawser.transaction.participant.branches`). The client's requests drive it. The leader adds entries of its
own: it rolls back branches that have exceeded their time limit or whose client is lost, carries staged
batches forward in the log (`hawser.transaction.participant.maintenance`), and asks the coordinator shard
about prepared branches that wait too long.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec

from hawser.cluster import wire
from hawser.cluster.node.queue.delivery import TOO_EARLY, QueueDelivery
from hawser.cluster.node.transaction.admission import OPERATIONS, Admitted
from hawser.cluster.node.transaction.context import DEPOSED, Host, NodeServices, OnResult, Slot
from hawser.cluster.node.transaction.coordinator import CoordinatorDriver
from hawser.errors import Corrupt
from hawser.log.entry import Kind
from hawser.log.queue.dispatcher import Proposal
from hawser.log.replica import Replica
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Outcome, Reason, Rejected, decode_result
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.transaction.participant import maintenance as k
from hawser.transaction.participant.branches import Branch, Branches

__all__ = ["Participant", "carry_before", "kept_log_bytes"]

_log = logging.getLogger("hawser.cluster.node")

# How long a prepare waits for operations that the client sends at the same time.
_HOLD_SECONDS: Final = 1.0
# A staged batch is carried forward when this many bytes of the log follow it, and this multiple of the staged
# bytes: writing the batch again is then cheap compared with the log written since.
_CARRY_BYTES: Final = 16 << 20
_LOG_TO_STAGED: Final = 8
_MUCH_LOG_BYTES: Final = 2 << 30
_MUCH_LOG_TO_STAGED: Final = 2
# A prepared branch that waits longer for its decision is in doubt.
_DOUBT_SECONDS: Final = 10.0


class Participant:
    """The participant of one shard."""

    def __init__(
        self, host: Host, branches: Branches, services: NodeServices, coordinator: CoordinatorDriver
    ) -> None:
        self._host = host
        self._services = services
        self._driver = coordinator
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._branches = branches
        self._branches.observers = services.observers.for_shard(host.name)
        self._branch_maintenance = k.BranchMaintenance(branches)
        # The last error of reading staged messages; it is logged once.
        self._damage = ""
        # Prepares that wait for operations, with the timer that ends the wait.
        self._held: dict[Slot, tuple[Admitted, asyncio.TimerHandle]] = {}

    @property
    def _now(self) -> float:
        return self._loop.time()

    # Figures.

    @property
    def open_count(self) -> int:
        return self._branches.open_count

    @property
    def prepared_count(self) -> int:
        return self._branches.prepared_count

    @property
    def in_doubt_count(self) -> int:
        """The number of prepared branches that have waited long for a decision."""
        return self._branch_maintenance.waiting(self._now, time.time_ns(), _DOUBT_SECONDS)

    @property
    def oldest_age_seconds(self) -> float:
        """The age of the oldest branch; 0 without one."""
        return self._branch_maintenance.oldest(self._now, time.time_ns())

    # Requests.

    def begin(self, each: Admitted, slot: Slot, delivery: QueueDelivery | None) -> bytes | wire.Failed | None:
        """The payload to propose; None if the slot gets its result without a proposal, or later."""
        if each.kind in OPERATIONS:
            assert each.label is not None
            if each.label.delivery and self._services.peers.is_gone(each.label.coordinator, self._now):
                # The coordinator shard is deleted and has nothing left to deliver; what it delivered is
                # forgotten here. This request is a late one.
                return wire.Failed(wire.Code.NOT_FOUND, f"shard {each.label.coordinator} was deleted", False)
            if each.label.others:
                slot.on_result = partial(self._driver.settle_branch, each.label.id)
            verdict = self._branches.judge(each.label)
            # After a GAP the missing operation may be in the log already, but not applied.
            if verdict is not None and not (isinstance(verdict, Rejected) and verdict.reason is Reason.GAP):
                slot.set_result(verdict)
                return None
            if OPERATIONS[each.kind] == "queue":
                return TOO_EARLY if delivery is None else self._with_queue(each, slot, delivery)
        elif each.kind == Kind.BRANCH_PREPARE:
            if each.may_wait and self._is_early(each):
                timer = self._loop.call_later(_HOLD_SECONDS, self._let_go, slot)
                self._held[slot] = each, timer
                return None
            return _stamped(each)
        elif each.kind in (Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT):
            assert each.label is not None
            for shard in each.command.deliveries if each.kind == Kind.BRANCH_COMMIT else ():
                refused = self._services.peers.undeliverable(shard, self._now)
                if refused is not None:
                    return refused
            slot.on_result = partial(self._driver.settle_branch, each.label.id)
        return each.payload

    def _with_queue(self, each: Admitted, slot: Slot, delivery: QueueDelivery) -> bytes | wire.Failed | None:
        if each.kind == Kind.QUEUE_PUT:
            delivery.limit()
            return each.payload
        found = delivery.lock(each.command)
        if isinstance(found, Proposal):
            slot.on_result = partial(self._resolve, delivery, each.command.subqueue, found, slot.on_result)
            return found.payload
        if isinstance(found, Rejected):
            slot.tell(found)
            return None
        return found

    def _resolve(
        self,
        delivery: QueueDelivery,
        subqueue: int,
        lock: Proposal,
        then: OnResult | None,
        slot: Slot,
        result: Any,
    ) -> bool:
        delivery.resolve(subqueue, lock)
        return then is None or then(slot, result)

    def _is_early(self, each: Admitted) -> bool:
        """Whether the prepare counts operations that are not here yet and may still arrive."""
        assert each.label is not None
        register = self._branches.register
        branch = register.get(each.label.id)
        if register.verdict(each.label.id) is not None or (branch is not None and branch.is_prepared):
            return False
        counts = branch.counts if branch is not None else {}
        return any(counts.get(worker, 0) < count for worker, count in each.command.counts)

    def _let_go(self, slot: Slot) -> None:
        each, timer = self._held.pop(slot)
        timer.cancel()
        self._host.propose(each.kind, _stamped(each), slot, each.encoded_label)

    def applied(self) -> None:
        """Called after entries were applied."""
        for slot in [slot for slot, (each, _) in self._held.items() if not self._is_early(each)]:
            self._let_go(slot)

    # Time.

    def tick(self) -> None:
        """Called periodically."""
        now, clients = self._now, self._services.clients
        actions = self._branch_maintenance.tick(
            now,
            lambda owner: clients.is_lost(owner, now),
            lambda shard: self._services.peers.is_gone(shard, now),
            carry_before(self._host.replica),
        )
        for action in actions:
            if isinstance(action, k.Propose):
                self._host.propose(action.kind, action.payload, None, action.label)
            elif isinstance(action, k.Carry):
                self._carry(action)
            else:
                self._ask(action)

    def _ask(self, asked: k.Ask) -> None:
        transaction = asked.transaction
        coordinator = asked.coordinator or self._services.peers.coordinator_of(transaction.xid)
        is_lane = transaction.xid.format == LANE_FORMAT
        if is_lane and self._services.peers.is_gone(asked.coordinator, self._now):
            self._end(transaction, Outcome.ROLLED_BACK)
        elif coordinator is not None:
            look = wire.TransactionLook(coordinator, transaction.xid, transaction.incarnation)
            self._services.peers.tell(
                look, partial(self._hear, k.Ask(coordinator, transaction, asked.reason))
            )

    def _carry(self, action: k.Carry) -> None:
        try:
            entry = self._host.replica.entry(action.index)
        except (Corrupt, OSError) as error:
            # The other batches are carried forward anyway; this one is retried, and logged once.
            if str(error) != self._damage:
                self._damage = str(error)
                _log.error("shard %s: staged messages cannot be read: %s", self._host.name, error)
            return
        self._host.propose(entry.kind, bytes(entry.payload), None, action.label)

    def _hear(self, asked: k.Ask, answer: wire.Answer) -> None:
        """Handles the coordinator's answer about a prepared branch."""
        outcome = None
        if isinstance(answer, wire.TransactionsSeen):
            outcome = None if answer.outcome is None else Outcome(answer.outcome)
            if any(each.prepared for each in answer.branches):
                # That shard is itself prepared: it waits for another shard, perhaps this one, and decides
                # nothing.
                outcome = Outcome.ROLLED_BACK
            if outcome is None and not answer.records and asked.reason is not None:
                disowned = self._branch_maintenance.disown(asked.transaction, asked.reason)
                entry = wire.Labelled(disowned.kind, disowned.payload, disowned.label)
                self._services.peers.tell(
                    wire.Transact(asked.coordinator, (entry,)), partial(self._hear, asked)
                )
        elif isinstance(answer, wire.Transacted):
            result = decode_result(answer.results[0])
            is_old = isinstance(result, Rejected) and result.reason is Reason.OLD_INCARNATION
            outcome = Outcome.ROLLED_BACK if is_old else getattr(result, "outcome", None)
        if isinstance(outcome, Outcome) and not self._closed:
            self._end(asked.transaction, outcome)

    def _end(self, transaction: TransactionId, outcome: Outcome) -> None:
        """Proposes the outcome that the coordinator decided."""
        decided = self._branch_maintenance.decided(transaction, outcome)
        self._host.propose(decided.kind, decided.payload, None, decided.label)

    # Looking.

    def seen(self, branches: Iterable[tuple[TransactionId, Branch]]) -> tuple[wire.BranchSeen, ...]:
        """Reports these branches."""
        now, clock_ns = self._now, time.time_ns()
        return tuple(
            wire.BranchSeen(
                transaction.xid,
                transaction.incarnation,
                branch.is_prepared,
                branch.coordinator,
                len(branch.operations),
                branch.size_bytes,
                self._branch_maintenance.age(transaction, branch, now, clock_ns),
            )
            for transaction, branch in branches
        )

    def close(self) -> None:
        """The term is over: held prepares are answered with DEPOSED."""
        self._closed = True
        self._branches.observers = None
        for slot, (_, timer) in self._held.items():
            timer.cancel()
            slot.tell(DEPOSED)
        self._held.clear()


def carry_before(replica: Replica) -> int:
    """Batches that were staged before this entry are carried forward, so that the log can be shortened."""
    staged_bytes = replica.machine.part(Branches).staged_bytes
    if not staged_bytes:
        return 0
    newest = replica.journal.first_of_newest(kept_log_bytes(staged_bytes))
    return min(newest, replica.machine.needed_without(Branches))


def kept_log_bytes(staged_bytes: int) -> int:
    """The size of the log that is kept for its staged batches, which have `staged_bytes`."""
    much = max(_MUCH_LOG_BYTES, _MUCH_LOG_TO_STAGED * staged_bytes)
    return max(_CARRY_BYTES, min(_LOG_TO_STAGED * staged_bytes, much))


def _stamped(prepare: Admitted) -> bytes:
    """The payload of a prepare, with the leader's time."""
    return encode_command(msgspec.structs.replace(prepare.command, asked_ns=time.time_ns()))
