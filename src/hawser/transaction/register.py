"""The register of a shard: transactions that have not ended, and tombstones of those that have.

An xid may have several incarnations that have not ended: earlier ones wait for decisions while its owner uses
the next. A new incarnation must be later than all known ones.

For each xid the register keeps one *tombstone*, the outcome of the latest ended incarnation, so that a
repeated request gets the same answer. Entries remove old tombstones; each tombstone carries the count of
marks at which it was written (`expiry.py`).

| tombstones of | bound | at the bound |
|---|---|---|
| lanes | MOST_LANES, and as many again for rollbacks of ones that never began | an unknown lane is rejected |
| other xids | MOST_TOMBSTONES | the oldest is removed; the highest removed incarnation is kept |

A lane's tombstone never makes room for another: without it, a client that repeats a request would be told of
a rollback, or commit a second time. The coordinator keeps track of other xids, so their tombstones only avoid
questions.
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
# For tombstones written at the same count of marks: that count, and their number.
SavedAge = tuple[int, int]
# Incarnation, outcome, count of marks at which it was written.
_Tombstone = tuple[int, Outcome, int]


class Register(Generic[T]):
    """The transactions of a shard by their ids, in the order of their beginnings, and the tombstones."""

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
        # By xid: the incarnations that have not ended, in order.
        self._incarnations: dict[Xid, list[int]] = {}
        # Tombstones of lanes and of other xids, in the order in which they were written.
        self._lanes: dict[Xid, _Tombstone] = {}
        self._outcomes: dict[Xid, _Tombstone] = {}
        # The count of marks so far.
        self.marks = 0
        # The highest incarnation whose tombstone was removed, except of lanes and applications, which number
        # their incarnations themselves.
        self.forgotten = 0

    def __len__(self) -> int:
        """The number of transactions that have not ended."""
        return len(self._live)

    def __iter__(self) -> Iterator[tuple[TransactionId, T]]:
        return iter(self._live.items())

    def get(self, transaction: TransactionId) -> T | None:
        """The transaction's data; None if it has ended or is unknown."""
        return self._live.get(transaction)

    def _table(self, xid: Xid) -> dict[Xid, _Tombstone]:
        return self._lanes if xid.format == LANE_FORMAT else self._outcomes

    def outcome(self, transaction: TransactionId) -> Outcome | None:
        """The outcome; None if it has not ended or is unknown."""
        incarnation, outcome, _ = self._table(transaction.xid).get(transaction.xid, _NOTHING)
        return outcome if incarnation == transaction.incarnation else None

    def latest(self, xid: Xid) -> int:
        """The latest known incarnation, 0 without one."""
        over = self._table(xid).get(xid, _NOTHING)[0]
        live = self._incarnations.get(xid)
        return max(over, live[-1]) if live else over

    def incarnations(self, xid: Xid) -> list[TransactionId]:
        """The incarnations of this xid that have not ended, in order."""
        live = self._incarnations.get(xid)
        return [TransactionId(xid, incarnation) for incarnation in live] if live else []

    def verdict(self, transaction: TransactionId) -> Rejected | None:
        """The rejection of a request about it; None if it has not ended or may begin."""
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
        """The rejection of a new transaction of this xid while there is no room for its tombstone; None if
        there is."""
        if xid in self._lanes or xid.format != LANE_FORMAT:
            return None
        count = len(self._lanes) + len(self._live)
        return Rejected(Reason.TOO_MANY_TRANSACTIONS, count) if count >= self._most_lanes else None

    def may_bury(self, transaction: TransactionId) -> bool:
        """Whether there is room for the tombstone of this transaction, even if it never began."""
        xid = transaction.xid
        has_room = len(self._lanes) < 2 * self._most_lanes
        return has_room or xid.format != LANE_FORMAT or xid in self._lanes or transaction in self._live

    def begin(self, transaction: TransactionId, kept: T) -> None:
        """Add a transaction, which must be later than all others of its xid."""
        xid, incarnation = transaction
        assert self.latest(xid) < incarnation
        self._live[transaction] = kept
        self._incarnations.setdefault(xid, []).append(incarnation)

    def remove(self, transaction: TransactionId) -> None:
        """Remove it without a tombstone."""
        xid, incarnation = transaction
        del self._live[transaction]
        self._incarnations[xid].remove(incarnation)
        if not self._incarnations[xid]:
            del self._incarnations[xid]

    def bury(self, transaction: TransactionId, outcome: Outcome) -> None:
        """Replace it by a tombstone, also one that never began. If a later incarnation of the xid has a
        tombstone, that one stays and this outcome is not kept. For a lane the caller has made sure that there
        is room (`why_full`, `may_bury`); of the others, the oldest tombstone gives way."""
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
        """The ended transactions: of lanes, then of others, the oldest first."""
        for xid, (incarnation, outcome, _) in chain(self._lanes.items(), self._outcomes.items()):
            yield TransactionId(xid, incarnation), outcome

    def old(self, marks: int) -> Iterator[TransactionId]:
        """The ended transactions whose tombstones at least so many marks have followed."""
        for table in (self._lanes, self._outcomes):
            for xid, (incarnation, _, written) in table.items():
                if self.marks - written < marks:
                    # The later ones are younger.
                    break
                yield TransactionId(xid, incarnation)

    @property
    def is_remembering(self) -> bool:
        """Whether there are tombstones."""
        return bool(self._lanes or self._outcomes)

    def forget(self, transaction: TransactionId) -> bool:
        """Remove its tombstone; False without one."""
        if self.outcome(transaction) is None:
            return False
        del self._table(transaction.xid)[transaction.xid]
        self._forget(transaction)
        return True

    def save(self) -> tuple[list[tuple[int, bytes, bytes, int, T]], list[SavedTombstone]]:
        """(transactions that have not ended, tombstones)."""
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
