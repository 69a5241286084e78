"""Storms in a form that takes seconds, the canaries they must catch, and the long form for soaking."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builds import Build

MOST_SHOWN = 10


SCENES = ("topics", "queues")


def storm(build: Build, seed: int, seconds: float, scene: str = "topics") -> dict[str, Any]:
    """The figures of one storm."""
    arguments = ("--scene", scene, "--seed", str(seed), "--seconds", str(seconds))
    done = build.run("-m", "tests.storm.storm", *arguments, limit_seconds=seconds + 200)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def explain(figures: dict[str, Any], scene: str = "topics") -> str:
    shown = "\n".join(figures["violations"][:MOST_SHOWN])
    return f"again: python -m tests.storm.storm --scene {scene} --seed {figures['seed']}\n{shown}"


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


@pytest.mark.slow
def test_a_storm_over_queues_breaks_no_promise(record_property: Callable[[str, object], None]) -> None:
    figures = storm(Build(), seed=1, seconds=12, scene="queues")
    assert not figures["violations"], explain(figures, "queues")
    for name in ("redelivered", "letters", "fenced"):
        assert figures[name] > 0
    assert figures["kills"] > 100
    for name, value in figures.items():
        if name != "violations":
            record_property(name, value)


@pytest.mark.parametrize("scene", SCENES)
def test_a_short_storm_breaks_no_promise(scene: str, record_property: Callable[[str, object], None]) -> None:
    figures = storm(Build(), seed=2, seconds=3, scene=scene)
    assert not figures["violations"], explain(figures, scene)
    record_property("kills", figures["kills"])
    record_property("messages", figures["messages"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "canary"),
    [
        ("topics", "misses_are_not_counted"),
        ("topics", "recovery_keeps_bits"),
        ("queues", "recovery_keeps_bits"),
    ],
)
def test_a_planted_bug_is_seen(
    scene: str, canary: str, record_property: Callable[[str, object], None]
) -> None:
    figures = storm(Build(canary), seed=3, seconds=3, scene=scene)
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
        scene = SCENES[seed % 2]
        figures = storm(Build(), seed, seconds=min(30.0, soak_seconds / 2), scene=scene)
        assert not figures["violations"], explain(figures, scene)
        kills += figures["kills"]
    record_property("kills", kills)
    record_property("last seed", seed)
