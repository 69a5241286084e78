"""The C++ algorithms on ordinary memory: plain, and under the sanitizers."""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import ROOT, build, numbers, with_planted_bug

SOURCES = ROOT / "tests" / "native"
SANITIZERS = {"plain": "", "thread": "thread", "address": "address,undefined"}
PROGRAMS = sorted(source.stem for source in SOURCES.glob("*.cpp"))
ROUNDS = {
    "stress": {"plain": "3000", "thread": "1500", "address": "1500"},
    "queue_stress": {"plain": "1000", "thread": "400", "address": "400"},
}
LIMIT_SECONDS = 120
REPORTED_BY_THE_SANITIZER = 66


def tool(name: str) -> str:
    """A build tool of this environment, or of the system."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    assert found, f"{name} is not installed; `make setup` does that"
    return found


@functools.cache
def built(flavour: str) -> Path:
    """The folder with every test program of one flavour, as new as its sources."""
    folder = ROOT / "build" / f"tests-{flavour}"
    sanitize = f"-DHAWSER_SANITIZE={SANITIZERS[flavour]}"
    ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    configure = [tool("cmake"), "-S", str(ROOT), "-B", str(folder), *ninja, "-DHAWSER_TESTS=ON", sanitize]
    for command in (configure, [tool("cmake"), "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("flavour", SANITIZERS)
def test_program(flavour: str, program: str, record_property: Callable[[str, object], None]) -> None:
    arguments = [ROUNDS[program][flavour]] if program in ROUNDS else []
    run_program(flavour, program, arguments, record_property)


# A planted bug, and the program that must not survive it.
PLANTED = {
    "idle_before_publish": "stress",
    "recovery_takes_all_loans": "stress",
    "undone_slots_are_lent": "queue_stress",
    "claims_of_the_living_return": "queue_stress",
    "lease_of_the_moment": "claiming",
}


def with_canaries(name: str) -> Path:
    """The program, watched by a sanitizer, that can be told which planted bug to have."""
    sanitized = ["-O0", "-g", "-fsanitize=thread", "-Wno-tsan"]
    return build(SOURCES / f"{name}.cpp", [*sanitized, "-DHAWSER_CANARIES"])


@pytest.mark.parametrize("canary", PLANTED)
def test_a_planted_bug_does_not_survive(canary: str) -> None:
    name = PLANTED[canary]
    program = with_canaries(name)
    # It ends when the bug shows, which may take a while.
    command = [str(program), *([str(10 * int(ROUNDS[name]["thread"]))] if name in ROUNDS else [])]
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"} | with_planted_bug(canary)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT_SECONDS
    )
    assert done.returncode in (REPORTED_BY_THE_SANITIZER, -signal.SIGABRT), done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("program", ROUNDS)
def test_stress_for_long(
    program: str, soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    rounds = str(max(1, int(soak_seconds * (150 if program == "stress" else 60))))
    run_program("thread", program, [rounds], record_property, limit_seconds=soak_seconds * 10 + 60)


def run_program(
    flavour: str,
    program: str,
    arguments: list[str],
    record_property: Callable[[str, object], None],
    limit_seconds: float = LIMIT_SECONDS,
) -> None:
    """Run a test program; any failed check and any sanitizer's report is a failure."""
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [str(built(flavour) / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=limit_seconds,
    )
    assert done.returncode == 0, f"{program} ({flavour}) ended with {done.returncode}:\n{done.stderr}"
    assert done.stderr == ""
    for name, value in numbers(done.stdout).items():
        record_property(name, value)
