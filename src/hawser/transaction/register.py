"""Transactions as a shard knows them: those that are not over, and what became of the others.

An xid may have several incarnations that are not over: the earlier ones wait for decisions while its owner
has gone on to the next. Nothing begins that is not later than all that are known.

For each xid one *tombstone* is kept of the transactions that are over, that of the latest incarnation, so
that a repeated request gets the same answer. Entries forget old tombstones. Marks count the time, and each
tombstone carries the count of marks when it was written (`ageing.py`).

Those of lanes have a table of their own, and none ever makes room for another: a client that asks again would
be told that it was rolled back, or have it committed a second time. When there are too many, a lane that is
not known begins nothing here. What is to be rolled back and never began has as much room again; so whoever
asks for that can be answered, also where nothing begins. Of other xids home keeps track, so a tombstone only
saves questions: there are so many, and the one that was written longest ago makes room. Of those whose
tombstones are gone the highest incarnation is kept.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Final, Generic, TypeVar

from hawser.log.state.part import BadState
from hawser.log.state.results import Outcome, Reason, Rejected
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, TransactionId, Xid

__all__ = ["MOST_LANES", "MOST_TOMBSTONES", "Register", "SavedAge", "SavedTombstone"]

MOST_TOMBSTONES: Final = 16_384
MOST_LANES: Final = 131_072

_NOTHING: Final = (0, None, 0)

T = TypeVar("T")
# The fields of the xid, incarnation, outcome.
SavedTombstone = tuple[int, bytes, bytes, int, Outcome]
# For a series of tombstones: the count of marks when they were written, and the number of them.
SavedAge = tuple[int, int]
# Incarnation, outcome, count of marks when it was written.
_Tombstone = tuple[int, Outcome, int]


class Register(Generic[T]):
    """What is kept of each transaction, by its id and in the order in which they began."""

    __slots__ = (
        "_incarnations",
        "_lanes",
        "_live",
        "_most",
        "_most_lanes",
        "_outcomes",
        "forgotten",
        "marks",
    )

    def __init__(self, most_tombstones: int = MOST_TOMBSTONES, most_lanes: int = MOST_LANES) -> None:
        self._most = most_tombstones
        self._most_lanes = most_lanes
        self._live: dict[TransactionId, T] = {}
        # Of each xid the incarnations that are not over, in order.
        self._incarnations: dict[Xid, list[int]] = {}
        # Tombstones, in the order in which they were written: of lanes, and of others.
        self._lanes: dict[Xid, _Tombstone] = {}
        self._outcomes: dict[Xid, _Tombstone] = {}
        # The count of marks so far.
        self.marks = 0
        # No tombstone of a higher incarnation is gone, but for those of lanes and of applications, which
        # number theirs themselves.
        self.forgotten = 0

    def __len__(self) -> int:
        """How many are not over."""
        return len(self._live)

    def __iter__(self) -> Iterator[tuple[TransactionId, T]]:
        return iter(self._live.items())

    def get(self, transaction: TransactionId) -> T | None:
        """What is kept of it, unless it is over or unknown."""
        return self._live.get(transaction)

    def _table(self, xid: Xid) -> dict[Xid, _Tombstone]:
        return self._lanes if xid.format == LANE_FORMAT else self._outcomes

    def outcome(self, transaction: TransactionId) -> Outcome | None:
        """What became of it; None if it is not over, or unknown."""
        incarnation, outcome, _ = self._table(transaction.xid).get(transaction.xid, _NOTHING)
        return outcome if incarnation == transaction.incarnation else None

    def latest(self, xid: Xid) -> int:
        """The latest incarnation that is known; 0 if none is."""
        over = self._table(xid).get(xid, _NOTHING)[0]
        live = self._incarnations.get(xid)
        return max(over, live[-1]) if live else over

    def incarnations(self, xid: Xid) -> list[TransactionId]:
        """Those of this xid that are not over, in order."""
        live = self._incarnations.get(xid)
        return [TransactionId(xid, incarnation) for incarnation in live] if live else []

    def verdict(self, transaction: TransactionId) -> Rejected | None:
        """Why nothing can be done about it; None if it is there, or may begin."""
        if transaction in self._live:
            return None
        xid, incarnation = transaction
        over, outcome, _ = self._table(xid).get(xid, _NOTHING)
        if outcome is not None and over == incarnation:
            return Rejected(Reason.TRANSACTION_OVER, outcome)
        live = self._incarnations.get(xid)
        latest = max(over, live[-1]) if live else over
        return Rejected(Reason.OLD_INCARNATION, latest, incarnation) if latest > incarnation else None

    def why_full(self, xid: Xid) -> Rejected | None:
        """Why no transaction of this xid can begin; None if it can be remembered what becomes of it."""
        if xid in self._lanes or xid.format != LANE_FORMAT:
            return None
        count = len(self._lanes) + len(self._live)
        return Rejected(Reason.TOO_MANY_TRANSACTIONS, count) if count >= self._most_lanes else None

    def may_bury(self, transaction: TransactionId) -> bool:
        """Whether it can be remembered that this one is over; also if it never began."""
        xid = transaction.xid
        has_room = len(self._lanes) < 2 * self._most_lanes
        return has_room or xid.format != LANE_FORMAT or xid in self._lanes or transaction in self._live

    def begin(self, transaction: TransactionId, kept: T) -> None:
        """It is later than all others of its xid."""
        xid, incarnation = transaction
        assert self.latest(xid) < incarnation
        self._live[transaction] = kept
        self._incarnations.setdefault(xid, []).append(incarnation)

    def remove(self, transaction: TransactionId) -> None:
        """It is over, and nobody will ask what became of it."""
        xid, incarnation = transaction
        del self._live[transaction]
        self._incarnations[xid].remove(incarnation)
        if not self._incarnations[xid]:
            del self._incarnations[xid]

    def bury(self, transaction: TransactionId, outcome: Outcome) -> None:
        """It is over, or will never begin."""
        if transaction in self._live:
            self.remove(transaction)
        xid, incarnation = transaction
        table = self._table(xid)
        if table.get(xid, _NOTHING)[0] > incarnation:
            return
        table.pop(xid, None)
        table[xid] = incarnation, outcome, self.marks
        if len(self._outcomes) > self._most:
            oldest = next(iter(self._outcomes))
            self._forget(TransactionId(oldest, self._outcomes.pop(oldest)[0]))

    def _forget(self, transaction: TransactionId) -> None:
        if transaction.xid.format not in (LANE_FORMAT, APPLICATION_FORMAT):
            self.forgotten = max(self.forgotten, transaction.incarnation)

    @property
    def tombstones(self) -> Iterator[tuple[TransactionId, Outcome]]:
        """Those that are over: of lanes, then of others, the oldest first."""
        for xid, (incarnation, outcome, _) in chain(self._lanes.items(), self._outcomes.items()):
            yield TransactionId(xid, incarnation), outcome

    def old(self, marks: int) -> Iterator[TransactionId]:
        """The transactions that are over and that at least so many marks have followed."""
        for table in (self._lanes, self._outcomes):
            for xid, (incarnation, _, written) in table.items():
                if self.marks - written < marks:
                    # Those behind it are not old, either.
                    break
                yield TransactionId(xid, incarnation)

    @property
    def is_remembering(self) -> bool:
        """Whether there are tombstones."""
        return bool(self._lanes or self._outcomes)

    def forget(self, transaction: TransactionId) -> bool:
        """Forget what became of it; whether that was known."""
        if self.outcome(transaction) is None:
            return False
        del self._table(transaction.xid)[transaction.xid]
        self._forget(transaction)
        return True

    def save(self) -> tuple[list[tuple[int, bytes, bytes, int, T]], list[SavedTombstone]]:
        """(those that are not over, tombstones)."""
        live = [(*xid, incarnation, kept) for (xid, incarnation), kept in self._live.items()]
        return live, [
            (*transaction.xid, transaction.incarnation, each) for transaction, each in self.tombstones
        ]

    def ages(self) -> list[SavedAge]:
        """The ages of the tombstones, in their order."""
        written = (each[2] for each in chain(self._lanes.values(), self._outcomes.values()))
        return [(marks, len(list(those))) for marks, those in groupby(written)]

    def load(
        self,
        live: list[tuple[int, bytes, bytes, int, T]],
        tombstones: list[SavedTombstone],
        marks: int,
        ages: Sequence[SavedAge],
    ) -> None:
        """Load a saved state, before any other call; BadState if it is invalid."""
        self.marks = marks
        written = [each for each, count in ages for _ in range(count)]
        if len(written) != len(tombstones) or any(each > marks for each in written):
            raise BadState("the saved ages of outcomes of transactions contradict themselves")
        for form, global_id, branch_id, incarnation, kept in live:
            transaction = TransactionId(Xid(form, global_id, branch_id), incarnation)
            if self.latest(transaction.xid) >= incarnation:
                raise BadState("the saved transactions contradict themselves")
            self.begin(transaction, kept)
        for (form, global_id, branch_id, incarnation, outcome), mark in zip(tombstones, written, strict=True):
            xid = Xid(form, global_id, branch_id)
            self._table(xid)[xid] = incarnation, outcome, mark
        count = len(self._lanes) + len(self._outcomes)
        if count != len(tombstones) or len(self._outcomes) > self._most:
            raise BadState("the saved outcomes of transactions contradict themselves")
