"""The keeper: what the leader of a shard does about the branches there.

Pure. Whoever drives it makes one when this member begins to lead and has applied everything that came before,
drops it when it leads no more, calls `tick` now and then and carries out what it returns:

- `Propose`: an entry for this shard. Branches of lanes and of applications that stay open for too long, or
  whose session is lost, are rolled back unless they are prepared when the entry is applied.
- `Ask`: a prepared branch has not heard from home for a while. The outcome, read from home's newest state
  (`Branches.decision`), is given to `decided`; if there is none yet, nothing is. Home may know nothing of the
  transaction, because its client has not collected all votes. If that is gone, or its time is over, the
  question says so: what `disown` returns is proposed there, and what becomes of that is the outcome. A home
  that was deleted has not committed anything that somebody has not heard of: rolled back. An open branch of
  the XA interface asks, too, and only home ends it: home has its time-out and knows whether the work of a
  lost session was ended before. Home does not know yet which shards the branch is on.
- `Carry`: a staged batch lies so far back that it keeps the log from being shortened; propose its entry once
  more as it is, under the label that is given. The oldest batches come first. A batch that is still there
  after a pause is carried again, so one that cannot be carried neither fills the log nor delays the others.
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

# From one question to the next: longer and longer.
ASK_SECONDS: Final = 5.0
MOST_ASK_SECONDS: Final = 60.0
# The number and the bytes of batches carried forward at a time, so that other requests do not wait for them.
MOST_CARRIES: Final = 100
MOST_CARRY_BYTES: Final = 8 << 20


class Propose(msgspec.Struct, frozen=True):
    """Propose this entry, here or on home."""

    kind: int
    payload: bytes
    label: bytes = b""


class Ask(msgspec.Struct, frozen=True):
    """Ask this home, or if none is named the xid's, what became of the transaction; and `disown` it, if home
    knows nothing of it and there is a reason for that."""

    coordinator: str
    transaction: TransactionId
    reason: Outcome | None = None


class Carry(msgspec.Struct, frozen=True):
    """Propose the entry at this index again, under this label."""

    index: int
    label: bytes


Action = Propose | Ask | Carry


class _Waiting:
    """A branch that waits for home `since` then; home was asked then, with that reason, and is asked again
    when the pause is over."""

    __slots__ = ("asked", "pause_seconds", "reason", "since")

    def __init__(self, now: float) -> None:
        self.since = self.asked = now
        self.pause_seconds = ASK_SECONDS
        self.reason: Outcome | None = None


class BranchMaintenance:
    """The keeper of one shard's branches."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        # When each was seen first.
        self._seen: dict[TransactionId, float] = {}
        # Those that ask home, and whether they are prepared.
        self._waiting: dict[tuple[TransactionId, bool], _Waiting] = {}
        self._expiry = ExpiryTimer()
        # For each entry that was proposed again: the time before which it is not repeated, and the pause
        # after that.
        self._carried: dict[int, tuple[float, float]] = {}

    def tick(
        self,
        now: float,
        is_lost: Callable[[int], bool],
        is_gone: Callable[[str], bool] = lambda shard: False,
        carry_before: int = 0,
    ) -> list[Action]:
        """The actions that are due. `is_lost` says whether the owner of a label is gone, and `is_gone`
        whether a shard was deleted. Batches in entries before `carry_before` lie far back."""
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
        """The outcomes and the deleted homes that are old, and the homes that are deleted since."""
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

    # To be shown. `clock_ns` is the time of day here, and what another leader wrote was by its own.

    def age(self, transaction: TransactionId, branch: Branch, now: float, clock_ns: int) -> float:
        """For how long this keeper has known of it; or if that is longer, for how long it is prepared."""
        return max(now - self._seen.get(transaction, now), _prepared_seconds(branch, clock_ns))

    def oldest(self, now: float, clock_ns: int) -> float:
        """The age of the oldest; 0 if there is none."""
        ages = (self.age(*each, now, clock_ns) for each in self._branches.register)
        return max(ages, default=0.0)

    def waiting(self, now: float, clock_ns: int, seconds: float) -> int:
        """How many wait for a decision for longer than this."""
        count = 0
        for transaction, branch in self._branches.register:
            waiting = self._waiting.get((transaction, True)) if branch.is_prepared else None
            known_seconds = 0.0 if waiting is None else now - waiting.since
            count += max(known_seconds, _prepared_seconds(branch, clock_ns)) > seconds
        return count

    def decided(self, transaction: TransactionId, outcome: Outcome) -> Propose:
        """Apply home's decision. Home commits only after all participants have prepared their branches, so a
        branch that is still open here is not part of the commit and is rolled back."""
        if outcome is not Outcome.COMMITTED:
            return _propose(Kind.BRANCH_ABORT, BranchAbort(outcome, decided=True), transaction)
        branch = self._branches.register.get(transaction)
        if branch is None or branch.is_prepared:
            return _propose(Kind.BRANCH_COMMIT, BranchCommit(), transaction)
        return _propose(Kind.BRANCH_ABORT, BranchAbort(Outcome.ROLLED_BACK), transaction)

    def disown(self, transaction: TransactionId, reason: Outcome) -> Propose:
        """For home, which has not decided: it is not to be committed any more."""
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
        # Home knew an open branch before it existed here.
        return [Ask(branch.coordinator, transaction, reason if branch.is_prepared else Outcome.ROLLED_BACK)]

    def _expire(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        outcome = _why_over(branch, now - self._seen[transaction], is_lost)
        if outcome is None:
            return []
        return [_propose(Kind.BRANCH_ABORT, BranchAbort(outcome), transaction)]

    def _carry(self, now: float, before: int) -> list[Action]:
        """The batches before this entry, the oldest first."""
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
    """As far as it was written down."""
    return (clock_ns - branch.prepared_ns) / 1e9 if branch.prepared_ns else 0.0


def _why_over(branch: Branch, lasted_seconds: float, is_lost: Callable[[int], bool]) -> Outcome | None:
    """Why nobody is to wait any longer for what its client does next; None if it may do that."""
    if any(is_lost(owner) for owner in branch.owners):
        return Outcome.SESSION_LOST
    timeout_seconds = branch.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    return Outcome.TIMED_OUT if lasted_seconds >= timeout_seconds else None


def _propose(kind: int, payload: Payload, transaction: TransactionId | None = None) -> Propose:
    label = Label(transaction).encode() if transaction is not None else b""
    return Propose(kind, encode_command(payload), label)
