"""What the leader of a shard proposes by itself from time to time: to trim old records, to forget idle
producers, and to allow new transactions again if an operator has stopped them for a deletion that did not
happen.

The ages of records and producers are counted in the log (`hawser.log.state.log_time`), because leaders may
change often; the leader advances the log's time. All other periods are the leader's own: a new leader starts
to count anew, which takes seconds.
"""

import time
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import msgspec

from hawser.cluster.node.retention import Retention
from hawser.limits import CLOCK_BOUND_SECONDS
from hawser.log.entry import Kind
from hawser.log.replica import Replica
from hawser.log.state.commands import AdvanceTime, ExpireProducers, TrimTo, encode_command
from hawser.log.state.log_time import LogTime
from hawser.log.state.producers import Producers
from hawser.log.state.queue import Queue
from hawser.log.state.topic import Topic
from hawser.record.recording import is_recorder
from hawser.transaction.commands import BranchLimit, BranchLimitChange
from hawser.transaction.participant.branches import DEFAULT_LIMIT, Branches

__all__ = ["Maintenance", "Now"]

# A trim that groups hold back is proposed again after this time.
_AGAIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 7 * 86_400.0
_MOST_AT_ONCE: Final = 1000
# Longer than an operator needs from stopping transactions to marking the topic as deleted.
_CLOSED_SECONDS: Final = 30.0
# How many entries advance the log's time during the life of a record or producer; this bounds the error of an
# age.
_STEPS: Final = 64
_SHORTEST_STEP_SECONDS: Final = 1.0


class Now(NamedTuple):
    """The time of the log and the time of day, according to a leader whose clock is confirmed."""

    log_ns: int
    wall_ns: int


class Maintenance:
    """The maintenance of one shard during one term."""

    def __init__(self, limit: BranchLimit = DEFAULT_LIMIT) -> None:
        """With the limit of transactions that this node is set to."""
        self._limit = limit
        self._trimmed_to = 0
        self._trimmed_at = 0.0
        self._advanced_at = -inf
        self._looked_at = -inf
        # Since when no transaction may begin on the shard.
        self._closed_at: float | None = None

    def due(
        self,
        replica: Replica,
        retention: Retention,
        is_needed: Callable[[bytes], bool] = lambda producer: False,
        learned: float = inf,
        confirmed: Now | None = None,
    ) -> list[tuple[Kind, bytes]]:
        """The entries to propose now. A needed producer is never forgotten. `learned` is when a complete map,
        with this topic in it, arrived last. Without a confirmed time nothing is removed by age."""
        now = time.monotonic()
        entries = []
        advance = self._advance(replica, retention, now, confirmed)
        if advance is not None:
            entries.append((Kind.ADVANCE_TIME, encode_command(advance)))
        trim = self._trim(replica, retention, now, confirmed)
        if trim is not None:
            entries.append((Kind.TRIM, encode_command(trim)))
        branches = replica.machine.part(Branches)
        is_open = branches.limit.most_open > 0
        is_forsaken = self._is_forsaken(branches, now, learned)
        if is_forsaken or (is_open and branches.limit != self._limit):
            # An operator's entry that stops transactions may be in the log already.
            change = BranchLimitChange(**msgspec.structs.asdict(self._limit), opens=is_forsaken)
            entries.append((Kind.BRANCH_LIMIT, encode_command(change)))
        if confirmed is not None and now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            producers = replica.machine.part(Producers)
            # A queue's offsets are not those of the topic that it may be colocated with.
            is_queue = replica.machine.part(Queue).messages.end > 1
            start = 0 if is_queue else replica.machine.part(Topic).start
            since_ns = confirmed.log_ns - round(_IDLE_SECONDS * 1e9)
            idle = _idle_producers(producers, start, since_ns, is_needed)
            if idle:
                entries.append((Kind.EXPIRE_PRODUCERS, encode_command(ExpireProducers(idle))))
        return entries

    def _advance(
        self, replica: Replica, retention: Retention, now: float, confirmed: Now | None
    ) -> AdvanceTime | None:
        """Advances the log's time while any age matters, even if nothing is written: a member that starts
        later knows earlier times only from the log. A new leader does so at once, and so does one that sees
        its wall clock step."""
        topic, log_time = replica.machine.part(Topic), replica.machine.part(LogTime)
        kept_seconds = []
        if isinstance(retention.most_seconds, int | float) and topic.count:
            kept_seconds.append(retention.most_seconds)
        if len(replica.machine.part(Producers)):
            kept_seconds.append(_IDLE_SECONDS)
        if confirmed is None or not kept_seconds:
            return None
        step_seconds = max(_SHORTEST_STEP_SECONDS, min(kept_seconds) / _STEPS)
        passed_ns = confirmed.log_ns - log_time.now_ns
        # A member that starts later counts from the wall-clock time in the log, so that must be current.
        stepped_ns = abs(confirmed.wall_ns - log_time.wall_ns - passed_ns)
        is_due = (
            passed_ns >= step_seconds * 1e9
            or stepped_ns > CLOCK_BOUND_SECONDS * 10**9
            or (self._advanced_at == -inf and passed_ns > 0)
        )
        if not is_due or now - self._advanced_at < _SHORTEST_STEP_SECONDS:
            return None
        self._advanced_at = now
        return AdvanceTime(log_time.now_ns, confirmed.log_ns, confirmed.wall_ns)

    def _trim(
        self, replica: Replica, retention: Retention, now: float, confirmed: Now | None
    ) -> TrimTo | None:
        """Groups hold a trim back, but keep at most twice the retention."""
        topic, log_time = replica.machine.part(Topic), replica.machine.part(LogTime)
        now_ns = None if confirmed is None else confirmed.log_ns
        offset = retention.start_of(topic, replica.journal, log_time, now_ns)
        if offset is None or (offset == self._trimmed_to and now - self._trimmed_at < _AGAIN_SECONDS):
            return None
        self._trimmed_to, self._trimmed_at = offset, now
        floor = retention.doubled().start_of(topic, replica.journal, log_time, now_ns)
        return TrimTo(offset, floor or 0)

    def _is_forsaken(self, branches: Branches, now: float, learned: float) -> bool:
        """Whether new transactions have been stopped for too long, and the topic still exists."""
        if branches.limit.most_open:
            self._closed_at = None
        elif self._closed_at is None:
            self._closed_at = now
        elif min(now, learned) - self._closed_at > _CLOSED_SECONDS:
            self._closed_at = now
            return True
        return False


def _idle_producers(
    producers: Producers, start: int, since_ns: int, is_needed: Callable[[bytes], bool]
) -> tuple[tuple[bytes, int, int], ...]:
    """The producers to forget, of those idle since then. A recorder is forgotten only once none of its
    records is left, because it resumes from the position in its newest batch."""
    idle = (
        each
        for each in producers.idle_since(since_ns)
        if not is_needed(each[0]) and not (is_recorder(each[0]) and _is_kept(producers, each[0], start))
    )
    return tuple(islice(idle, _MOST_AT_ONCE))


def _is_kept(producers: Producers, name: bytes, start: int) -> bool:
    """Whether the topic, which begins at `start`, still has a record of this producer's newest batch."""
    newest = producers.newest(name)
    return newest is not None and newest[1] + newest[2] > start
