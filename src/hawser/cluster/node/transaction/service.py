"""The transaction service of a shard: all that its leader does about transactions during its term.

    follower --leads, and has applied all earlier entries--> serving
    serving --the term ends, or the shard halts or closes--> closed

The service runs the branches on the shard (`participant.py`) and the transactions that the shard decides
(`coordinator.py`). Both change state only through entries of the log, so a closed service loses nothing: the
next leader's service reads the same state from the log and asks the other shards again. Requests in flight
when it closes are answered with DEPOSED, whose outcome is unknown.

A request is proposed as a whole, in order, and answered when every entry of it has a result. An entry that
would change nothing is answered without being written. Two kinds of entries wait:

- a prepare waits for operations that it counts and that the client is still sending, for at most a second;
- a decision waits until the other shards that can be reached have carried it out.
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
    """The service of one shard in the term that began in `epoch`."""

    def __init__(self, host: Host, epoch: int, services: NodeServices) -> None:
        self.epoch = epoch
        self._host = host
        self._decisions = host.replica.machine.part(Decisions)
        self._branches = host.replica.machine.part(Branches)
        self.coordinator = CoordinatorDriver(host, self._decisions, services)
        self.participant = Participant(host, self._branches, services, self.coordinator)

    def transact(self, entries: Sequence[Admitted], delivery: QueueDelivery | None, answer: Answer) -> None:
        """Calls `answer` once, now or later. `delivery` is that of the queue on the shard, if there is
        one."""
        collector = AnswerCollector(len(entries), answer)
        proposals: list[_Proposal] = []
        for place, each in enumerate(entries):
            slot = Slot(collector, place)
            found = self._begin(each, slot, delivery)
            if isinstance(found, wire.Failed):
                slot.tell(found)
                # Clients rely on this: a refused request has written nothing, so its commit was not made.
                # Messages that the request would have locked stay held.
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
        """The payload to propose; None if the slot gets its result without a proposal, or later."""
        if is_of_coordinator(each.kind):
            return self.coordinator.begin(each, slot)
        return self.participant.begin(each, slot, delivery)

    def applied(self) -> None:
        """Called after entries were applied."""
        self.participant.applied()
        self.coordinator.applied()

    def tick(self) -> None:
        """Called periodically."""
        self.participant.tick()
        self.coordinator.tick()

    def look(self, request: wire.TransactionLook) -> wire.TransactionsSeen:
        """The state of transactions here, for a caller that has read the newest state. Presumed-abort
        outcomes carry incarnation 0."""
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
        """The term is over: pending requests are answered with DEPOSED."""
        self.participant.close()
        self.coordinator.close()
