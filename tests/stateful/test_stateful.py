"""Runs the state machine: the same steps every time, or new ones for as long as told."""

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.builds import Build

from .machine import Machine

MANY = 400
# Not shrunk: with real processes that takes minutes, and the steps as found tell enough.
COMMON = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    stateful_step_count=60,
)


def run(record_property: Callable[[str, object], None], chosen: settings, number: int | None = None) -> None:
    steps, kills, missed = Machine.steps, Machine.kills, Machine.missed
    machine = Machine if number is None else seed(number)(Machine)
    run_state_machine_as_test(machine, settings=chosen)
    record_property("steps", Machine.steps - steps)
    record_property("kills", Machine.kills - kills)
    record_property("missed", Machine.missed - missed)


@pytest.mark.parametrize("examples", [60, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_topic_does_what_its_twin_does(
    examples: int, record_property: Callable[[str, object], None]
) -> None:
    missed = Machine.missed
    run(record_property, settings(COMMON, derandomize=True, max_examples=examples))
    # Which steps are taken depends on all that is imported, so the few need not lap anybody.
    assert Machine.missed > missed or examples < MANY


@pytest.mark.slow
@pytest.mark.parametrize("canary", ["misses_are_not_counted", "recovery_keeps_bits"])
def test_a_planted_bug_is_seen(canary: str) -> None:
    done = Build(canary).run("-m", "tests.stateful.steps", "60")
    assert done.returncode == 1, done.stdout
    assert "AssertionError" in done.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_new_steps_for_as_long_as_told(
    soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    until = time.monotonic() + soak_seconds
    number = int(time.time())
    missed = Machine.missed
    while time.monotonic() < until:
        number += 1
        run(record_property, settings(COMMON, max_examples=100, print_blob=True), number)
    assert Machine.missed > missed
