"""Runs the state machine of local queues: the same steps every time, or new ones for as long as told."""

import time
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.builds import Build

from .local_queue_machine import Machine
from .test_stateful import COMMON

Record = Callable[[str, object], None]

MANY = 150


def run(record_property: Record, chosen: settings) -> None:
    kills, delivered, died = Machine.kills, Machine.delivered, Machine.died
    run_state_machine_as_test(Machine, settings=chosen)
    record_property("kills", Machine.kills - kills)
    record_property("delivered", Machine.delivered - delivered)
    record_property("rejected", Machine.died - died)
    assert Machine.delivered > delivered


@pytest.mark.parametrize("examples", [40, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_queue_does_what_its_twin_does(examples: int, record_property: Record) -> None:
    run(record_property, settings(COMMON, derandomize=True, max_examples=examples))


@pytest.mark.slow
@pytest.mark.parametrize("canary", ["claims_outlive_their_owner"])
def test_a_planted_bug_is_seen(canary: str) -> None:
    done = Build(canary).run("-m", "tests.stateful.steps", "100", "queue")
    assert done.returncode == 1, done.stdout
    assert "AssertionError" in done.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_new_steps_for_as_long_as_told(soak_seconds: float, record_property: Record) -> None:
    until = time.monotonic() + soak_seconds
    while time.monotonic() < until:
        run(record_property, settings(COMMON, max_examples=100, print_blob=True))
