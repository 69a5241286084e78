"""Who observes the transactions of the shards that a node leads: its own figures, and those that its settings
name.

An observer is written as "module:factory" (`hawser.transaction.participant.observers`), and imported where
the node runs.
"""

import importlib
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import cast

from hawser.cluster.shard_map import ShardMap, topic_of
from hawser.errors import UsageError
from hawser.log.state.commands import Run
from hawser.log.state.results import Outcome
from hawser.transaction.identity import TransactionId
from hawser.transaction.participant.observers import Observers, TransactionObserverFactory

__all__ = ["ObserverRegistry"]

_log = logging.getLogger("hawser.cluster.node")


class ObserverRegistry:
    """The observers of one node, with the names in `shard_map`: `ended` counts branches by how they ended
    here, `published` and `accepted` the records of those that were committed, `failures` what observers
    raised, `skipped_batches` the batches of applications that came again and had been decided.
    UsageError if one of those that are named cannot be had."""

    def __init__(self, named: Sequence[str], shard_map: ShardMap) -> None:
        self.ended: Counter[Outcome] = Counter()
        self.published = 0
        self.accepted = 0
        self.failures = 0
        self.skipped_batches = 0
        self._map = shard_map
        counting: TransactionObserverFactory = partial(_CountingObserver, self)
        self._factories = (counting, *(_load(each) for each in named))

    def for_shard(self, shard: str) -> Observers:
        """For a shard that this node begins to lead."""
        return Observers(shard, _ResidentNames(self._map, shard), self._factories, self._failed)

    def _failed(self, transaction: TransactionId, error: Exception) -> None:
        self.failures += 1
        _log.warning("an observer of transaction %s failed and is told no more", transaction, exc_info=error)


class _ResidentNames:
    """Of the topic of a shard, or of the queue, which may live with a topic."""

    def __init__(self, shard_map: ShardMap, shard: str) -> None:
        self._map = shard_map
        self._shard = shard
        self._known: dict[bool, str] = {}

    def __call__(self, for_queue: bool) -> str:
        found = self._known.get(for_queue)
        if found is None:
            resident = self._map.on(self._shard).get("queue" if for_queue else "topic")
            if resident is None:
                # Before the node has a map.
                return topic_of(self._shard)
            found = self._known[for_queue] = resident.name
        return found


class _CountingObserver:
    """Counts what one transaction does, and adds it up when that has happened."""

    __slots__ = ("_accepted", "_figures", "_published")

    def __init__(self, figures: ObserverRegistry, transaction: TransactionId, shard: str) -> None:
        self._figures = figures
        self._published = 0
        self._accepted = 0

    def publish(self, target: str, records: int, index: int) -> None:
        self._published += records

    def accept(self, queue: str, runs: Sequence[Run]) -> None:
        for _, count, _ in runs:
            self._accepted += count

    def commit_offsets(self, topic: str, group: str, before: int, after: int) -> None:
        pass

    def prepare(self) -> None:
        pass

    def commit(self) -> None:
        figures = self._figures
        figures.ended[Outcome.COMMITTED] += 1
        figures.published += self._published
        figures.accepted += self._accepted

    def rollback(self, outcome: Outcome) -> None:
        self._figures.ended[outcome] += 1


def _load(name: str) -> TransactionObserverFactory:
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise UsageError(f'observer {name!r} is not written as "module:factory"')
    try:
        found = getattr(importlib.import_module(module), factory)
    except Exception as error:
        raise UsageError(
            f"observer {name!r} cannot be imported: {error}. Is the module installed where the node runs?"
        ) from error
    if not callable(found):
        raise UsageError(f"observer {name!r} is a {type(found).__name__}; a function or class is wanted")
    return cast(TransactionObserverFactory, found)
