"""Seeds: every one keeps every promise, and together they come to every rare path."""

import time
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from hawser.testing.marks import EVERY_MARK
from hawser.testing.simulate import simulate

BLOCK = 25
QUICK_BLOCKS = range(4)
SLOW_BLOCKS = range(4, 20)

Record = Callable[[str, object], None]


class Totals:
    """What a number of seeds came to."""

    def __init__(self) -> None:
        self.seeds = self.events = self.committed = self.requests = self.transactions = 0
        self.processor_seconds = 0.0
        self.marks: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()

    def add(self, seed: int) -> None:
        began = time.process_time()
        outcome = simulate(seed)
        self.processor_seconds += time.process_time() - began
        self.seeds += 1
        self.events += outcome.events
        self.committed += outcome.committed
        self.requests += outcome.requests
        self.transactions += outcome.transactions
        self.marks.update(outcome.marks)
        self.deeds.update(outcome.deeds)

    def record(self, record_property: Record) -> None:
        record_property("seeds", self.seeds)
        record_property("events", self.events)
        record_property("events a processor second", int(self.events / self.processor_seconds))
        record_property("entries committed", self.committed)
        record_property("requests done", self.requests)
        record_property("transactions committed", self.transactions)
        record_property("faults and orders", sum(self.deeds.values()))


@cache
def block(number: int) -> Totals:
    """The seeds of one block, run once for all the tests that want them."""
    totals = Totals()
    for seed in range(number * BLOCK + 1, (number + 1) * BLOCK + 1):
        totals.add(seed)
    return totals


@pytest.mark.parametrize("number", QUICK_BLOCKS)
def test_every_promise_is_kept(number: int, record_property: Record) -> None:
    block(number).record(record_property)


@pytest.mark.slow
@pytest.mark.parametrize("number", SLOW_BLOCKS)
def test_every_promise_is_kept_by_more_seeds(number: int, record_property: Record) -> None:
    block(number).record(record_property)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_rare_path_is_reached(record_property: Record) -> None:
    marks: Counter[str] = Counter()
    deeds: Counter[str] = Counter()
    for number in (*QUICK_BLOCKS, *SLOW_BLOCKS):
        marks.update(block(number).marks)
        deeds.update(block(number).deeds)
    for name in EVERY_MARK:
        record_property(name, marks[name])
    record_property("deeds", dict(sorted(deeds.items())))
    assert [name for name in EVERY_MARK if not marks[name]] == []


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
    record_property("never reached", [name for name in EVERY_MARK if not totals.marks[name]])
