"""Scribbles by the thousand, the canary they must catch, and the long form for soaking."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builds import Build


def poison(build: Build, first: int, count: int) -> dict[str, Any]:
    """The figures of `count` scribbles."""
    done = build.run("-m", "tests.poison.poison", "--first", str(first), "--count", str(count))
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def explain(figures: dict[str, Any]) -> str:
    lines = [f"{found['finding']}\n    again: {command(found['seed'])}" for found in figures["findings"]]
    return "\n".join(lines)


def command(seed: int) -> str:
    return f"python -m tests.poison.poison --first {seed}"


@pytest.mark.parametrize(
    ("first", "count"), [(1, 1_000), pytest.param(100_000, 6_000, marks=pytest.mark.slow)]
)
def test_damage_is_refused_or_harmless(
    first: int, count: int, record_property: Callable[[str, object], None]
) -> None:
    figures = poison(Build(), first, count)
    assert not figures["findings"], explain(figures)
    assert figures["refused"] > count // 2
    for name in ("scribbles", "refused", "answered"):
        record_property(name, figures[name])


@pytest.mark.slow
def test_a_planted_bug_is_seen(record_property: Callable[[str, object], None]) -> None:
    figures = poison(Build("lengths_are_not_checked"), 1, 3_000)
    record_property("findings", len(figures["findings"]))
    assert figures["findings"]


@pytest.mark.soak
@pytest.mark.slow
def test_damage_for_as_long_as_told(
    soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    until = time.monotonic() + soak_seconds
    first = int(time.time()) * 1_000
    scribbles = 0
    while time.monotonic() < until:
        figures = poison(Build(), first + scribbles, 5_000)
        assert not figures["findings"], explain(figures)
        scribbles += figures["scribbles"]
    record_property("scribbles", scribbles)
    record_property("first seed", first)
