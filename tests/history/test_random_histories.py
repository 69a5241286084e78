"""Random histories: right ones are never objected to, and what is planted in them is always found."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.history.events import Event, operations
from tests.history.generate import correct_history
from tests.history.linearizability import Verdict, judge
from tests.history.log_checks import KINDS, check_logs
from tests.history.mutate import MUTATIONS, mutated

Record = Callable[[str, object], None]


def accept(events: list[Event]) -> int:
    """AssertionError if a checker objects; returns the number of operations."""
    found = operations(events)
    assert [str(violation) for violation in check_logs(found)] == []
    for linearization in judge(found).values():
        assert linearization.verdict is Verdict.LINEARIZABLE, str(linearization)
    return len(found)


def plant_all(events: list[Event], seed: int) -> Counter[str]:
    """Plant each violation that has a place, and count them; AssertionError for one that is not found."""
    planted: Counter[str] = Counter()
    for mutation in MUTATIONS:
        name = mutation.__name__
        spoiled = mutated(events, mutation, seed)
        if spoiled is None:
            continue
        kinds = {violation.kind for violation in check_logs(operations(spoiled))}
        assert name in kinds, f"seed {seed}: {name} was planted, {kinds} found"
        planted[name] += 1
    return planted


@pytest.mark.parametrize("with_trims", [True, False])
def test_right_histories_are_never_objected_to(with_trims: bool, record_property: Record) -> None:
    counts = [accept(correct_history(seed, with_trims=with_trims)) for seed in range(300)]
    record_property("histories", len(counts))
    record_property("operations", sum(counts))


def test_what_is_planted_is_found(record_property: Record) -> None:
    planted: Counter[str] = Counter()
    for seed in range(100):
        planted += plant_all(correct_history(seed), seed)
    assert set(planted) == set(KINDS) and min(planted.values()) > 30, planted
    record_property("planted", sum(planted.values()))
    record_property("missed", 0)


def test_a_stale_end_is_not_linearizable_either() -> None:
    stale = next(mutation for mutation in MUTATIONS if mutation.__name__ == "stale")
    judged = 0
    for seed in range(40):
        spoiled = mutated(correct_history(seed, with_trims=False), stale, seed)
        if spoiled is not None:
            judged += 1
            verdicts = [each.verdict for each in judge(operations(spoiled)).values()]
            assert Verdict.VIOLATED in verdicts, f"seed {seed}"
    assert judged > 20


@pytest.mark.soak
def test_soak(soak_seconds: float, record_property: Record) -> None:
    deadline = time.monotonic() + soak_seconds
    seed = 1000
    planted: Counter[str] = Counter()
    while time.monotonic() < deadline:
        seed += 1
        history = correct_history(seed, steps=200 + seed % 800, with_trims=bool(seed % 2))
        accept(history)
        planted += plant_all(history, seed)
    record_property("histories", seed - 1000)
    record_property("planted", sum(planted.values()))
