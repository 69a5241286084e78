"""Storms in a form that takes seconds, the canaries they must catch, and the long form for soaking."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builds import Build

MOST_SHOWN = 10


def storm(build: Build, seed: int, seconds: float) -> dict[str, Any]:
    """The figures of one storm."""
    arguments = ("--seed", str(seed), "--seconds", str(seconds))
    done = build.run("-m", "tests.storm.storm", *arguments, limit_seconds=seconds + 200)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def explain(figures: dict[str, Any]) -> str:
    shown = "\n".join(figures["violations"][:MOST_SHOWN])
    return f"again: python -m tests.storm.storm --seed {figures['seed']}\n{shown}"


@pytest.mark.slow
def test_a_storm_breaks_no_promise(record_property: Callable[[str, object], None]) -> None:
    figures = storm(Build(), seed=1, seconds=15)
    assert not figures["violations"], explain(figures)
    assert figures["kills"] > 100
    assert figures["missed"] > 0
    assert figures["refused"] > 0
    for name, value in figures.items():
        if name != "violations":
            record_property(name, value)


def test_a_short_storm_breaks_no_promise(record_property: Callable[[str, object], None]) -> None:
    figures = storm(Build(), seed=2, seconds=3)
    assert not figures["violations"], explain(figures)
    record_property("kills", figures["kills"])
    record_property("messages", figures["messages"])


@pytest.mark.slow
@pytest.mark.parametrize("canary", ["misses_are_not_counted", "recovery_keeps_bits"])
def test_a_planted_bug_is_seen(canary: str, record_property: Callable[[str, object], None]) -> None:
    figures = storm(Build(canary), seed=3, seconds=3)
    record_property("violations", len(figures["violations"]))
    assert figures["violations"], f"{canary} was not seen"


@pytest.mark.soak
@pytest.mark.slow
def test_storms_for_as_long_as_told(
    soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    until = time.monotonic() + soak_seconds
    kills, seed = 0, int(time.time())
    while time.monotonic() < until:
        seed += 1
        figures = storm(Build(), seed, seconds=min(30.0, soak_seconds))
        assert not figures["violations"], explain(figures)
        kills += figures["kills"]
    record_property("kills", kills)
    record_property("last seed", seed)
