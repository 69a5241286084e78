"""A transaction at its client: which requests to send, which to repeat, and the outcome.

Pure: requests come out, results go in.

| state | event | action | next state |
|---|---|---|---|
| OPEN | `operation` | stage it | OPEN |
| OPEN | `commit`, one shard | commit there | COMMITTING |
| OPEN | `commit`, several shards | ask all but the coordinator to prepare | COMMITTING |
| OPEN | `prepare` | close the branch at the application's coordinator | PREPARING |
| OPEN | `rollback` | abort on every shard | ROLLING_BACK |
| COMMITTING | all others are prepared | ask the coordinator to commit | COMMITTING |
| COMMITTING | a vote against, or `resolve` | ask the coordinator to abort | the same, or RESOLVING |
| COMMITTING, RESOLVING | result of the coordinator, or of the only shard | | OVER |
| PREPARING | prepared | | PREPARED |
| ROLLING_BACK | every shard answered | | OVER |

Promise: `outcome` is COMMITTED only if every shard commits, and anything else only if none does. The outcome
stays unknown only while the coordinator does not answer `resolve` either; `resolve` rolls back whatever is
not committed, so its answer is final.

Operations on one shard are numbered and sent without waiting for each other. After a change of leader the
client repeats the operations that are not acknowledged; a repeat has no effect if the shard has the
operation. With several shards one of them becomes the coordinator (`_choose_coordinator`). It receives its
own unsent operations with the request to commit, and tells the other shards the outcome. The last operation
of a shard carries its prepare or commit if it was not sent before the commit. A shard that only receives one
small message for its topic is not asked to prepare, because a topic never refuses one: the message goes with
the commit, and the coordinator delivers it."""

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
    """The states of a transaction; the table above has the transitions."""

    OPEN = 1
    ROLLING_BACK = 2
    COMMITTING = 3
    RESOLVING = 4
    PREPARING = 5
    PREPARED = 6
    OVER = 7


class Request(msgspec.Struct, frozen=True):
    """An entry to propose on a shard. Number 0 is no operation. Only a request that `commits` can commit."""

    shard: str
    kind: int
    payload: bytes
    label: bytes = b""
    number: int = 0
    commits: bool = False


class _Shard:
    """The operations on one shard: how many there are, those without an acknowledgement by their numbers, in
    order, and those that the shard rejected because an earlier one was missing (`early`)."""

    __slots__ = ("count", "early", "unacknowledged")

    def __init__(self) -> None:
        self.count = 0
        self.early: set[int] = set()
        self.unacknowledged: dict[int, Request] = {}


class Transaction:
    """A transaction on a lane; a branch of an application's batch, which is prepared; or, with a worker, the
    work of one session in an XA branch, which calls of the XA interface end and complete."""

    def __init__(
        self,
        transaction: TransactionId,
        owner: int = 0,
        timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
        worker: int = 0,
    ) -> None:
        self.id = transaction
        # The shard that decides. On a lane it is one of the shards touched, chosen by `commit`.
        self.coordinator = ""
        self.progress = Progress.OPEN
        self.outcome: Outcome | None = None
        # The first refusal of an operation, and the shard it came from. After it only a rollback is possible.
        self.refused: Rejected | None = None
        self._refusing = ""
        self._owner = owner
        self.timeout_seconds = timeout_seconds
        self.worker = worker
        self._shards: dict[str, _Shard] = {}
        # Requests that end it in entries of their own, repeated until they are answered.
        self._ending: list[Request] = []
        # Shards that were asked to prepare and have not answered.
        self._voting: set[str] = set()
        # Messages that the coordinator delivers to shards without a branch.
        self._deliveries: Deliveries = {}
        # Whether the coordinator's last operation was unsent at the commit; whether it was asked to commit.
        self._is_last_unsent = self._is_decided = False

    @property
    def shards(self) -> list[str]:
        """The shards it touches."""
        return list(self._shards)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The number of operations on each shard, as the call that ends the work names them."""
        return tuple((name, each.count) for name, each in sorted(self._shards.items()))

    @property
    def is_staged(self) -> bool:
        """Whether every operation is acknowledged, and none was refused."""
        return self.refused is None and not any(each.unacknowledged for each in self._shards.values())

    def operation(self, shard: str, kind: int, payload: bytes) -> Request:
        """Stage an operation: a BATCH or QUEUE_PUT without a stamp, an accepting QUEUE_SETTLE, or a
        GROUP_COMMIT."""
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
        """Commit, or roll back if an operation was refused; without operations the transaction ends at once.

        `unsent` are the last operations if they were not sent yet; the result replaces them. The
        coordinator's own are withheld while others prepare. `leader` gives the leader of a shard, or None.
        """
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
        # The last unsent operation of each shard.
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
        """Single messages of shards that have no other operation, if they are small and the shard has a
        leader."""
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
        """The shard that will decide. Preferred, in this order: a shard that must be asked anyway; one with a
        leader, since the others wait for it; the one with the fewest operations sent, since the rest goes
        with the decision; the one whose leader also leads most of the others, and tells them without a
        message."""
        sent = {shard: touched.count for shard, touched in self._shards.items()}
        for request in unsent:
            sent[request.shard] -= 1
        leaders = {shard: leader(shard) for shard in self._shards}
        eligible = [shard for shard in self._shards if shard in asked] or list(self._shards)
        led = [shard for shard in eligible if leaders[shard] is not None] or eligible
        all_leaders = list(leaders.values())
        return min(led, key=lambda shard: (sent[shard], -all_leaders.count(leaders[shard])))

    def _last(self, unsent: Request, coordinator: str = "", others: tuple[str, ...] = ()) -> Request:
        """The last operation on a shard, changed so that it also ends the branch there: with a coordinator it
        prepares for that one; without, it commits, for the `others` too. The result replaces the operation in
        `unacknowledged`, so a repeat ends the branch as well."""
        touched = self._shards[unsent.shard]
        assert unsent.number == touched.count
        label = as_last(unsent.label, coordinator, others)
        last = Request(unsent.shard, unsent.kind, unsent.payload, label, unsent.number, not coordinator)
        touched.unacknowledged[last.number] = last
        return last

    def prepare(self, coordinator: str, query: bytes, batch: int, orphan_seconds: int) -> list[Request]:
        """Prepare it as a branch of an application's batch. One decision of the coordinator shard commits it
        with the others of its batch or drops it; after `orphan_seconds` without a decision it is dropped."""
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
        """Roll back. The caller need not wait for the answers."""
        assert self.progress is Progress.OPEN
        self.progress = Progress.ROLLING_BACK
        self._ending = self._aborts()
        if not self._ending:
            self._finish(Outcome.ROLLED_BACK)
        return list(self._ending)

    def resolve(self) -> list[Request]:
        """Learn the outcome of a commit without an answer, and roll it back if it was not committed."""
        assert self.outcome is None and self.progress not in (Progress.OPEN, Progress.PREPARED)
        self.progress = Progress.RESOLVING
        self._ending = [self._abort_all(Outcome.ROLLED_BACK)] if self.coordinator else self._aborts()
        return list(self._ending)

    def left(self) -> list[Request]:
        """The requests to repeat when the caller no longer waits, so that nothing is left of a transaction
        that was not committed. None of them commits it."""
        if not self._ending or self.progress not in (Progress.ROLLING_BACK, Progress.RESOLVING):
            return []
        return [each for each in self._ending if not each.commits]

    def again(self, shard: str) -> list[Request]:
        """Everything the shard has not acknowledged, after a change of leader or a lost connection."""
        return [*self._unacknowledged(shard), *(each for each in self._ending if each.shard == shard)]

    def _unacknowledged(self, shard: str) -> Iterator[Request]:
        """The operations to repeat on this shard; none after a rollback or `resolve` has begun. The
        coordinator's own wait until the others are prepared."""
        staging = self.progress in (Progress.OPEN, Progress.COMMITTING, Progress.PREPARING)
        is_early = shard == self.coordinator and not self._is_decided
        if staging and shard in self._shards and not is_early:
            yield from self._shards[shard].unacknowledged.values()

    def hear(self, request: Request, result: Result) -> list[Request]:
        """Take the result of a request; gives the requests to send now. Results may come in any order and
        repeatedly.

        An operation has a number, and its result may also be the vote or the end that the operation carried.
        All other requests ask to prepare, commit or abort."""
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
        # The coordinator still collects the votes, or another request has replaced this one.
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
            # With several shards only the coordinator knows the outcome.
            if self._is_alone or request.shard == self.coordinator:
                self._finish(result.outcome)
            return []
        if isinstance(result, Rejected) and result.reason is Reason.GAP:
            # An earlier operation was lost. Repeat only that one, and then this one: repeating all of them
            # for each such answer would multiply the requests.
            touched.early.update((result.current, request.number))
            return self._send_next(request.shard, result.current)
        if isinstance(result, Rejected):
            # A repeat would get the same answer.
            touched.unacknowledged.pop(request.number, None)
            over = result.reason is Reason.TRANSACTION_OVER and self.progress is not Progress.OPEN
            if not over and self.refused is None:
                self.refused, self._refusing = result, request.shard
            elif over and self._is_alone:
                # It ended by the commit whose answer was lost, or before it.
                self._finish(Outcome(result.current))
                return []
            # A coordinator branch that ended before the commit has told no other shard; after a commit other
            # shards may not have heard yet.
            is_over_at_coordinator = over and request.shard == self.coordinator
            if self.progress is Progress.COMMITTING and (is_over_at_coordinator or self.refused is not None):
                return self._give_up() if self._is_alone else self.resolve()
        return []

    @property
    def _is_alone(self) -> bool:
        """Whether the result of one shard is the outcome."""
        return len(self._shards) == 1 and not self.coordinator

    def _give_up(self) -> list[Request]:
        """Roll back: an operation was refused, so the last one, which carries the commit, cannot apply."""
        if self._ending:
            # A separate commit is in flight and will be refused.
            return []
        self.progress = Progress.ROLLING_BACK
        self._ending = self._aborts()
        return list(self._ending)

    def _send_next(self, shard: str, number: int) -> list[Request]:
        """Operation `number` again, if the shard rejected it because an earlier one was missing."""
        touched = self._shards[shard]
        if number not in touched.early or self.refused is not None:
            return []
        touched.early.discard(number)
        return [each for each in self._unacknowledged(shard) if each.number == number]

    def _hear_vote(self, shard: str, result: Result) -> list[Request]:
        """Count the answer of a shard that was asked to prepare. When all have prepared, the coordinator is
        asked to commit; after any other answer it is asked at once to abort, and only its own answer gives
        the outcome."""
        if self.progress is not Progress.COMMITTING or shard not in self._voting:
            return []
        self._voting.discard(shard)
        self._ending = [each for each in self._ending if each.shard != shard]
        if not isinstance(result, Prepared):
            # One vote against it decides.
            self._voting.clear()
            for touched in self._shards.values():
                touched.unacknowledged.clear()
            why = _end_of(result) or Outcome.ROLLED_BACK
            self._ending = [self._abort_all(Outcome.ROLLED_BACK if why is Outcome.COMMITTED else why)]
            return list(self._ending)
        return [] if self._voting else self._decide()

    def _decide(self) -> list[Request]:
        """Ask the coordinator to commit: all others are prepared."""
        self._is_decided = True
        touched, others = self._shards[self.coordinator], self._others
        if self._is_last_unsent and not self._deliveries and len(others) <= MOST_NAMED:
            self._last(touched.unacknowledged[touched.count], "", others)
        else:
            commit = BranchCommit(((0, touched.count),), others, self._deliveries)
            self._ending = [self._end(self.coordinator, Kind.BRANCH_COMMIT, commit)]
        return self.again(self.coordinator)

    def _hear_end(self, request: Request, outcome: Outcome) -> list[Request]:
        """Note the answer to a request that commits or aborts. A rollback is over when every shard has
        answered; otherwise the first answer is the outcome."""
        self._ending = [each for each in self._ending if each != request]
        if self.progress is Progress.ROLLING_BACK and outcome is not Outcome.COMMITTED:
            if not self._ending:
                self._finish(Outcome.ROLLED_BACK)
            return []
        # A commit also counts after `rollback`: the committing operation arrived first.
        self._finish(outcome)
        return []

    def _hear_refusal(self, request: Request, result: Rejected) -> list[Request]:
        """Note that a request that ends the transaction was rejected. If the coordinator has no room for the
        transaction, roll back; otherwise the request is not repeated, and without another one the transaction
        is over and its outcome stays unknown."""
        too_many = result.reason is Reason.TOO_MANY_TRANSACTIONS
        if too_many and self.progress is Progress.COMMITTING:
            self.refused, self._refusing = result, request.shard
            return self.resolve()
        if too_many and self.progress is Progress.PREPARING:
            # The coordinator did not begin it, so it is not prepared anywhere.
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
        """Ask the coordinator to roll back, unless it has decided."""
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
        """The reason of the first refusal as text; empty if there was none."""
        refused = self.refused
        if refused is None:
            return ""
        if refused.reason is Reason.TRANSACTION_OVER and refused.current in frozenset(Outcome):
            return Outcome(refused.current).text
        return f"{self._refusing} says: {refused.text}"

    def error(self) -> HawserError | None:
        """The error of a commit that has ended or is given up; None if it was committed."""
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
            f"transaction {self.id} was to be committed and its outcome is not known. {self._ask_again}"
        )

    @property
    def _ask_again(self) -> str:
        return (
            f"Ask with its resolve(), or with `hawser tx show {self.id}`, until it is known; do not run it "
            "again before"
        )


def _end_of(result: Result) -> Outcome | None:
    """The outcome of the branch, if the result says that it has ended."""
    if isinstance(result, Finished):
        return result.outcome
    if isinstance(result, Rejected) and result.reason is Reason.TRANSACTION_OVER:
        return Outcome(result.current) if result.current in frozenset(Outcome) else Outcome.ROLLED_BACK
    return None
