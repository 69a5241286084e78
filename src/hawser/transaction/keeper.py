"""The keeper: what the leader of a shard does about the branches there.

Pure. Whoever drives it makes one when this member begins to lead and has applied everything that came before,
drops it when it leads no more, calls `tick` now and then and carries out what it returns:

- `Propose`: an entry for this shard. Branches that stay open for too long, or whose session is lost, are
  rolled back unless they are prepared when the entry is applied.
- `Ask`: a prepared branch has not heard from home for a while. The outcome, read from home's newest state
  (`Branches.decision`), is given to `decided`; if there is none yet, nothing is. Home may know nothing of the
  transaction, because its client has not collected all votes. If that is gone, or its time is over, the
  question says so: what `disown` returns is proposed there, and what becomes of that is the outcome. A home
  that was deleted has not committed anything that somebody has not heard of: rolled back. An open
  branch of the XA interface asks, too: home has its time-out, and does not know yet which shards it is on.
- `Carry`: a staged batch lies so far back that it keeps the log from being shortened; propose its entry once
  more as it is, under the label that is given.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Outcome
from hawser.transaction.ageing import Ageing
from hawser.transaction.branches import Branch, Branches
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchForget, HomeDecide, to_fields
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    DEFAULT_TIMEOUT_SECONDS,
    LANE_FORMAT,
    Label,
    TransactionId,
)
from hawser.transaction.staged import StagedBatch

__all__ = ["Action", "Ask", "Carry", "Keeper", "Propose"]

# From one question to the next: longer and longer.
ASK_SECONDS: Final = 5.0
MOST_ASK_SECONDS: Final = 60.0
CARRY_ENTRIES: Final = 100_000
# So many are carried forward at a time, lest others wait for them.
MOST_CARRIES: Final = 100


class Propose(msgspec.Struct, frozen=True):
    """Propose this entry, here or on home."""

    kind: int
    payload: bytes
    label: bytes = b""


class Ask(msgspec.Struct, frozen=True):
    """Ask this home, or if none is named the xid's, what became of the transaction; and `disown` it, if home
    knows nothing of it and there is a reason for that."""

    home: str
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


class Keeper:
    """The keeper of one shard's branches."""

    def __init__(self, branches: Branches, carry_entries: int = CARRY_ENTRIES) -> None:
        self._branches = branches
        self._carry_entries = carry_entries
        # When each was seen first.
        self._seen: dict[TransactionId, float] = {}
        # Those that ask home, and whether they are prepared.
        self._waiting: dict[tuple[TransactionId, bool], _Waiting] = {}
        self._ageing: Ageing[TransactionId] = Ageing()
        self._gone: Ageing[str] = Ageing()

    def tick(
        self,
        now: float,
        applied: int,
        is_lost: Callable[[int], bool],
        is_gone: Callable[[str], bool] = lambda shard: False,
    ) -> list[Action]:
        """What to do, with the log applied so far; `is_lost` says whether the owner of a label is gone, and
        `is_gone` whether a shard was deleted."""
        actions: list[Action] = []
        register = self._branches.register
        self._seen = {transaction: self._seen.get(transaction, now) for transaction, _ in register}
        asking = ((each, branch.is_prepared) for each, branch in register if _asks(each, branch))
        self._waiting = {each: self._waiting.get(each) or _Waiting(now) for each in asking}
        carries: list[Action] = []
        for transaction, branch in register:
            expired = [] if branch.is_prepared else self._expire(transaction, branch, now, is_lost)
            actions += expired or self._ask(transaction, branch, now, is_lost)
            if len(carries) < MOST_CARRIES:
                carries += self._carry(transaction, branch, applied)
        actions += carries[:MOST_CARRIES]
        old = self._ageing.old((each for each, _ in register.tombstones), now)
        gone = self._gone.old(filter(is_gone, self._branches.delivered), now)
        if old or gone:
            forget = BranchForget(tuple(map(to_fields, old)), tuple(gone))
            actions.append(_propose(Kind.BRANCH_FORGET, forget))
        return actions

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
        """Home has decided so."""
        if outcome is Outcome.COMMITTED:
            return _propose(Kind.BRANCH_COMMIT, BranchCommit(), transaction)
        return _propose(Kind.BRANCH_ABORT, BranchAbort(outcome, decided=True), transaction)

    def disown(self, transaction: TransactionId, reason: Outcome) -> Propose:
        """For home, which has not decided: it is not to be committed any more."""
        if transaction.xid.format == LANE_FORMAT:
            return _propose(Kind.BRANCH_ABORT, BranchAbort(reason), transaction)
        return _propose(Kind.HOME_DECIDE, HomeDecide(to_fields(transaction), reason))

    def _ask(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        waiting = self._waiting.get((transaction, branch.is_prepared))
        if waiting is None:
            return []
        # What is open was known to home before it was here.
        reason: Outcome | None = Outcome.ROLLED_BACK
        if branch.is_prepared:
            reason = _why_over(branch, now - waiting.since, is_lost)
        is_news = branch.is_prepared and reason is not None and waiting.reason is None
        if not is_news and now - waiting.asked < waiting.pause_seconds:
            return []
        waiting.asked, waiting.reason = now, reason
        waiting.pause_seconds = ASK_SECONDS if is_news else min(2 * waiting.pause_seconds, MOST_ASK_SECONDS)
        return [Ask(branch.home, transaction, reason)]

    def _expire(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        outcome = _why_over(branch, now - self._seen[transaction], is_lost)
        if outcome is None:
            return []
        return [_propose(Kind.BRANCH_ABORT, BranchAbort(outcome), transaction)]

    def _carry(self, transaction: TransactionId, branch: Branch, applied: int) -> list[Action]:
        pairs = zip(branch.operations, branch.places, strict=True)
        return [
            Carry(each.index, Label(transaction, number, worker, carried=True).encode())
            for each, (worker, number) in pairs
            if isinstance(each, StagedBatch) and applied - each.index >= self._carry_entries
        ]


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
