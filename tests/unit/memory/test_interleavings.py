"""Every interleaving of a few processes running the real headers, killed at any step.

Exhaustive under sequential consistency, where a scenario says `preemptions=all`; tests/models/rc11.py answers
for the memory orders. Each planted bug must be found.
"""

import functools
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.programs import ROOT, build, numbers, with_planted_bug

SOURCE = ROOT / "tests" / "native" / "explore" / "explore.cpp"
SCENARIOS_FILE = SOURCE.with_name("scenarios.hpp")
SCENARIOS = re.findall(r'^    \{"(\w+)", ', SCENARIOS_FILE.read_text(encoding="utf-8"), re.MULTILINE)
KERNEL_FILE = SOURCE.with_name("kernel.hpp")
SYSTEM_CALLS = re.findall(
    r"__real_(\w+)\(", KERNEL_FILE.read_text(encoding="utf-8").split("explore_sleep")[0]
)
LEAST_SCHEDULES = 200_000
LIMIT_SECONDS = 600

# A planted bug, and a scenario that must show it.
PLANTED = {
    "take_without_second_look": "lapped_on_ring_1",
    "references_before_ring": "borrow_against_take",
    "idle_before_publish": "two_publishers",
    "head_is_never_helped": "two_publishers",
    "recovery_keeps_loans": "killed_publisher",
    "recovery_keeps_bits": "killed_and_recovered",
    "recovery_takes_all_loans": "publisher_comes_back",
    "entry_freed_before_bits": "rejoin",
    "join_without_second_look": "reliable_join",
    "joins_are_not_noticed": "reliable_join",
    "misses_are_not_counted": "lapped_on_ring_1",
    "copy_without_second_look": "copied_while_lapped",
    "sleep_without_flag": "sleeping_subscriber",
    "claim_without_bit": "claimed_too_long",
    "accept_by_store": "claimed_too_long",
    "unclaimed_positions_are_reused": "put_against_claim",
    "undone_slots_are_lent": "released_and_claimed",
    "claims_outlive_their_owner": "killed_consumer",
    "claims_of_the_living_return": "killed_consumer",
    "claimed_ones_are_not_passed": "two_consumers",
    "release_without_hint": "sleeping_for_a_return",
    "moved_without_pin": "buried_after_a_death",
    "runs_wait_for_nobody": "run_held_up",
    "runs_claim_again": "two_claim_runs",
}


@functools.cache
def explorer(with_canaries: bool = False) -> Path:
    """The explorer, perhaps one that can be told which planted bug to have."""
    wrapped = "-Wl," + ",".join(f"--wrap={name}" for name in sorted(set(SYSTEM_CALLS)))
    planted = ["-DHAWSER_CANARIES"] if with_canaries else []
    # A fortified longjmp refuses to change stacks.
    return build(SOURCE, ["-U_FORTIFY_SOURCE", "-O2", "-DHAWSER_EXPLORE", *planted, wrapped])


def explore(scenario: str, canary: str = "", *options: str, limit_seconds: float = LIMIT_SECONDS) -> str:
    """What the explorer says about a scenario."""
    command = [str(explorer(bool(canary))), f"scenario={scenario}", *options]
    environment = os.environ | (with_planted_bug(canary) if canary else {})
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=limit_seconds, env=environment
    )
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_SECONDS)
def test_every_scenario_holds(record_property: Callable[[str, object], None]) -> None:
    explorer()
    with ThreadPoolExecutor(max_workers=2) as pool:
        outputs = list(pool.map(explore, SCENARIOS))
    schedules = 0
    for scenario, output in zip(SCENARIOS, outputs, strict=True):
        assert output.startswith(f"{scenario}: OK "), output
        counts = numbers(output)
        schedules += counts["schedules"]
        record_property(scenario, f"{counts['schedules']} schedules {counts['states']} states")
    record_property("schedules", schedules)
    assert schedules >= LEAST_SCHEDULES


@pytest.mark.parametrize(
    "scenario",
    [
        "lapped_on_ring_2",
        "rejoin",
        "sleeping_publisher",
        "put_against_claim",
        "put_run_against_claim_run",
        "two_claim_runs",
    ],
)
def test_a_quick_scenario_holds(scenario: str, record_property: Callable[[str, object], None]) -> None:
    output = explore(scenario)
    assert output.startswith(f"{scenario}: OK "), output
    record_property("schedules", numbers(output)["schedules"])


@pytest.mark.slow
def test_every_planted_bug_is_found(record_property: Callable[[str, object], None]) -> None:
    explorer(with_canaries=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        outputs = list(pool.map(explore_planted, PLANTED))
    for canary, output in zip(PLANTED, outputs, strict=True):
        assert f"{PLANTED[canary]}: VIOLATION: " in output, f"{canary} was not found: {output}"
        record_property(canary, f"found after {numbers(output)['schedules']} schedules")


def explore_planted(canary: str) -> str:
    """Two preemptions are enough for every planted bug."""
    return explore(PLANTED[canary], canary, "preemptions=2")


# Whoever sleeps beside the dead is woken by the clock, which stands still here while one process runs alone.
@pytest.mark.soak
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if not name.startswith("sleeping")])
def test_with_two_kills(
    scenario: str, soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    limit = f"seconds={soak_seconds:.0f}"
    output = explore(
        scenario, "", "preemptions=all", "kills=2", limit, limit_seconds=soak_seconds + LIMIT_SECONDS
    )
    assert f"{scenario}: OK " in output or f"{scenario}: LIMIT " in output, output
    record_property("exhausted", " OK " in output)
    record_property("schedules", numbers(output)["schedules"])
