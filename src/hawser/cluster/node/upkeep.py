"""What the leader of a shard proposes by itself, now and then: to forget old records and idle producers, and
to let transactions begin again where an operator that wanted to delete the topic has not come to it.

Everything it knows of time is its own: a new leader begins to count anew, so nothing is forgotten too early.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Final

from hawser.cluster.node.retention import Retention
from hawser.log.entry import Kind
from hawser.log.replica import Replica
from hawser.log.state.commands import ExpireProducers, TrimTo, encode_command
from hawser.log.state.producers import Producers
from hawser.log.state.queue import Queue
from hawser.log.state.topic import Topic
from hawser.record.origin import is_recorder
from hawser.transaction.branches import DEFAULT_LIMIT, Branches

__all__ = ["Upkeep"]

# A trim that groups hold back is asked for again after so many seconds.
_AGAIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 7 * 86_400.0
_MOST_AT_ONCE: Final = 1000
# Longer than an operator needs between closing a shard and marking its topic as deleted.
_CLOSED_SECONDS: Final = 30.0


class Upkeep:
    """Of one shard, as long as this node leads it."""

    def __init__(self) -> None:
        self._trimmed_to = 0
        self._trimmed_at = 0.0
        self._looked_at = 0.0
        # Since when no transaction may begin here.
        self._closed_at: float | None = None
        # (incarnation, sequence) of each producer, and since when it is that.
        self._producers: dict[bytes, tuple[int, int, float]] = {}

    def due(
        self,
        replica: Replica,
        retention: Retention,
        is_needed: Callable[[bytes], bool] = lambda producer: False,
        learned: float = inf,
    ) -> list[tuple[Kind, bytes]]:
        """The entries that are to be proposed now. A producer that is needed is not forgotten, however long
        it is idle. The topic was still there when an operator told the whole map, at `learned`."""
        now = time.monotonic()
        entries = []
        trim = self._trim(replica, retention, now)
        if trim is not None:
            entries.append((Kind.TRIM, encode_command(trim)))
        if self._is_forsaken(replica.machine.part(Branches), now, learned):
            entries.append((Kind.BRANCH_LIMIT, encode_command(DEFAULT_LIMIT)))
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            producers = replica.machine.part(Producers)
            # Offsets of a queue are no offsets of the topic that it may live with.
            is_queue = replica.machine.part(Queue).messages.end > 1
            start = 0 if is_queue else replica.machine.part(Topic).start
            idle = self._idle_producers(producers, start, now)
            idle = tuple(each for each in idle if not is_needed(each[0]))[:_MOST_AT_ONCE]
            if idle:
                entries.append((Kind.EXPIRE_PRODUCERS, encode_command(ExpireProducers(idle))))
        return entries

    def _trim(self, replica: Replica, retention: Retention, now: float) -> TrimTo | None:
        """Groups hold it back, up to as much again as is kept anyway."""
        topic = replica.machine.part(Topic)
        offset = retention.start_of(topic, replica.journal)
        if offset is None or (offset == self._trimmed_to and now - self._trimmed_at < _AGAIN_SECONDS):
            return None
        self._trimmed_to, self._trimmed_at = offset, now
        return TrimTo(offset, retention.doubled().start_of(topic, replica.journal) or 0)

    def _is_forsaken(self, branches: Branches, now: float, learned: float) -> bool:
        """Whether transactions were kept from beginning for so long that nobody can want it any more, and the
        topic was not deleted by then."""
        if branches.limit.most_open:
            self._closed_at = None
        elif self._closed_at is None:
            self._closed_at = now
        elif min(now, learned) - self._closed_at > _CLOSED_SECONDS:
            self._closed_at = now
            return True
        return False

    def _idle_producers(
        self, producers: Producers, start: int, now: float
    ) -> tuple[tuple[bytes, int, int], ...]:
        """Recorders only once nothing of theirs is left: where one goes on is read from its newest batch."""
        seen = {}
        for name, incarnation, last in producers:
            before = self._producers.get(name)
            same = before is not None and before[:2] == (incarnation, last)
            seen[name] = before if same and before is not None else (incarnation, last, now)
        self._producers = seen
        return tuple(
            (name, incarnation, last)
            for name, (incarnation, last, since) in seen.items()
            if now - since > _IDLE_SECONDS and not (is_recorder(name) and _is_kept(producers, name, start))
        )


def _is_kept(producers: Producers, name: bytes, start: int) -> bool:
    """Whether the topic, which begins at `start`, still has something of this producer's newest batch."""
    newest = producers.newest(name)
    return newest is not None and newest[1] + newest[2] > start
