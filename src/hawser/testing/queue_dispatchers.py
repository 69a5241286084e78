"""The dispatchers of a simulated leader, one for each subqueue; all requests of consumers go through them.

They are made and dropped as `hawser.log.queue.dispatcher` says. Every delivery is compared with what a
look at every message gives.
"""

from typing import TYPE_CHECKING

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.protocol.events import Command, Reason
from hawser.log.queue.dispatcher import (
    Delivery,
    Dispatcher,
    Get,
    Proposal,
    RefusalReason,
    Settlement,
    SettlementRefusal,
)
from hawser.log.replica import Replica
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.results import Reason as Refusal
from hawser.log.state.results import Rejected, Result
from hawser.testing.checks import Violation
from hawser.testing.clients import Deliveries, Errand, Failure, Lock, Tag
from hawser.transaction.identity import Label
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.locks import lock

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["Dispatchers", "Ending"]


class Ending:
    """The tag of an entry that settles messages: who asked for it, if anybody, and what is to be told which
    dispatcher. No two are the same."""

    def __init__(
        self, dispatcher: Dispatcher, proposal: Proposal, tag: Tag | None, label: bytes = b""
    ) -> None:
        self.tag = tag
        self._label = label
        self.proposal = proposal
        self._dispatcher = dispatcher

    def __repr__(self) -> str:
        return f"Ending({self.tag})"

    def resolve(self) -> None:
        self._dispatcher.resolve(self.proposal)

    def command(self) -> Command:
        return Command(Kind.QUEUE_SETTLE, self.proposal.payload, self, transaction=self._label)


class Dispatchers:
    """Those of one process."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._dispatchers: dict[int, Dispatcher] = {}
        # The epoch in which this process began to lead, if it has dispatchers.
        self._epoch = 0

    def forget(self) -> None:
        """The process ended, or leads no more."""
        self._dispatchers = {}
        self._epoch = 0

    def open(self, replica: Replica) -> None:
        """Make dispatchers if this process leads and has applied all entries before its term, otherwise drop
        them."""
        leading = replica.node.leadership
        if leading is None or replica.halted:
            self.forget()
        elif self._epoch != leading.since:
            self.forget()
            if leading.ready:
                self._epoch = leading.since
                self._cluster.probes.count("queue led by another one", leading.since > 1)
                self._dispatchers = {
                    subqueue: self._make(replica, subqueue) for subqueue in (MESSAGES, DEAD_LETTERS)
                }

    def _make(self, replica: Replica, subqueue: int) -> Dispatcher:
        policy = self._cluster.swarm.policy
        if subqueue == DEAD_LETTERS:
            policy = msgspec.structs.replace(policy, max_deliveries=0)

        def read(index: int) -> Entry:
            return replica.journal.read(index, index, 1)[0]

        return Dispatcher(replica.machine, read, self._epoch, policy, subqueue)

    def _dispatcher(self, replica: Replica, subqueue: int) -> Dispatcher | None:
        self.open(replica)
        return self._dispatchers.get(subqueue)

    def get(self, replica: Replica, errand: Errand) -> Deliveries | Failure:
        """A read of the newest state is served."""
        wanted = errand.wanted
        assert isinstance(wanted, Get)
        dispatcher = self._dispatcher(replica, errand.subqueue)
        if dispatcher is None:
            return Failure(Reason.NOT_LEADER)
        before = {claim.number for claim in dispatcher.claims}
        held_before = dispatcher.claims.holders.get(wanted.session, 0)
        deliveries = dispatcher.get(wanted, self._cluster.clock.now)
        self._cluster.truth.queue.delivered.update((wanted.session, each.token) for each in deliveries)
        held = dispatcher.claims.holders[wanted.session]
        is_new = any(each.token.number not in before for each in deliveries)
        if is_new:
            self._check_order(self._ready(replica, dispatcher, errand.subqueue), deliveries, wanted, held)
        probes = self._cluster.probes
        probes.count("lent again to who asked again", bool(deliveries) and not is_new)
        probes.count("lent in vain", held < held_before + len(deliveries) * is_new)
        for delivery in deliveries:
            probes.count("maybe redelivered", delivery.redelivered and delivery.delivery_count == 1)
            probes.count("redelivered", delivery.delivery_count > 1)
        return Deliveries(deliveries)

    def _ready(self, replica: Replica, dispatcher: Dispatcher, subqueue: int) -> list[int]:
        """Every message that may still be delivered, in order."""
        part = replica.machine.part(Queue).subqueues[subqueue]
        most = self._cluster.swarm.policy.max_deliveries if subqueue == MESSAGES else 0
        delivered = {claim.offset for claim in dispatcher.claims}
        ready = []
        for offset in range(part.start, part.end):
            deliveries = part.deliveries(offset)
            if deliveries is not None and offset not in delivered and not 0 < most <= deliveries:
                ready.append(offset)
        return ready

    def _check_order(
        self, ready: list[int], deliveries: tuple[Delivery, ...], wanted: Get, held: int
    ) -> None:
        """The first ones, and as many as were wanted and may be held."""
        offsets = [delivery.offset for delivery in deliveries]
        most = min(wanted.most, self._cluster.swarm.policy.most_held - held + len(offsets))
        if offsets != sorted(offsets + ready)[:most]:
            raise Violation(0, f"{wanted} was given {offsets}, and {ready} were left")

    def settle(
        self, replica: Replica, errand: Errand, tag: Tag
    ) -> "Ending | Result | SettlementRefusal | Failure":
        """A consumer wants messages settled: what to propose, or the answer."""
        wanted = errand.wanted
        dispatcher = self._dispatcher(replica, errand.subqueue)
        if dispatcher is None:
            return Failure(Reason.NOT_LEADER)
        if isinstance(wanted, Lock):
            return self._lock(replica, dispatcher, errand.subqueue, wanted, tag)
        assert isinstance(wanted, Settlement)
        answer = dispatcher.settle(wanted, self._cluster.clock.now)
        return Ending(dispatcher, answer, tag) if isinstance(answer, Proposal) else answer

    def _lock(
        self, replica: Replica, dispatcher: Dispatcher, subqueue: int, wanted: Lock, tag: Tag
    ) -> "Ending | Result | Failure":
        """They are accepted in a transaction; what is staged already needs no entry."""
        label = Label.read(wanted.label)
        assert label is not None
        verdict = replica.machine.part(Branches).judge(label)
        if verdict is not None:
            return verdict
        answer = lock(dispatcher.claims, subqueue, wanted.session, wanted.tokens)
        if isinstance(answer, Proposal):
            return Ending(dispatcher, answer, tag, wanted.label)
        if answer.why is RefusalReason.OTHER_LEADER:
            return Failure(Reason.NOT_LEADER)
        return Rejected(Refusal.NOT_HELD)

    def tick(self, replica: Replica) -> list[Ending]:
        """What time has ended."""
        endings = []
        for subqueue in (MESSAGES, DEAD_LETTERS):
            dispatcher = self._dispatcher(replica, subqueue)
            if dispatcher is None:
                continue
            before = dispatcher.claims.holders
            proposal = dispatcher.tick(self._cluster.clock.now)
            if proposal is not None:
                self._count(dispatcher, before, proposal)
                endings.append(Ending(dispatcher, proposal, None))
        return endings

    def _count(self, dispatcher: Dispatcher, before: dict[str, int], proposal: Proposal) -> None:
        """By what time has ended deliveries; `before` is what each session held."""
        probes, after = self._cluster.probes, dispatcher.claims.holders
        probes.count("session lost with messages", any(before[name] for name in before.keys() - after.keys()))
        probes.count("lease over", any(held < before[name] for name, held in after.items()))
        probes.count(
            "dead letter of who never answered", any(map(dispatcher.claims.is_last, proposal.claims))
        )
