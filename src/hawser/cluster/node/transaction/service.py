"""The office of a shard: what its leader does about transactions, as long as it leads.

Opened once this member leads and has applied all that came before, and closed with that. It drives the keeper
of the branches (`participant.py`), and the coordinator of what is decided here (`coordinator.py`). What they
want is carried out at once, and they hear of it when it is done. Everything they know is in the log, or can
be asked again; so nothing is lost with an office.

A request is proposed as a whole, in order, and answered when every entry of it has a result. What is known to
change nothing is answered without being written. Two kinds of entries have to wait:

- a question for a vote, while operations that it counts are still on their way from the client: not for long;
- what this shard decides for others, too, until those that can be reached have done it.
"""

from collections.abc import Sequence

from hawser.cluster import wire
from hawser.cluster.node.queue.delivery import QueueDelivery
from hawser.cluster.node.transaction.admission import Admitted, is_of_coordinator
from hawser.cluster.node.transaction.context import Answer, AnswerCollector, Host, NodeServices, Slot
from hawser.cluster.node.transaction.coordinator import CoordinatorDriver
from hawser.cluster.node.transaction.participant import Participant
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import APPLICATION_FORMAT, TransactionId, Xid
from hawser.transaction.participant.branches import Branches

__all__ = ["TransactionService"]

_Proposal = tuple[int, bytes, Slot, bytes]


class TransactionService:
    """Of one shard and one time of leading it, which began in `epoch`."""

    def __init__(self, host: Host, epoch: int, services: NodeServices) -> None:
        self.epoch = epoch
        self._host = host
        self._decisions = host.replica.machine.part(Decisions)
        self._branches = host.replica.machine.part(Branches)
        self.coordinator = CoordinatorDriver(host, self._decisions, services)
        self.participant = Participant(host, self._branches, services, self.coordinator)

    def transact(self, entries: Sequence[Admitted], delivery: QueueDelivery | None, answer: Answer) -> None:
        """`answer` is called once, now or later. `delivery` is that of the queue here, if there is one."""
        collector = AnswerCollector(len(entries), answer)
        proposals: list[_Proposal] = []
        for place, each in enumerate(entries):
            slot = Slot(collector, place)
            found = self._begin(each, slot, delivery)
            if isinstance(found, wire.Failed):
                slot.tell(found)
                # Nothing of it was proposed, on which clients rely: a commit that is refused was not made.
                # Messages that were to be locked are held as before.
                for _, _, other, _ in proposals:
                    other.set_result(found)
                return
            if found is not None:
                proposals.append((each.kind, found, slot, each.encoded_label))
        for kind, payload, slot, label in proposals:
            self._host.propose(kind, payload, slot, label)

    def _begin(
        self, each: Admitted, slot: Slot, delivery: QueueDelivery | None
    ) -> bytes | wire.Failed | None:
        """The payload to be proposed; None if the slot gets its result without, or later."""
        if is_of_coordinator(each.kind):
            return self.coordinator.begin(each, slot)
        return self.participant.begin(each, slot, delivery)

    def applied(self) -> None:
        """Entries were applied."""
        self.participant.applied()
        self.coordinator.applied()

    def tick(self) -> None:
        """Time has passed."""
        self.participant.tick()
        self.coordinator.tick()

    def look(self, request: wire.TransactionLook) -> wire.TransactionsSeen:
        """After a read of the newest state. What is only presumed has no incarnation."""
        branches, records = self._branches.register, self._decisions.ledger.register
        if request.xid is None:
            return wire.TransactionsSeen(self.participant.seen(branches), self.coordinator.seen(records))
        xid = Xid(*request.xid)
        if xid.format == APPLICATION_FORMAT and not xid.branch_id:
            _, undecided = self._decisions.applications.get(xid.global_id, (b"", 0))
            source = self._decisions.sources.get(xid.global_id, b"")
            return wire.TransactionsSeen((), (), None, undecided, source)
        latest = max(branches.latest(xid), records.latest(xid))
        transaction = TransactionId(xid, request.incarnation or latest)
        branch, record = branches.get(transaction), records.get(transaction)
        remembered = branches.outcome(transaction) or records.outcome(transaction)
        is_known = any(each is not None for each in (branch, record, remembered))
        return wire.TransactionsSeen(
            self.participant.seen([(transaction, branch)] if branch is not None else []),
            self.coordinator.seen([(transaction, record)] if record is not None else []),
            self._branches.decision(transaction, self._decisions.ledger) or remembered,
            transaction.incarnation if is_known else 0,
        )

    def close(self) -> None:
        """This node leads no more; whoever waits is told so."""
        self.participant.close()
        self.coordinator.close()
