"""Threads share every public object with every method: plain, with a planted bug, under ThreadSanitizer."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import hawser
import tests.hostile.shared_objects  # noqa: F401  # its uses are registered
from hawser.api.message import ValueLoop
from tests.hostile.shared_scene import covered
from tests.support.builds import Build
from tests.support.programs import numbers

SECONDS = 3.0
Record = Callable[[str, object], None]


def share(build: Build, seed: int, seconds: float = SECONDS) -> Any:
    """The program, run to its end."""
    arguments = ["-m", "tests.hostile.shared_objects", "--seed", str(seed), "--seconds", str(seconds)]
    return build.run(*arguments, limit_seconds=seconds * 3 + 240)


def run_well(build: Build, seed: int, record_property: Record, seconds: float = SECONDS) -> None:
    done = share(build, seed, seconds)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr[-8000:]}"
    assert done.stderr == ""
    for name, value in numbers(done.stdout).items():
        record_property(name, value)


# What threads share. On one host every public name of these must be used by some thread.
SHARED: list[type[Any]] = [
    hawser.Bus,
    hawser.Topic,
    hawser.Publisher,
    hawser.Subscription,
    hawser.Sample,
    hawser.Loan,
    hawser.Queue,
    hawser.Consumer,
    hawser.Message,
    hawser.Messages,
    hawser.Values,
    ValueLoop,
]


@pytest.mark.parametrize("shared", SHARED)
def test_every_method_is_used(shared: type[Any]) -> None:
    names = {*dir(shared), *vars(shared).get("__annotations__", {})} - {*dir(list)}
    public = {f"{shared.__name__}.{name}" for name in names if not name.startswith("_")}
    inherited = {
        f"{shared.__name__}.{method.split('.')[1]}" for method in covered if method.startswith("Sample.")
    }
    assert public - covered - (inherited if issubclass(shared, hawser.Sample) else set()) == set()


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_share_every_object(seed: int, record_property: Record) -> None:
    run_well(Build(), seed, record_property)


@pytest.mark.slow
def test_a_planted_bug_is_seen() -> None:
    done = share(Build("others_are_put_back"), 1, 4 * SECONDS)
    assert done.returncode == 1 and done.stderr


@pytest.mark.slow
def test_threads_share_every_object_under_the_thread_sanitizer(record_property: Record) -> None:
    run_well(Build(sanitizer="thread"), 3, record_property)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["", "thread"])
def test_threads_share_every_object_for_long(
    sanitizer: str, soak_seconds: float, record_property: Record
) -> None:
    until, seed = time.monotonic() + soak_seconds, int(time.time())
    while time.monotonic() < until:
        run_well(Build(sanitizer=sanitizer), seed, record_property, 10 * SECONDS)
        seed += 1
