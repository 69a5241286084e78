"""One shard with transactions, and a short way to say what is to be applied."""

from collections.abc import Sequence
from typing import Any

from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit, Payload, QueueSettle, Run, encode_command
from hawser.log.state.part import Part
from hawser.log.state.queue import MESSAGES, Queue
from hawser.log.state.results import Answered, Outcome, Result
from hawser.transaction import commands as t
from hawser.transaction.commands import to_fields
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.ledger import Ledger
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, Label, TransactionId, Xid
from hawser.transaction.participant.branches import Branches, transactional_parts
from hawser.transaction.xa.table import Call, Code

from .log_shard import Shard, batch

HOME = "__tx/0"


def parts() -> Sequence[Part]:
    return transactional_parts(3)


def lane(incarnation: int = 1, name: bytes = b"lane") -> TransactionId:
    return TransactionId(Xid(LANE_FORMAT, name, b""), incarnation)


def branch(name: bytes) -> TransactionId:
    """Of the application whose batches `Site.decide_batch` decides."""
    return TransactionId(Xid(APPLICATION_FORMAT, b"app", name), 1)


class Site(Shard):
    """A shard that takes part, and decides. Operations are numbered unless a number is given."""

    def __init__(self) -> None:
        super().__init__(parts)
        self.numbers: dict[tuple[TransactionId, int], int] = {}

    @property
    def branches(self) -> Branches:
        return self.machine.part(Branches)

    @property
    def queue(self) -> Queue:
        return self.machine.part(Queue)

    @property
    def decisions(self) -> Decisions:
        return self.machine.part(Decisions)

    @property
    def ledger(self) -> Ledger:
        return self.decisions.ledger

    # A branch.

    def operation(
        self,
        transaction: TransactionId,
        kind: int,
        payload: bytes,
        number: int = 0,
        worker: int = 0,
        **fields: Any,
    ) -> Result:
        if not number:
            number = self.numbers.get((transaction, worker), 0) + 1
            self.numbers[transaction, worker] = number
        return self.put(kind, payload, transaction=Label(transaction, number, worker, **fields).encode())

    def stage(self, transaction: TransactionId, count: int = 1, **fields: Any) -> Result:
        """Publish into the topic."""
        return self.operation(transaction, Kind.BATCH, batch(count), **fields)

    def stage_put(self, transaction: TransactionId, count: int = 1, **fields: Any) -> Result:
        return self.operation(transaction, Kind.QUEUE_PUT, batch(count), **fields)

    def stage_accept(self, transaction: TransactionId, *runs: Run, **fields: Any) -> Result:
        payload = encode_command(QueueSettle(MESSAGES, runs))
        return self.operation(transaction, Kind.QUEUE_SETTLE, payload, **fields)

    def stage_move(self, transaction: TransactionId, command: GroupCommit, **fields: Any) -> Result:
        return self.operation(transaction, Kind.GROUP_COMMIT, encode_command(command), **fields)

    def end(self, transaction: TransactionId, kind: int, command: Payload) -> Result:
        return self.put(kind, encode_command(command), transaction=Label(transaction).encode())

    def prepare(self, transaction: TransactionId, *counts: int, coordinator: str = HOME) -> Result:
        """With these counts of the workers from 0 on."""
        command = t.BranchPrepare(tuple(enumerate(counts)), coordinator)
        return self.end(transaction, Kind.BRANCH_PREPARE, command)

    def commit(self, transaction: TransactionId, *counts: int, others: t.Shards = ()) -> Result:
        """With counts this shard decides."""
        command = t.BranchCommit(tuple(enumerate(counts)) if counts else None, others)
        return self.end(transaction, Kind.BRANCH_COMMIT, command)

    def abort(
        self,
        transaction: TransactionId,
        outcome: Outcome = Outcome.ROLLED_BACK,
        decided: bool = False,
        others: t.Shards = (),
    ) -> Result:
        return self.end(transaction, Kind.BRANCH_ABORT, t.BranchAbort(outcome, decided, others))

    def decision(self, transaction: TransactionId) -> Outcome | None:
        """What a shard that has prepared its branch is told."""
        return self.branches.decision(transaction, self.ledger)

    # Home.

    def close(
        self,
        transaction: TransactionId,
        *shards: str,
        query: bytes = b"q",
        batch: int = 0,
        orphan_seconds: int = 0,
    ) -> Result:
        """A branch of an application."""
        participants = tuple((shard, ((0, 1),)) for shard in shards)
        command = t.CoordinatorClose(to_fields(transaction), participants, query, batch, orphan_seconds)
        return self.put(Kind.HOME_CLOSE, encode_command(command))

    def commit_in_one_phase(self, xid: Xid, *shards: str) -> TransactionId:
        """A session works on these shards, and has that committed once they are prepared."""
        started = self.call(xid, Call.START)
        assert isinstance(started, Answered) and started.code == Code.OK
        self.call(xid, Call.END, participants=tuple((shard, 1) for shard in shards))
        pending = Answered(Code.PENDING, started.incarnation)
        assert self.call(xid, Call.COMMIT_ONE_PHASE) == pending
        return TransactionId(xid, started.incarnation)

    def vote(self, transaction: TransactionId, *shards: str) -> Result:
        return self.put(Kind.HOME_VOTES, encode_command(t.CoordinatorVotes(to_fields(transaction), shards)))

    def decide(self, transaction: TransactionId, outcome: Outcome, **fields: Any) -> Result:
        command = t.CoordinatorDecide(to_fields(transaction), outcome, **fields)
        return self.put(Kind.HOME_DECIDE, encode_command(command))

    def tell(self, transaction: TransactionId, *shards: str) -> Result:
        return self.put(
            Kind.HOME_TOLD, encode_command(t.CoordinatorTold(((to_fields(transaction), shards),)))
        )

    def call(
        self, xid: Xid, call: Call, session: str = "s", incarnation: int | None = None, **fields: Any
    ) -> Result:
        """About the latest use, unless another is named; of a start, by one who has heard of all."""
        if incarnation is None:
            register = self.ledger.register
            incarnation = max(register.latest(xid), register.forgotten if call is Call.START else 0)
        command = t.CoordinatorCall((*xid, incarnation), call, session, **fields)
        return self.put(Kind.HOME_CALL, encode_command(command))

    def forget(self, transaction: TransactionId) -> Result:
        """What became of it, at home."""
        return self.put(Kind.HOME_FORGET, encode_command(t.CoordinatorForget((to_fields(transaction),))))

    def lose(self, session: str) -> Result:
        return self.put(Kind.HOME_SESSION_LOST, encode_command(t.CoordinatorSessionLost(session)))

    def decide_batch(self, number: int, *branches: bytes, query: bytes = b"q", source: bytes = b"") -> Result:
        command = t.CoordinatorBatch(b"app", query, number, branches, source)
        return self.put(Kind.HOME_BATCH, encode_command(command))

    def restart_equal(self) -> None:
        """Saved, loaded, and the same."""
        before = self.machine.hash, self.machine.digest(), self.machine.needed
        self.save()
        self.restart()
        assert (self.machine.hash, self.machine.digest(), self.machine.needed) == before
