"""Transactions entry by entry, as clients send them: for tests that want to lose, repeat or delay some."""

from typing import Any

from hawser.cluster import wire
from hawser.cluster.shard_map import node_of, topic_of
from hawser.log.entry import Kind
from hawser.log.state.results import AnyResult, Outcome, decode_result
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchPrepare
from hawser.transaction.identity import Label, TransactionId, Xid, owner_of
from tests.support.processes import until
from tests.support.transactions import batch_of, entry

__all__ = ["RawTransactions"]

ASK_SECONDS = 60.0


class RawTransactions:
    """Requests about transactions through the links of a bus: what is sent is exactly what is said."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._router = bus._client.router
        self.owner = owner_of(self._router.run)

    def label(self, transaction: TransactionId, number: int = 0, timeout_seconds: int = 60) -> Label:
        return Label(transaction, number, 0, self.owner, timeout_seconds)

    def publish(self, transaction: TransactionId, number: int, *values: bytes) -> wire.Labelled:
        """An operation: these into a topic."""
        return entry(Kind.BATCH, batch_of(*values), self.label(transaction, number))

    def prepare(self, transaction: TransactionId, count: int, coordinator: str) -> wire.Labelled:
        """For this home, which decides."""
        return entry(Kind.BRANCH_PREPARE, BranchPrepare(((0, count),), coordinator), self.label(transaction))

    def commit(self, transaction: TransactionId, count: int, *others: str) -> wire.Labelled:
        """On the shard that decides, for itself and for the others."""
        return entry(Kind.BRANCH_COMMIT, BranchCommit(((0, count),), others), self.label(transaction))

    def abort(self, transaction: TransactionId, outcome: Outcome, *others: str) -> wire.Labelled:
        """On the shard that decides, for itself and for the others."""
        return entry(Kind.BRANCH_ABORT, BranchAbort(outcome, others=others), self.label(transaction))

    def shard(self, name: str, partition: int = 0) -> str:
        """Of a topic, a queue or the homes."""
        self._bus._thread.call(self._router.refresh(None))
        return wire.shards_of(name, self._router.map.topics[name])[partition]

    def coordinator(self, xid: Xid) -> str:
        """The shard that decides what is not on a lane; homes are made with the first question."""
        deadline = self._router.loop.time() + ASK_SECONDS
        shard: str = self._bus._thread.call(self._bus._client.coordinators.of(xid, deadline))
        return shard

    def leader(self, shard: str) -> str:
        """The node that leads it, once one does."""

        def leads() -> bool:
            self._bus._thread.call(self._router.refresh(None))
            return self._router.map.shards[shard].leader is not None

        until(leads, f"a leader of {shard}")
        return node_of(self._router.map.shards[shard].leader)

    def ask(self, shard: str, request: Any) -> Any:
        """Of whoever leads the shard, again and again until it answers."""
        return self._bus._thread.call(
            self._router.ask_leader(
                topic_of(shard), shard, request, "a test", self._router.loop.time() + ASK_SECONDS
            )
        )

    def transact(self, shard: str, *entries: wire.Labelled) -> list[AnyResult]:
        """What became of each."""
        answer = self.ask(shard, wire.Transact(shard, entries))
        assert isinstance(answer, wire.Transacted), answer
        return [decode_result(each) for each in answer.results]

    def send(self, shard: str, *entries: wire.Labelled) -> None:
        """To whoever leads it now; nobody waits for the answer."""
        body = wire.encode(wire.Transact(shard, entries))

        async def send() -> None:
            link = self._router.leader_link(shard)
            assert link is not None
            self._sent = self._router.loop.create_task(link.ask(body, ASK_SECONDS))
            self._sent.add_done_callback(lambda sent: sent.exception())

        self._bus._thread.call(send())

    def look(self, shard: str) -> wire.TransactionsSeen:
        """What is not over there."""
        seen = self.ask(shard, wire.TransactionLook(shard))
        assert isinstance(seen, wire.TransactionsSeen), seen
        return seen

    def outcome(self, shard: str, transaction: TransactionId) -> Outcome | None:
        """What became of it, as this shard knows."""
        look = wire.TransactionLook(shard, (*transaction.xid,), transaction.incarnation)
        seen = self.ask(shard, look)
        assert isinstance(seen, wire.TransactionsSeen), seen
        return None if seen.outcome is None else Outcome(seen.outcome)

    def unfinished(self) -> list[str]:
        """Every branch and every record of every shard that is not over."""
        self._bus._thread.call(self._router.refresh(None))
        found = []
        for shard in list(self._router.map.shards):
            seen = self.look(shard)
            found += [f"{each} on {shard}" for each in (*seen.branches, *seen.records)]
        return found
