"""The desks of a simulated process, one a shelf, as long as it leads: what consumers ask goes through them.

They are made and dropped as `hawser.log.queue.dispatcher` asks for. Whatever is lent is compared with what a
look at every message gives.
"""

from typing import TYPE_CHECKING

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.protocol.events import Command, Reason
from hawser.log.queue.dispatcher import Delivery, Desk, Get, Proposal, Settlement, Turned, Why
from hawser.log.replica import Replica
from hawser.log.state.queue import LETTERS, MESSAGES, Queue
from hawser.log.state.results import Reason as Refusal
from hawser.log.state.results import Rejected, Result
from hawser.testing.checks import Violation
from hawser.testing.clients import Deliveries, Errand, Failure, Lock, Tag
from hawser.transaction.identity import Label
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.locks import lock

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["Desks", "Ending"]


class Ending:
    """The tag of an entry that settles messages: who asked for it, if anybody, and what is to be told which
    desk. No two are the same."""

    def __init__(self, desk: Desk, proposal: Proposal, tag: Tag | None, label: bytes = b"") -> None:
        self.tag = tag
        self._label = label
        self.proposal = proposal
        self._desk = desk

    def __repr__(self) -> str:
        return f"Ending({self.tag})"

    def resolve(self) -> None:
        self._desk.resolve(self.proposal)

    def command(self) -> Command:
        return Command(Kind.QUEUE_SETTLE, self.proposal.payload, self, transaction=self._label)


class Desks:
    """Those of one process."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._desks: dict[int, Desk] = {}
        # In which this process began to lead, if it has desks.
        self._epoch = 0

    def forget(self) -> None:
        """The process ended, or leads no more."""
        self._desks = {}
        self._epoch = 0

    def open(self, replica: Replica) -> None:
        """Have desks if this process leads and has applied all that came before it did, otherwise none."""
        leading = replica.node.leadership
        if leading is None or replica.halted:
            self.forget()
        elif self._epoch != leading.since:
            self.forget()
            if leading.ready:
                self._epoch = leading.since
                self._cluster.marks.count("queue led by another one", leading.since > 1)
                self._desks = {shelf: self._make(replica, shelf) for shelf in (MESSAGES, LETTERS)}

    def _make(self, replica: Replica, shelf: int) -> Desk:
        lending = self._cluster.swarm.lending
        if shelf == LETTERS:
            lending = msgspec.structs.replace(lending, max_deliveries=0)

        def read(index: int) -> Entry:
            return replica.journal.read(index, index, 1)[0]

        return Desk(replica.machine, read, self._epoch, lending, shelf)

    def _desk(self, replica: Replica, shelf: int) -> Desk | None:
        self.open(replica)
        return self._desks.get(shelf)

    def get(self, replica: Replica, errand: Errand) -> Deliveries | Failure:
        """A read of the newest state is served."""
        wanted = errand.wanted
        assert isinstance(wanted, Get)
        desk = self._desk(replica, errand.shelf)
        if desk is None:
            return Failure(Reason.NOT_LEADER)
        before = {claim.number for claim in desk.claims}
        held_before = desk.claims.holders.get(wanted.session, 0)
        deliveries = desk.get(wanted, self._cluster.clock.now)
        self._cluster.truth.queue.lent.update((wanted.session, each.token) for each in deliveries)
        held = desk.claims.holders[wanted.session]
        is_new = any(each.token.number not in before for each in deliveries)
        if is_new:
            self._check_order(self._ready(replica, desk, errand.shelf), deliveries, wanted, held)
        marks = self._cluster.marks
        marks.count("lent again to who asked again", bool(deliveries) and not is_new)
        marks.count("lent in vain", held < held_before + len(deliveries) * is_new)
        for delivery in deliveries:
            marks.count("maybe redelivered", delivery.redelivered and delivery.delivery_count == 1)
            marks.count("redelivered", delivery.delivery_count > 1)
        return Deliveries(deliveries)

    def _ready(self, replica: Replica, desk: Desk, shelf: int) -> list[int]:
        """Every message that may still be lent, in order."""
        part = replica.machine.part(Queue).shelves[shelf]
        most = self._cluster.swarm.lending.max_deliveries if shelf == MESSAGES else 0
        lent = {claim.offset for claim in desk.claims}
        ready = []
        for offset in range(part.start, part.end):
            deliveries = part.deliveries(offset)
            if deliveries is not None and offset not in lent and not 0 < most <= deliveries:
                ready.append(offset)
        return ready

    def _check_order(
        self, ready: list[int], deliveries: tuple[Delivery, ...], wanted: Get, held: int
    ) -> None:
        """The first ones, and as many as were wanted and may be held."""
        offsets = [delivery.offset for delivery in deliveries]
        most = min(wanted.most, self._cluster.swarm.lending.most_held - held + len(offsets))
        if offsets != sorted(offsets + ready)[:most]:
            raise Violation(0, f"{wanted} was given {offsets}, and {ready} were left")

    def settle(self, replica: Replica, errand: Errand, tag: Tag) -> "Ending | Result | Turned | Failure":
        """A consumer wants messages settled: what to propose, or the answer."""
        wanted = errand.wanted
        desk = self._desk(replica, errand.shelf)
        if desk is None:
            return Failure(Reason.NOT_LEADER)
        if isinstance(wanted, Lock):
            return self._lock(replica, desk, errand.shelf, wanted, tag)
        assert isinstance(wanted, Settlement)
        answer = desk.settle(wanted, self._cluster.clock.now)
        return Ending(desk, answer, tag) if isinstance(answer, Proposal) else answer

    def _lock(
        self, replica: Replica, desk: Desk, shelf: int, wanted: Lock, tag: Tag
    ) -> "Ending | Result | Failure":
        """They are accepted in a transaction; what is staged already needs no entry."""
        label = Label.read(wanted.label)
        assert label is not None
        verdict = replica.machine.part(Branches).judge(label)
        if verdict is not None:
            return verdict
        answer = lock(desk.claims, shelf, wanted.session, wanted.tokens)
        if isinstance(answer, Proposal):
            return Ending(desk, answer, tag, wanted.label)
        if answer.why is Why.OTHER_LEADER:
            return Failure(Reason.NOT_LEADER)
        return Rejected(Refusal.NOT_HELD)

    def tick(self, replica: Replica) -> list[Ending]:
        """What time has ended."""
        endings = []
        for shelf in (MESSAGES, LETTERS):
            desk = self._desk(replica, shelf)
            if desk is None:
                continue
            before = desk.claims.holders
            proposal = desk.tick(self._cluster.clock.now)
            if proposal is not None:
                self._count(desk, before, proposal)
                endings.append(Ending(desk, proposal, None))
        return endings

    def _count(self, desk: Desk, before: dict[str, int], proposal: Proposal) -> None:
        """By what time has ended deliveries; `before` is what each session held."""
        marks, after = self._cluster.marks, desk.claims.holders
        marks.count("session lost with messages", any(before[name] for name in before.keys() - after.keys()))
        marks.count("lease over", any(held < before[name] for name, held in after.items()))
        marks.count("dead letter of who never answered", any(map(desk.claims.is_last, proposal.claims)))
