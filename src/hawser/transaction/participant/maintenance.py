"""The leader's maintenance of branches: expiry, questions to coordinators, old batches carried forward.

Pure. Its caller makes one when this member begins to lead and has applied all earlier entries, drops it when
the term ends, calls `tick` regularly and carries out the actions:

- `Propose`: an entry for this shard. Open branches of lanes and of applications are rolled back after their
  timeout or the loss of their session, unless they are prepared when the entry is applied.
- `Ask`: read the outcome of a branch from the newest state of its coordinator (`Branches.decision`) and pass
  it to `decided`. A prepared branch asks when it has had no decision for a while. If the coordinator does not
  know the transaction, because its client has not collected all votes, and the action has a reason, propose
  what `disown` returns there; the result is the outcome. If the coordinator shard was deleted, the outcome is
  a rollback: a deletion waits until all participants have heard of a commit. An open XA branch asks too,
  because only its coordinator ends it: the coordinator has the timeout and knows whether a lost session had
  ended its work, but not yet which shards have a branch.
- `Carry`: a staged batch far back keeps the log from being shortened. Propose its entry again under the given
  label. The oldest batches come first. A batch that is still there after a pause is carried again, so one
  that cannot be carried neither fills the log nor delays the others.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Outcome
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchForget, CoordinatorDecide, to_fields
from hawser.transaction.expiry import OLD_MARKS, ExpiryTimer
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    DEFAULT_TIMEOUT_SECONDS,
    LANE_FORMAT,
    Label,
    TransactionId,
)
from hawser.transaction.participant.branches import Branch, Branches
from hawser.transaction.participant.staged import StagedBatch

__all__ = ["Action", "Ask", "Carry", "BranchMaintenance", "Propose"]

# The pause between two questions doubles from the first to the second of these.
ASK_SECONDS: Final = 5.0
MOST_ASK_SECONDS: Final = 60.0
# The most batches and bytes carried forward at a time; other requests wait behind them.
MOST_CARRIES: Final = 100
MOST_CARRY_BYTES: Final = 8 << 20


class Propose(msgspec.Struct, frozen=True):
    """Propose this entry, on this shard or on the coordinator shard."""

    kind: int
    payload: bytes
    label: bytes = b""


class Ask(msgspec.Struct, frozen=True):
    """Ask this coordinator shard, or if none is named that of the xid, for the outcome. If it does not know
    the transaction and `reason` is set, `disown` the transaction there."""

    coordinator: str
    transaction: TransactionId
    reason: Outcome | None = None


class Carry(msgspec.Struct, frozen=True):
    """Propose the entry at this index again, under this label."""

    index: int
    label: bytes


Action = Propose | Ask | Carry


class _Waiting:
    """A branch without a decision since `since`; `asked` and `reason` are those of the last question."""

    __slots__ = ("asked", "pause_seconds", "reason", "since")

    def __init__(self, now: float) -> None:
        self.since = self.asked = now
        self.pause_seconds = ASK_SECONDS
        self.reason: Outcome | None = None


class BranchMaintenance:
    """Maintains the branches of one shard."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        # When each branch was first seen.
        self._seen: dict[TransactionId, float] = {}
        # The branches that ask, by whether they are prepared.
        self._waiting: dict[tuple[TransactionId, bool], _Waiting] = {}
        self._expiry = ExpiryTimer()
        # By index of an entry that was carried: when it may be carried again, and the pause after that.
        self._carried: dict[int, tuple[float, float]] = {}

    def tick(
        self,
        now: float,
        is_lost: Callable[[int], bool],
        is_gone: Callable[[str], bool] = lambda shard: False,
        carry_before: int = 0,
    ) -> list[Action]:
        """The actions that are due. `is_lost` tells whether the session with this owner number is lost,
        `is_gone` whether a shard was deleted. Batches in entries before `carry_before` are carried
        forward."""
        actions: list[Action] = []
        register = self._branches.register
        self._seen = {transaction: self._seen.get(transaction, now) for transaction, _ in register}
        asking = ((each, branch.is_prepared) for each, branch in register if _asks(each, branch))
        self._waiting = {each: self._waiting.get(each) or _Waiting(now) for each in asking}
        for transaction, branch in register:
            act = self._ask if _asks(transaction, branch) else self._expire
            actions += act(transaction, branch, now, is_lost)
        actions += self._carry(now, carry_before)
        actions += self._forget(now, is_gone)
        is_remembering = register.is_remembering or bool(self._branches.deleted)
        if is_remembering and self._expiry.is_due(now):
            actions.append(_propose(Kind.BRANCH_FORGET, BranchForget(())))
        return actions

    def _forget(self, now: float, is_gone: Callable[[str], bool]) -> list[Action]:
        """Remove old tombstones and old deleted coordinators; note coordinators deleted since."""
        found = self._expiry.old(self._forgettable(is_gone), now)
        if not found:
            return []
        forget = BranchForget(
            tuple(to_fields(each) for each in found if isinstance(each, TransactionId)),
            tuple(each for each in found if each in self._branches.deleted),
            tuple(each for each in found if isinstance(each, str) and each not in self._branches.deleted),
        )
        return [_propose(Kind.BRANCH_FORGET, forget)]

    def _forgettable(self, is_gone: Callable[[str], bool]) -> Iterator[TransactionId | str]:
        branches = self._branches
        yield from branches.register.old(OLD_MARKS)
        for coordinator in filter(is_gone, branches.delivered):
            noted = branches.deleted.get(coordinator)
            if noted is None or branches.register.marks - noted >= OLD_MARKS:
                yield coordinator

    # For reports. `clock_ns` is the local time of day; prepare times are by the clock of the leader then.

    def age(self, transaction: TransactionId, branch: Branch, now: float, clock_ns: int) -> float:
        """The seconds since this leader first saw the branch, or since it was prepared if that is longer."""
        return max(now - self._seen.get(transaction, now), _prepared_seconds(branch, clock_ns))

    def oldest(self, now: float, clock_ns: int) -> float:
        """The age of the oldest branch, 0 without branches."""
        ages = (self.age(*each, now, clock_ns) for each in self._branches.register)
        return max(ages, default=0.0)

    def waiting(self, now: float, clock_ns: int, seconds: float) -> int:
        """The number of branches that have waited for a decision for longer than this."""
        count = 0
        for transaction, branch in self._branches.register:
            waiting = self._waiting.get((transaction, True)) if branch.is_prepared else None
            known_seconds = 0.0 if waiting is None else now - waiting.since
            count += max(known_seconds, _prepared_seconds(branch, clock_ns)) > seconds
        return count

    def decided(self, transaction: TransactionId, outcome: Outcome) -> Propose:
        """Apply the coordinator's decision. The coordinator commits only after all participants have
        prepared, so a branch that is still open here is not part of the commit and is rolled back."""
        if outcome is not Outcome.COMMITTED:
            return _propose(Kind.BRANCH_ABORT, BranchAbort(outcome, decided=True), transaction)
        branch = self._branches.register.get(transaction)
        if branch is None or branch.is_prepared:
            return _propose(Kind.BRANCH_COMMIT, BranchCommit(), transaction)
        return _propose(Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK), transaction)

    def disown(self, transaction: TransactionId, reason: Outcome) -> Propose:
        """For the coordinator shard, which has not decided: rule out a commit."""
        if transaction.xid.format == LANE_FORMAT:
            return _propose(Kind.BRANCH_ABORT, BranchAbort(reason), transaction)
        return _propose(Kind.HOME_DECIDE, CoordinatorDecide(to_fields(transaction), reason))

    def _ask(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        waiting = self._waiting[transaction, branch.is_prepared]
        reason = _why_over(branch, now - waiting.since, is_lost)
        is_news = reason is not None and waiting.reason is None
        if not is_news and now - waiting.asked < waiting.pause_seconds:
            return []
        waiting.asked, waiting.reason = now, reason
        waiting.pause_seconds = ASK_SECONDS if is_news else min(2 * waiting.pause_seconds, MOST_ASK_SECONDS)
        # The coordinator knew an open XA branch before it existed here.
        return [Ask(branch.coordinator, transaction, reason if branch.is_prepared else Outcome.ROLLED_BACK)]

    def _expire(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        outcome = _why_over(branch, now - self._seen[transaction], is_lost)
        if outcome is None:
            return []
        return [_propose(Kind.BRANCH_ABORT, BranchAbort(outcome), transaction)]

    def _carry(self, now: float, before: int) -> list[Action]:
        """Carry the batches before this entry, the oldest first."""
        lowest = self._branches.needed
        if lowest is None or lowest >= before:
            self._carried.clear()
            return []
        far = sorted(
            (operation.index, operation.size_bytes, transaction, place)
            for transaction, branch in self._branches.register
            for operation, place in zip(branch.operations, branch.places, strict=True)
            if isinstance(operation, StagedBatch) and operation.index < before
        )
        self._carried = {index: self._carried[index] for index, *_ in far if index in self._carried}
        carries: list[Action] = []
        left_bytes = MOST_CARRY_BYTES
        for index, size_bytes, transaction, (worker, number) in far:
            until, pause_seconds = self._carried.get(index, (now, ASK_SECONDS))
            if now < until:
                continue
            if len(carries) == MOST_CARRIES or (carries and size_bytes > left_bytes):
                break
            left_bytes -= size_bytes
            self._carried[index] = now + pause_seconds, min(2 * pause_seconds, MOST_ASK_SECONDS)
            carries.append(Carry(index, Label(transaction, number, worker, carried=True).encode()))
        return carries


def _asks(transaction: TransactionId, branch: Branch) -> bool:
    return branch.is_prepared or transaction.xid.format not in (LANE_FORMAT, APPLICATION_FORMAT)


def _prepared_seconds(branch: Branch, clock_ns: int) -> float:
    return (clock_ns - branch.prepared_ns) / 1e9 if branch.prepared_ns else 0.0


def _why_over(branch: Branch, lasted_seconds: float, is_lost: Callable[[int], bool]) -> Outcome | None:
    """The reason to stop waiting for the client of an open branch; None if it may continue."""
    if any(is_lost(owner) for owner in branch.owners):
        return Outcome.SESSION_LOST
    timeout_seconds = branch.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    return Outcome.TIMED_OUT if lasted_seconds >= timeout_seconds else None


def _propose(kind: int, payload: Payload, transaction: TransactionId | None = None) -> Propose:
    label = Label(transaction).encode() if transaction is not None else b""
    return Propose(kind, encode_command(payload), label)
