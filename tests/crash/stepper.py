"""Builds and runs tests/crash/native/stepper.cpp."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import compile_program, with_planted_bug

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
SOURCES = Path(__file__).parent / "native"
CACHE = ROOT / "build" / "crash"
# Static: every run is at the same addresses, and no symbol is looked up in the middle of an operation.
FLAGS = ("-O2", "-std=c++20", "-static", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror")
LIMIT_SECONDS = 280


def operations() -> list[str]:
    """The names in the tables of operations."""
    return _operations("operations.hpp", "naming.hpp", "queue_operations.hpp", "queue_reserved.hpp")


def traceable() -> list[str]:
    """Those of a topic and of a queue whose trace is checked with `traced=1`."""
    return _operations("operations.hpp", "queue_operations.hpp")


def _operations(*names: str) -> list[str]:
    texts = [(SOURCES / name).read_text() for name in names]
    tables = [text.split(" table[] = {", 1)[1].split("\n};", 1)[0] for text in texts]
    return [name for table in tables for name in re.findall(r'^ {4}\{"(\w+)"', table, re.MULTILINE)]


def build(with_canaries: bool = False) -> Path:
    """The program, or the one that can be told to have a planted bug; built only when a source changed."""
    digest = hashlib.sha256(repr((FLAGS, with_canaries)).encode())
    for source in sorted([*NATIVE.glob("*.hpp"), *SOURCES.iterdir()]):
        digest.update(source.read_bytes())
    program = CACHE / f"stepper{'-canaries' if with_canaries else ''}-{digest.hexdigest()[:16]}"
    if not program.exists():
        planted = ["-DHAWSER_CANARIES"] if with_canaries else []
        compile_program(SOURCES / "stepper.cpp", program, [*FLAGS, *planted, "-I", str(NATIVE)])
    return program


@contextmanager
def domain_of(operation: str) -> Iterator[Path]:
    """A directory to work in; gone with all that is in it when the block ends."""
    directory = Path(f"/dev/shm/hawser-test-crash-{os.getpid()}-{operation}")
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def sweep(operation: str, mode: str, canary: str = "", /, **options: int) -> "Sweep":
    """Kill or stop `operation` (`mode` kill, stop, both) at every state, and as the options say beyond."""
    with domain_of(operation) as directory:
        return sweep_in(directory, operation, mode, canary, **options)


def sweep_in(directory: Path, operation: str, mode: str, canary: str = "", /, **options: int) -> "Sweep":
    """The same in a domain that is there."""
    settings = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [str(build(bool(canary))), str(directory), operation, mode, *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS + options.get("seconds", 0),
        env=os.environ | (with_planted_bug(canary) if canary else {}),
        pass_fds=[options["agent"]] if "agent" in options else [],
    )
    return Sweep(done.returncode, (done.stdout + done.stderr).strip())


class Sweep:
    """What came of a sweep: `broken` says what was found, or is empty."""

    def __init__(self, status: int, text: str) -> None:
        self.broken = "" if status == 0 else text or f"ended with status {status}"
        counted = re.findall(r"(\w+)=(\d+)", text) if status == 0 else []
        self.counts = {name: int(value) for name, value in counted}
