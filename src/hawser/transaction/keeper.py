"""The keeper: what the leader of a shard does about the branches there.

Pure. Whoever drives it makes one when this member begins to lead and has applied everything that came before,
drops it when it leads no more, calls `tick` now and then and carries out what it returns:

- `Propose`: an entry for this shard. Branches that stay open for too long, or whose session is lost, are
  rolled back unless they are prepared when the entry is applied.
- `Ask`: a prepared branch has not heard from home for a while. The outcome, read from home's newest state
  (`Ledger.outcome`), is given to `decided`; if there is none yet, nothing is.
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
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchForget, to_fields
from hawser.transaction.identity import DEFAULT_TIMEOUT_SECONDS, Label, TransactionId
from hawser.transaction.staged import StagedBatch

__all__ = ["Action", "Ask", "Carry", "Keeper", "Propose"]

ASK_SECONDS: Final = 5.0
CARRY_ENTRIES: Final = 100_000


class Propose(msgspec.Struct, frozen=True):
    """Propose this entry here."""

    kind: int
    payload: bytes
    label: bytes = b""


class Ask(msgspec.Struct, frozen=True):
    """Ask this home what became of the transaction."""

    home: str
    transaction: TransactionId


class Carry(msgspec.Struct, frozen=True):
    """Propose the entry at this index again, under this label."""

    index: int
    label: bytes


Action = Propose | Ask | Carry


class Keeper:
    """The keeper of one shard's branches."""

    def __init__(self, branches: Branches, carry_entries: int = CARRY_ENTRIES) -> None:
        self._branches = branches
        self._carry_entries = carry_entries
        # When each was seen first, and when home was asked about it last.
        self._seen: dict[TransactionId, float] = {}
        self._asked: dict[TransactionId, float] = {}
        self._ageing = Ageing()

    def tick(self, now: float, applied: int, is_lost: Callable[[int], bool]) -> list[Action]:
        """What to do, with the log applied so far; `is_lost` says whether the owner of a label is gone."""
        actions: list[Action] = []
        register = self._branches.register
        self._seen = {transaction: self._seen.get(transaction, now) for transaction, _ in register}
        self._asked = {each: asked for each, asked in self._asked.items() if each in self._seen}
        for transaction, branch in register:
            if branch.is_prepared:
                actions += self._ask(transaction, branch, now)
            else:
                actions += self._expire(transaction, branch, now, is_lost)
            actions += self._carry(transaction, branch, applied)
        old = self._ageing.old(register.tombstones, now)
        if old:
            actions.append(_propose(Kind.BRANCH_FORGET, BranchForget(tuple(map(to_fields, old)))))
        return actions

    def decided(self, transaction: TransactionId, outcome: Outcome) -> Propose:
        """Home has decided so, or knows nothing of it."""
        if outcome is Outcome.COMMITTED:
            return _propose(Kind.BRANCH_COMMIT, BranchCommit(), transaction)
        return _propose(Kind.BRANCH_ABORT, BranchAbort(outcome, decided=True), transaction)

    def _ask(self, transaction: TransactionId, branch: Branch, now: float) -> list[Action]:
        if now - self._asked.setdefault(transaction, now) < ASK_SECONDS:
            return []
        self._asked[transaction] = now
        return [Ask(branch.home, transaction)]

    def _expire(
        self, transaction: TransactionId, branch: Branch, now: float, is_lost: Callable[[int], bool]
    ) -> list[Action]:
        timeout_seconds = branch.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        if any(is_lost(owner) for owner in branch.owners):
            outcome = Outcome.SESSION_LOST
        elif now - self._seen[transaction] >= timeout_seconds:
            outcome = Outcome.TIMED_OUT
        else:
            return []
        return [_propose(Kind.BRANCH_ABORT, BranchAbort(outcome), transaction)]

    def _carry(self, transaction: TransactionId, branch: Branch, applied: int) -> list[Action]:
        pairs = zip(branch.operations, branch.places, strict=True)
        return [
            Carry(each.index, Label(transaction, number, worker, carried=True).encode())
            for each, (worker, number) in pairs
            if isinstance(each, StagedBatch) and applied - each.index >= self._carry_entries
        ]


def _propose(kind: int, payload: Payload, transaction: TransactionId | None = None) -> Propose:
    label = Label(transaction).encode() if transaction is not None else b""
    return Propose(kind, encode_command(payload), label)
