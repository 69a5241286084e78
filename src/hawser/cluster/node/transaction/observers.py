"""The observers of transactions on the shards that a node leads: the node's own counters, and those named in
its settings.

A setting names an observer as "module:factory" (`hawser.transaction.participant.observers`); the module is
imported where the node runs.
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
    """The observers of one node. `ended` counts branches by their outcome, `published` and `accepted` the
    records of committed branches, `failures` the errors of observers, and `skipped_batches` the repeated
    batches of applications that had been decided. UsageError if a named observer cannot be imported."""

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
        """The observers of a shard that this node begins to lead."""
        return Observers(shard, _ResidentNames(self._map, shard), self._factories, self._failed)

    def _failed(self, transaction: TransactionId, error: Exception) -> None:
        self.failures += 1
        _log.warning(
            "an observer of transaction %s failed and will not be called again for it",
            transaction,
            exc_info=error,
        )


class _ResidentNames:
    """The name of the topic, or of the queue, on a shard."""

    def __init__(self, shard_map: ShardMap, shard: str) -> None:
        self._map = shard_map
        self._shard = shard
        self._known: dict[bool, str] = {}

    def __call__(self, for_queue: bool) -> str:
        found = self._known.get(for_queue)
        if found is None:
            resident = self._map.on(self._shard).get("queue" if for_queue else "topic")
            if resident is None:
                # The node has no map yet.
                return topic_of(self._shard)
            found = self._known[for_queue] = resident.name
        return found


class _CountingObserver:
    """Counts the work of one transaction, and adds it to the totals at its commit."""

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
        raise UsageError(f"observer {name!r} is a {type(found).__name__}; it must be a function or class")
    return cast(TransactionObserverFactory, found)
