"""Python processes killed at random moments, and a planted bug that this must find."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.builds import Build

Record = Callable[[str, object], None]

KILLS = 300


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(f"/dev/shm/hawser-test-victims-{os.getpid()}")
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made)


def attack(build: Build, directory: Path, seed: int) -> "subprocess.CompletedProcess[str]":
    """Kill in a domain of its own."""
    domain = directory / str(seed)
    domain.mkdir(mode=0o700)
    return build.run("-m", "tests.crash.survivors", f"shm://{domain}", str(KILLS), str(seed))


def test_killed_at_random(directory: Path, record_property: Record) -> None:
    done = attack(Build(), directory, 7)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed_publishers"] > KILLS / 4, "hardly any victim lived long enough to publish"
    for name, value in counts.items():
        record_property(name, value)


def test_canary_is_caught(directory: Path) -> None:
    done = attack(Build("recovery_keeps_bits"), directory, 7)
    assert "AssertionError" in done.stderr


@pytest.mark.soak
def test_killed_for_long(directory: Path, soak_seconds: float, record_property: Record) -> None:
    until = time.monotonic() + soak_seconds
    kills = 0
    while time.monotonic() < until:
        done = attack(Build(), directory, kills)
        assert done.returncode == 0, done.stderr
        kills += KILLS
    record_property("kills", kills)
