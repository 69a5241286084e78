"""The bare futex round trip: in C++ if there is a compiler, and in Python through ctypes."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

from hawser.bench.contest import RoundTrip
from hawser.bench.machine import two_cores
from hawser.bench.processes import Gate, now_ns

FUTEX_CALL = 202  # x86-64
FUTEX_WAIT = 0
FUTEX_WAKE = 1
WORD_STRIDE = 64


def compiler() -> str | None:
    """The path of the C++ compiler; None if there is none."""
    return shutil.which("g++") or shutil.which("clang++")


def compile_program(directory: Path) -> Path | None:
    """Build the C++ program in `directory`; None if there is no compiler."""
    command = compiler()
    if command is None:
        return None
    program = directory / "futex"
    with as_file(files("hawser.bench.peers") / "futex.cpp") as source:
        subprocess.run([command, "-O2", "-std=c++20", "-o", str(program), str(source)], check=True)
    return program


def run_program(program: Path, trip: RoundTrip) -> list[float]:
    """The nanoseconds of one round trip in each block."""
    near, far = two_cores()
    numbers = [near, far, trip.rounds, trip.blocks]
    done = subprocess.run(
        [str(program), *map(str, numbers)], check=True, capture_output=True, text=True, timeout=120
    )
    return [float(line) for line in done.stdout.split()]


class _Words:
    """Two words in a file that both sides map."""

    def __init__(self, shared: str) -> None:
        path = Path(shared, "futex")
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._words = [ctypes.c_uint32.from_buffer(self._memory, WORD_STRIDE * side) for side in (0, 1)]
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = [ctypes.c_long, ctypes.c_void_p, *[ctypes.c_long] * 2, *[ctypes.c_void_p] * 3]
        self._addresses = [ctypes.addressof(word) for word in self._words]

    def hand_over(self, side: int, value: int) -> None:
        self._words[side].value = value
        self._call(FUTEX_CALL, self._addresses[side], FUTEX_WAKE, 1, None, None, None)

    def wait_for(self, side: int, value: int) -> None:
        word = self._words[side]
        while (seen := word.value) != value:
            self._call(FUTEX_CALL, self._addresses[side], FUTEX_WAIT, seen, None, None, None)


def echo(shared: str, trip: RoundTrip, gate: Gate) -> None:
    words = _Words(shared)
    gate.start()
    for value in range(1, trip.rounds * trip.blocks + 1):
        words.wait_for(0, value)
        words.hand_over(1, value)
    gate.finish()


def ask(shared: str, trip: RoundTrip, gate: Gate) -> None:
    words = _Words(shared)
    gate.start()
    blocks, value = [], 0
    for _ in range(trip.blocks):
        started = now_ns()
        for _ in range(trip.rounds):
            value += 1
            words.hand_over(0, value)
            words.wait_for(1, value)
        blocks.append((now_ns() - started) / trip.rounds)
    gate.finish(blocks)
