"""One transaction as its client runs it: what to send where, what to send again, and what came of it.

Pure: requests come out, results go in. Operations on one shard are numbered and may be sent one behind the
other without waiting; what is not acknowledged is sent again when the shard has another leader, and costs
nothing if it was there. One shard commits alone. With several, one of them decides: its home. Each of the
others is asked to prepare, behind its operations; when all have, home gets its own operations, if they were
not sent yet, and is asked to commit. If one has not, home is told to roll it back. Either way home tells the
others. What prepares or commits is said with the last operation, or in an entry of its own if that was sent
before. A shard that gets no more than one small message for its topic, which was not sent yet, is not asked:
no topic refuses one. The message goes with the commit, and home delivers it.

    open --commit--> committing --votes, then home's result--> over
    open --rollback, or an operation is refused--> rolling back --result--> over
    open --prepare--> preparing --result--> prepared, or over

Whoever has no answer to a commit and waits no longer asks for a rollback of what is not prepared (`resolve`).
That decides: what comes back is how it ended, and if it was not committed by then it never will be. Only if
nobody answers that either is the outcome unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final

import msgspec

from hawser.errors import HawserError, InDoubt, OutcomeUnknown, TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Finished, Outcome, Prepared, Reason, Rejected, Result, Staged
from hawser.record.batch import Header
from hawser.transaction.commands import (
    MOST_DELIVERED_BYTES,
    BranchAbort,
    BranchCommit,
    BranchPrepare,
    CoordinatorClose,
    Deliveries,
    Participants,
    to_fields,
)
from hawser.transaction.identity import DEFAULT_TIMEOUT_SECONDS, MOST_NAMED, Label, TransactionId, as_last

__all__ = ["Progress", "Request", "Transaction"]

_OPERATIONS: Final = (Kind.BATCH, Kind.QUEUE_PUT, Kind.QUEUE_SETTLE, Kind.GROUP_COMMIT)


class Progress(IntEnum):
    """How far a transaction is, for its client."""

    OPEN = 1
    ROLLING_BACK = 2
    COMMITTING = 3
    RESOLVING = 4
    PREPARING = 5
    PREPARED = 6
    OVER = 7


class Request(msgspec.Struct, frozen=True):
    """Propose this entry on that shard; number 0 is no operation. Nothing is committed without one that
    `commits`."""

    shard: str
    kind: int
    payload: bytes
    label: bytes = b""
    number: int = 0
    commits: bool = False


class _Shard:
    """`unacknowledged` operations by their numbers, in order; `count` were numbered; `early` are those that
    came before the one in front of them."""

    __slots__ = ("count", "early", "unacknowledged")

    def __init__(self) -> None:
        self.count = 0
        self.early: set[int] = set()
        self.unacknowledged: dict[int, Request] = {}


class Transaction:
    """A transaction on a lane. Or a branch of an application's batch, which is prepared. Or, with a worker,
    the work of one session in a branch of the XA interface, which is ended and completed by calls."""

    def __init__(
        self,
        transaction: TransactionId,
        owner: int = 0,
        timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
        worker: int = 0,
    ) -> None:
        self.id = transaction
        # The shard that decides: of a lane, one that it touches, from the commit over several on.
        self.coordinator = ""
        self.progress = Progress.OPEN
        self.outcome: Outcome | None = None
        # Why an operation was refused, and where; the transaction can only be rolled back since.
        self.refused: Rejected | None = None
        self._refusing = ""
        self._owner = owner
        self.timeout_seconds = timeout_seconds
        self.worker = worker
        self._shards: dict[str, _Shard] = {}
        # What ends it, in entries of its own: sent until it is answered.
        self._ending: list[Request] = []
        # Shards that are asked to prepare and have not answered.
        self._voting: set[str] = set()
        # What home is to deliver, to shards that have no branch.
        self._deliveries: Deliveries = {}
        # Whether the last operation at home was not sent before the commit; whether home was asked to commit.
        self._is_last_unsent = self._is_decided = False

    @property
    def shards(self) -> list[str]:
        """Those that it touches."""
        return list(self._shards)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """What it has staged where, as the end of the work in a branch names it."""
        return tuple((name, each.count) for name, each in sorted(self._shards.items()))

    @property
    def is_staged(self) -> bool:
        """Whether every operation is acknowledged, and none was refused."""
        return self.refused is None and not any(each.unacknowledged for each in self._shards.values())

    def operation(self, shard: str, kind: int, payload: bytes) -> Request:
        """Stage this: a BATCH or QUEUE_PUT without a stamp, a QUEUE_SETTLE that accepts, a GROUP_COMMIT."""
        assert kind in _OPERATIONS and self.progress is Progress.OPEN
        touched = self._shards.get(shard)
        if touched is None:
            touched = self._shards[shard] = _Shard()
        touched.count += 1
        number = touched.count
        label = Label(self.id, number, self.worker, self._owner, self.timeout_seconds).encode()
        request = touched.unacknowledged[number] = Request(shard, kind, payload, label, number)
        return request

    def commit(
        self, unsent: Sequence[Request] = (), leader: Callable[[str], object | None] = lambda shard: shard
    ) -> list[Request]:
        """Commit; what was refused is rolled back instead. Without operations it is over at once. With the
        last operations, if they were not sent yet: what is to be sent in their place, which for `coordinator`
        is nothing as long as others are asked to prepare. `leader` says who leads a shard now, None if nobody
        does."""
        assert self.progress is Progress.OPEN
        if self.refused is not None:
            return self.rollback()
        if not self._shards:
            self._finish(Outcome.COMMITTED)
            return []
        self.progress = Progress.COMMITTING
        if len(self._shards) == 1:
            if unsent:
                return [*unsent[:-1], self._last(unsent[-1])]
            ((shard, touched),) = self._shards.items()
            self._ending = [self._end(shard, Kind.BRANCH_COMMIT, BranchCommit(((0, touched.count),)))]
            return list(self._ending)
        deliverable = self._deliverable(unsent, leader)
        self.coordinator = self._choose_coordinator(self._shards.keys() - deliverable.keys(), unsent, leader)
        deliverable.pop(self.coordinator, None)
        self._deliveries = deliverable
        for shard in deliverable:
            del self._shards[shard]
        # The last that were not sent, by shard.
        last = {request.shard: request for request in unsent}
        self._is_last_unsent = self.coordinator in last
        self._voting = self._shards.keys() - {self.coordinator}
        if not self._voting:
            return self._decide()
        self._ending = [
            self._end(shard, Kind.BRANCH_PREPARE, BranchPrepare(((0, touched.count),), self.coordinator))
            for shard, touched in self._shards.items()
            if shard in self._voting and shard not in last
        ]
        sent = [
            self._last(each, self.coordinator) if each is last[each.shard] else each
            for each in unsent
            if each.shard in self._voting
        ]
        return [*sent, *self._ending]

    def _deliverable(self, unsent: Sequence[Request], leader: Callable[[str], object | None]) -> Deliveries:
        """Messages of shards that get nothing else, as far as they are small and somebody is there to take
        them."""
        only = [
            each
            for each in unsent
            if each.kind == Kind.BATCH
            and self._shards[each.shard].count == 1
            and Header.read(each.payload).records == 1
        ]
        found: Deliveries = {}
        left = MOST_DELIVERED_BYTES
        for each in sorted(only, key=lambda each: len(each.payload)):
            left -= len(each.payload)
            if left >= 0 and leader(each.shard) is not None:
                found[each.shard] = each.payload
        return found

    def _choose_coordinator(
        self, asked: AbstractSet[str], unsent: Sequence[Request], leader: Callable[[str], object | None]
    ) -> str:
        """Of those that have to be asked, or else of all, one that somebody leads: the others wait for it. Of
        these the one that least was sent to, at best nothing: the rest goes with the decision. Of these one
        whose leader has most of the others, too, and tells them without a message."""
        sent = {shard: touched.count for shard, touched in self._shards.items()}
        for request in unsent:
            sent[request.shard] -= 1
        leaders = {shard: leader(shard) for shard in self._shards}
        eligible = [shard for shard in self._shards if shard in asked] or list(self._shards)
        led = [shard for shard in eligible if leaders[shard] is not None] or eligible
        all_leaders = list(leaders.values())
        return min(led, key=lambda shard: (sent[shard], -all_leaders.count(leaders[shard])))

    def _last(self, unsent: Request, coordinator: str = "", others: tuple[str, ...] = ()) -> Request:
        """The same operation, which prepares for this home, or commits, for the others too."""
        touched = self._shards[unsent.shard]
        assert unsent.number == touched.count
        label = as_last(unsent.label, coordinator, others)
        last = Request(unsent.shard, unsent.kind, unsent.payload, label, unsent.number, not coordinator)
        touched.unacknowledged[last.number] = last
        return last

    def prepare(self, coordinator: str, query: bytes, batch: int, orphan_seconds: int) -> list[Request]:
        """Have it prepared as a branch of its application's batch: one decision at home will commit it with
        others, or drop it; so will an entry, if there is none for as long as is said."""
        assert self.progress is Progress.OPEN and self._shards
        if self.refused is not None:
            return self.rollback()
        self.progress = Progress.PREPARING
        self.coordinator = coordinator
        close = CoordinatorClose(to_fields(self.id), self._participants(), query, batch, orphan_seconds)
        self._ending = [Request(coordinator, Kind.HOME_CLOSE, encode_command(close))]
        return self._ending

    def _participants(self) -> Participants:
        return tuple((name, ((self.worker, count),)) for name, count in self.counts)

    def rollback(self) -> list[Request]:
        """Roll back what was staged; there is no need to wait for the answers."""
        assert self.progress is Progress.OPEN
        self.progress = Progress.ROLLING_BACK
        self._ending = self._aborts()
        if not self._ending:
            self._finish(Outcome.ROLLED_BACK)
        return list(self._ending)

    def resolve(self) -> list[Request]:
        """It is not known what became of the commit: find out, and have it rolled back if it was not done."""
        assert self.outcome is None and self.progress not in (Progress.OPEN, Progress.PREPARED)
        self.progress = Progress.RESOLVING
        self._ending = [self._abort_all(Outcome.ROLLED_BACK)] if self.coordinator else self._aborts()
        return list(self._ending)

    def left(self) -> list[Request]:
        """Nobody waits for it any longer: what is to be sent until it is answered, so that nothing is left of
        it if it was not committed. Nothing of this commits it."""
        if not self._ending or self.progress not in (Progress.ROLLING_BACK, Progress.RESOLVING):
            return []
        return [each for each in self._ending if not each.commits]

    def again(self, shard: str) -> list[Request]:
        """This shard has another leader, or its answers were lost: all that it has not acknowledged."""
        return [*self._unacknowledged(shard), *(each for each in self._ending if each.shard == shard)]

    def _unacknowledged(self, shard: str) -> Iterator[Request]:
        staging = self.progress in (Progress.OPEN, Progress.COMMITTING, Progress.PREPARING)
        is_early = shard == self.coordinator and not self._is_decided
        if staging and shard in self._shards and not is_early:
            yield from self._shards[shard].unacknowledged.values()

    def hear(self, request: Request, result: Result) -> list[Request]:
        """What became of a request, and what to send because of that. Answers may come in any order, and
        again."""
        if self.progress is Progress.OVER:
            return []
        if request.number:
            return self._hear_operation(request, result)
        if request.kind == Kind.BRANCH_PREPARE:
            return self._hear_vote(request.shard, result)
        if isinstance(result, Finished):
            return self._hear_end(request, result.outcome)
        if isinstance(result, Prepared) and self.progress is Progress.PREPARING:
            self.progress = Progress.PREPARED
        if isinstance(result, Rejected) and request in self._ending:
            return self._hear_refusal(request, result)
        # Votes are being collected: home answers when they are in.
        return []

    def _hear_operation(self, request: Request, result: Result) -> list[Request]:
        touched = self._shards[request.shard]
        if isinstance(result, Staged):
            touched.unacknowledged.pop(request.number, None)
            return self._send_next(request.shard, request.number + 1)
        has_ended = request.shard in self._voting and _end_of(result) is not None
        if isinstance(result, Prepared) or has_ended:
            touched.unacknowledged.clear()
            return self._hear_vote(request.shard, result)
        if isinstance(result, Finished):
            # Of several shards only home knows.
            if self._is_alone or request.shard == self.coordinator:
                self._finish(result.outcome)
            return []
        if isinstance(result, Rejected) and result.reason is Reason.GAP:
            # One before it was lost on its way. Only that one goes out at once, and this one behind it: an
            # answer to each that sends them all would make more and more of them.
            touched.early.update((result.current, request.number))
            return self._send_next(request.shard, result.current)
        if isinstance(result, Rejected):
            # To send it again would get the same.
            touched.unacknowledged.pop(request.number, None)
            over = result.reason is Reason.TRANSACTION_OVER and self.progress is not Progress.OPEN
            if not over and self.refused is None:
                self.refused, self._refusing = result, request.shard
            elif over and self._is_alone:
                # By the commit whose answer was lost, or before it.
                self._finish(Outcome(result.current))
                return []
            # What ended home before the commit has told nobody; what was committed others may not have heard.
            is_over_at_coordinator = over and request.shard == self.coordinator
            if self.progress is Progress.COMMITTING and (is_over_at_coordinator or self.refused is not None):
                return self._give_up() if self._is_alone else self.resolve()
        return []

    @property
    def _is_alone(self) -> bool:
        """Whether what one shard says of it is all there is."""
        return len(self._shards) == 1 and not self.coordinator

    def _give_up(self) -> list[Request]:
        """An operation was refused, and the last one, which was to commit, cannot behind it."""
        if self._ending:
            # A commit of its own is under way, which finds that out.
            return []
        self.progress = Progress.ROLLING_BACK
        self._ending = self._aborts()
        return list(self._ending)

    def _send_next(self, shard: str, number: int) -> list[Request]:
        """This one, if it came too early before."""
        touched = self._shards[shard]
        if number not in touched.early or self.refused is not None:
            return []
        touched.early.discard(number)
        return [each for each in self._unacknowledged(shard) if each.number == number]

    def _hear_vote(self, shard: str, result: Result) -> list[Request]:
        if self.progress is not Progress.COMMITTING or shard not in self._voting:
            return []
        self._voting.discard(shard)
        self._ending = [each for each in self._ending if each.shard != shard]
        if not isinstance(result, Prepared):
            # One against it is enough.
            self._voting.clear()
            for touched in self._shards.values():
                touched.unacknowledged.clear()
            why = _end_of(result) or Outcome.ROLLED_BACK
            self._ending = [self._abort_all(Outcome.ROLLED_BACK if why is Outcome.COMMITTED else why)]
            return list(self._ending)
        return [] if self._voting else self._decide()

    def _decide(self) -> list[Request]:
        """All others are prepared: home is to commit."""
        self._is_decided = True
        touched, others = self._shards[self.coordinator], self._others
        if self._is_last_unsent and not self._deliveries and len(others) <= MOST_NAMED:
            self._last(touched.unacknowledged[touched.count], "", others)
        else:
            commit = BranchCommit(((0, touched.count),), others, self._deliveries)
            self._ending = [self._end(self.coordinator, Kind.BRANCH_COMMIT, commit)]
        return self.again(self.coordinator)

    def _hear_end(self, request: Request, outcome: Outcome) -> list[Request]:
        self._ending = [each for each in self._ending if each != request]
        if self.progress is Progress.ROLLING_BACK and outcome is not Outcome.COMMITTED:
            if not self._ending:
                self._finish(Outcome.ROLLED_BACK)
            return []
        # Also if it was to be rolled back: the operation that commits it was there before.
        self._finish(outcome)
        return []

    def _hear_refusal(self, request: Request, result: Rejected) -> list[Request]:
        too_many = result.reason is Reason.TOO_MANY_TRANSACTIONS
        if too_many and self.progress is Progress.COMMITTING:
            self.refused, self._refusing = result, request.shard
            return self.resolve()
        if too_many and self.progress is Progress.PREPARING:
            # It was not begun there, so it is not prepared anywhere.
            self.refused, self._refusing = result, request.shard
            self.progress = Progress.OPEN
            return self.rollback()
        self._ending = [each for each in self._ending if each != request]
        if not self._ending:
            self.progress = Progress.OVER
        return []

    @property
    def _others(self) -> tuple[str, ...]:
        return tuple(sorted(self._shards.keys() - {self.coordinator}))

    def _abort_all(self, outcome: Outcome) -> Request:
        """Home decides so, unless it has decided."""
        return self._end(self.coordinator, Kind.BRANCH_ABORT, BranchAbort(outcome, others=self._others))

    def _aborts(self) -> list[Request]:
        abort = BranchAbort(Outcome.ROLLED_BACK)
        return [self._end(shard, Kind.BRANCH_ABORT, abort) for shard in self._shards]

    def _end(self, shard: str, kind: int, payload: Payload) -> Request:
        label = Label(self.id, 0, self.worker, self._owner, self.timeout_seconds).encode()
        return Request(shard, kind, encode_command(payload), label, commits=kind == Kind.BRANCH_COMMIT)

    def _finish(self, outcome: Outcome) -> None:
        self.progress = Progress.OVER
        self.outcome = outcome

    @property
    def why_refused(self) -> str:
        """Why an operation was refused, for people; nothing if none was."""
        refused = self.refused
        if refused is None:
            return ""
        if refused.reason is Reason.TRANSACTION_OVER and refused.current in frozenset(Outcome):
            return Outcome(refused.current).text
        return f"{self._refusing} says: {refused.text}"

    def error(self) -> HawserError | None:
        """What to raise for a commit that is over, or that nobody waits for any more; None if it is done."""
        if self.outcome is Outcome.COMMITTED:
            return None
        if self.outcome is not None:
            why = self.why_refused or self.outcome.text
            return TransactionAborted(f"transaction {self.id} was rolled back: {why}. It may be run again")
        if self.coordinator and self.progress is Progress.RESOLVING:
            return InDoubt(
                f"transaction {self.id} was to be committed and {self.coordinator} does not answer; it will "
                f"be committed or rolled back as a whole. {self._ask_again}"
            )
        return OutcomeUnknown(
            f"transaction {self.id} was to be committed and nobody said whether it was. {self._ask_again}"
        )

    @property
    def _ask_again(self) -> str:
        return (
            f"Ask with its resolve(), or with `hawser tx show {self.id}`, until that is known; do not run it "
            "again before"
        )


def _end_of(result: Result) -> Outcome | None:
    """How a branch has ended, if that is what a result says."""
    if isinstance(result, Finished):
        return result.outcome
    if isinstance(result, Rejected) and result.reason is Reason.TRANSACTION_OVER:
        return Outcome(result.current) if result.current in frozenset(Outcome) else Outcome.ROLLED_BACK
    return None
