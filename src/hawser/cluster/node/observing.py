"""Who observes the transactions of the shards that a node leads: those that its settings name, and its own
figures.

An observer is written as "module:factory" (`hawser.transaction.observers`), and imported where the node runs.
"""

import importlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import cast

from hawser.errors import UsageError
from hawser.log.state.results import Outcome
from hawser.transaction.identity import TransactionId
from hawser.transaction.observers import Observers, TransactionObserver, TransactionObserverFactory

__all__ = ["Observing"]

_log = logging.getLogger("hawser.cluster.node")


class Observing:
    """The observers of one node: `ended` counts branches by how they ended here, `failures` what observers
    raised. UsageError if one of those that are named cannot be had."""

    def __init__(self, named: Sequence[str]) -> None:
        self.ended: Counter[Outcome] = Counter()
        self.failures = 0
        self._factories = (self._count, *(_load(each) for each in named))
        self._counting = _Counting(self.ended)

    def observers(self) -> Observers:
        """For a shard that this node begins to lead."""
        return Observers(self._factories, self._failed)

    def _count(self, transaction: TransactionId) -> TransactionObserver:
        return self._counting

    def _failed(self, transaction: TransactionId, error: Exception) -> None:
        self.failures += 1
        _log.warning("an observer of transaction %s failed and is told no more", transaction, exc_info=error)


class _Counting:
    """Observes all transactions at once: it keeps nothing of any."""

    def __init__(self, ended: Counter[Outcome]) -> None:
        self._ended = ended

    def publish(self, records: int, for_queue: bool) -> None:
        pass

    def accept(self, shelf: int, messages: int) -> None:
        pass

    def prepare(self) -> None:
        pass

    def commit(self) -> None:
        self._ended[Outcome.COMMITTED] += 1

    def rollback(self, outcome: Outcome) -> None:
        self._ended[outcome] += 1


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
