"""Pinned seeds keep every promise and reach every rare path. `make soak` runs new seeds.

A change of the simulator or of what it runs may move the rare paths to other seeds. Then
`python -m tests.simulate.choose_seeds` pins new ones.
"""

import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from hawser.testing.probes import EVERY_MARK
from hawser.testing.simulate import simulate
from tests.simulate.choose_seeds import COUNT, PINNED_FILE

# By seed, the rare paths that it must reach.
PINNED: dict[int, list[str]] = {
    int(seed): probes for seed, probes in json.loads(PINNED_FILE.read_text()).items()
}
SEEDS = list(PINNED)
BLOCK = 10
QUICK_BLOCKS = range(0, 30, BLOCK)
SLOW_BLOCKS = range(30, len(SEEDS), BLOCK)

Record = Callable[[str, object], None]


class Totals:
    """What a number of seeds came to."""

    def __init__(self) -> None:
        self.seeds = self.events = self.committed = self.requests = self.transactions = 0
        self.processor_seconds = 0.0
        self.probes: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()

    def add(self, seed: int) -> Counter[str]:
        """Run a seed, and return how often it came to each rare path."""
        began = time.process_time()
        outcome = simulate(seed)
        self.processor_seconds += time.process_time() - began
        self.seeds += 1
        self.events += outcome.events
        self.committed += outcome.committed
        self.requests += outcome.requests
        self.transactions += outcome.transactions
        self.probes.update(outcome.probes)
        self.deeds.update(outcome.deeds)
        return Counter(outcome.probes)

    def record(self, record_property: Record) -> None:
        record_property("seeds", self.seeds)
        record_property("events", self.events)
        record_property("events a processor second", int(self.events / self.processor_seconds))
        record_property("entries committed", self.committed)
        record_property("requests done", self.requests)
        record_property("transactions committed", self.transactions)
        record_property("faults and orders", sum(self.deeds.values()))


def run_block(first: int, record_property: Record) -> None:
    totals = Totals()
    for seed in SEEDS[first : first + BLOCK]:
        reached = totals.add(seed)
        missed = [mark for mark in PINNED[seed] if not reached[mark]]
        assert not missed, f"seed {seed} no longer reaches {missed}: python -m tests.simulate.choose_seeds"
    totals.record(record_property)


@pytest.mark.parametrize("first", QUICK_BLOCKS)
def test_every_promise_is_kept(first: int, record_property: Record) -> None:
    run_block(first, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW_BLOCKS)
def test_every_promise_is_kept_by_more_seeds(first: int, record_property: Record) -> None:
    run_block(first, record_property)


def test_every_rare_path_is_pinned() -> None:
    pinned = {mark for probes in PINNED.values() for mark in probes}
    assert pinned == set(EVERY_MARK)
    assert len(PINNED) == COUNT


@pytest.mark.soak
@pytest.mark.slow
def test_seeds_for_as_long_as_told(soak_seconds: float, record_property: Record) -> None:
    until = time.monotonic() + soak_seconds
    seed = time.time_ns() // 1_000_000 * 1_000
    totals = Totals()
    while time.monotonic() < until:
        seed += 1
        totals.add(seed)
    totals.record(record_property)
    record_property("last seed", seed)
    record_property("never reached", [name for name in EVERY_MARK if not totals.probes[name]])
