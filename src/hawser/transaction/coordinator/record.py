"""The coordinator's record of a transaction, kept until every participant has heard the outcome."""

from enum import IntEnum

import msgspec

from hawser.log.state.results import Outcome
from hawser.transaction.commands import Counts
from hawser.transaction.identity import DEFAULT_TIMEOUT_SECONDS
from hawser.transaction.xa.table import State

__all__ = ["Phase", "Record", "state_of"]


class Phase(IntEnum):
    """The steps of a transaction (`ledger.py`). The numbers are stored."""

    ACTIVE = 1
    CLOSED = 2
    PREPARED = 3
    DECIDED = 4


class Record(msgspec.Struct, array_like=True):
    """`armed` is the index of the entry from which the timeout runs; `waiting` are the shards that have not
    heard the outcome; `heuristic` is the reason of a decision by a person, until it is forgotten;
    `acknowledged` tells that a caller has learned of the rollback."""

    phase: Phase
    armed: int
    one_phase: bool = False
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    outcome: Outcome | None = None
    acknowledged: bool = False
    heuristic: str = ""
    # By session: its worker, and whether it has suspended its work.
    sessions: dict[str, tuple[int, bool]] = {}
    workers: int = 0
    # By shard: the operations that each worker has staged there.
    participants: dict[str, dict[int, int]] = {}
    waiting: list[str] = []
    # Batches for shards without a branch: their number; by shard the number of the delivery before, and the
    # batch.
    delivery: int = 0
    deliveries: dict[str, tuple[int, bytes]] = {}
    # For a branch of an application's batch.
    query: bytes = b""
    batch: int = 0
    orphan_seconds: int = 0
    # The names of calls that are answered when the votes are in.
    asked: list[bytes] = []

    def state(self, session: str) -> State:
        """The state as this session sees it. Without a decision or a close it is ELSEWHERE if only other
        sessions work in the transaction or have suspended work, and ENDED if none does."""
        relation = self.sessions.get(session)
        if self.outcome is not None:
            return self._decided(self.outcome, relation)
        if self.phase is Phase.PREPARED:
            return State.PREPARED
        if self.phase is Phase.CLOSED:
            return State.COMMITTING if self.one_phase else State.PREPARING
        if relation is not None:
            return State.SUSPENDED if relation[1] else State.ASSOCIATED
        return State.ELSEWHERE if self.sessions else State.ENDED

    def _decided(self, outcome: Outcome, relation: tuple[int, bool] | None) -> State:
        if self.heuristic:
            committed = outcome is Outcome.COMMITTED
            return State.HEURISTIC_COMMIT if committed else State.HEURISTIC_ROLLBACK
        state = State.ROLLED_BACK if self.acknowledged else state_of(outcome)
        return state if relation is None else _UNAWARE.get(state, (state, state))[relation[1]]

    def counts(self, shard: str) -> Counts:
        """As they are named to the shard."""
        return tuple(sorted(self.participants[shard].items()))


# States that an associated or suspended session has not learned of yet.
_UNAWARE = {
    State.FAILED: (State.FAILED_ASSOCIATED, State.FAILED_SUSPENDED),
    State.TIMED_OUT: (State.TIMED_OUT_ASSOCIATED, State.TIMED_OUT_SUSPENDED),
}


def state_of(outcome: Outcome) -> State:
    """The state of a transaction with this outcome for sessions that are not associated."""
    states = {
        Outcome.COMMITTED: State.COMMITTED,
        Outcome.ROLLED_BACK: State.ROLLED_BACK,
        Outcome.TIMED_OUT: State.TIMED_OUT,
        Outcome.READ_ONLY: State.UNKNOWN,
    }
    return states.get(outcome, State.FAILED)
