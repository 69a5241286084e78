"""Measure the journal on a real disk: group commit against bare writes and syncs, opening, reading.

Run as a program: prints one line of JSON for each figure, with the machine and its load. Group commit takes
turns with the bare loop in one run, round by round, with the same batches into a file reserved in the same
way; the ratio is of the medians. The other figures are read from the page cache.

    python bench/journal.py --directory /var/tmp --rounds 20
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hawser.bench.machine import describe
from hawser.cluster.disk import Disk
from hawser.log.entry import Entry
from hawser.log.journal import Journal, Settings

# Entries of a batch and bytes of an entry.
BATCHES = ((1, 256), (64, 256), (16, 4096), (4, 65536))
SCANNED_SIZES = (256, 4096, 65536)
BATCHES_A_ROUND = 20
SCANNED_BYTES = 128 << 20
COMMIT_TARGET = 0.8
SCAN_TARGET_GIGABYTES = 1.0
SCAN_TARGET_FROM_BYTES = 4096


def seconds_of(act: Callable[[], object]) -> float:
    """How long it takes once."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def made(first: int, count: int, size: int) -> list[Entry]:
    payload = os.urandom(size)
    return [Entry.make(1, index, 1, payload) for index in range(first, first + count)]


class Bare:
    """The least that makes batches durable: one write and one sync each."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._file, 0, size)
        self._end = 0

    def commit(self, batches: list[bytes]) -> None:
        for batch in batches:
            os.pwrite(self._file, batch, self._end)
            os.fdatasync(self._file)
            self._end += len(batch)

    def close(self) -> None:
        os.close(self._file)


def commit(journal: Journal, batches: list[list[Entry]]) -> None:
    """The same through the journal."""
    for batch in batches:
        journal.append(batch)
        journal.sync()


def group_commit(directory: Path, entries: int, size: int, rounds: int) -> dict[str, Any]:
    """Batches a second of both, in turns."""
    room = (rounds + 1) * BATCHES_A_ROUND * entries * (size + 32)
    disk = Disk(directory / "journal")
    journal = Journal.format(disk, "bench", "bench.1", Settings(segment_bytes=room))
    bare = Bare(directory / "bare", room)
    taken: dict[str, list[float]] = {"journal": [], "bare": []}
    for turn in range(rounds + 1):
        batches = []
        for batch in range(BATCHES_A_ROUND):
            batches.append(made(1 + (turn * BATCHES_A_ROUND + batch) * entries, entries, size))
        joined = [b"".join(entry.frame for entry in batch) for batch in batches]
        turns: list[tuple[str, Callable[[], None]]] = [
            ("bare", lambda joined=joined: bare.commit(joined)),  # type: ignore[misc]
            ("journal", lambda batches=batches: commit(journal, batches)),  # type: ignore[misc]
        ]
        # Who goes first changes, so that neither always finds the disk as the other left it.
        for name, act in turns if turn % 2 else turns[::-1]:
            taken[name].append(seconds_of(act))
    bare.close()
    disk.close()
    # The first round touches everything for the first time.
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    ratio = medians["bare"] / medians["journal"]
    return {
        "figure": "append and group commit, ratio to bare pwrite and fdatasync",
        "entries": entries,
        "bytes": size,
        "commits_a_second": round(BATCHES_A_ROUND / medians["journal"]),
        "bare_commits_a_second": round(BATCHES_A_ROUND / medians["bare"]),
        "ratio": round(ratio, 3),
        "target": COMMIT_TARGET,
        "met": ratio >= COMMIT_TARGET,
    }


def scanning(directory: Path, size: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Gigabytes a second of opening, verifying and reading what is in the page cache."""
    disk = Disk(directory)
    journal = Journal.format(disk, "bench", "bench.1")
    count = SCANNED_BYTES // (size + 32)
    for first in range(1, count + 1, 64):
        journal.append(made(first, min(64, count + 1 - first), size))
    journal.settle()
    scanned = count * (size + 32)

    def verify() -> None:
        for _ in journal.verify():
            pass

    def read() -> None:
        index = 1
        while index <= count:
            index = journal.read(index, count, 1 << 20)[-1].index + 1

    journal = Journal.open(disk)
    deeds = {"open": lambda: Journal.open(disk), "verify": verify, "read": read}
    for name, act in deeds.items():
        gc.collect()
        median = statistics.median(seconds_of(act) for _ in range(repeats))
        rate = scanned / median / 1e9
        line = {"figure": f"{name}, gigabytes a second", "bytes": size, "rate": round(rate, 2)}
        if name != "read" and size >= SCAN_TARGET_FROM_BYTES:
            line |= {"target": SCAN_TARGET_GIGABYTES, "met": rate >= SCAN_TARGET_GIGABYTES}
        yield line
    disk.close()


def figures(directory: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """All of them, as they are measured."""
    for entries, size in BATCHES:
        place = directory / f"commit-{entries}-{size}"
        place.mkdir()
        yield group_commit(place, entries, size, rounds)
        shutil.rmtree(place)
    for size in SCANNED_SIZES:
        place = directory / f"scan-{size}"
        yield from scanning(place, size, repeats=5)
        shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=20, help=f"of {BATCHES_A_ROUND} commits a side")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="hawser-journal-", dir=arguments.directory) as name:
        for line in figures(Path(name), arguments.rounds):
            print(json.dumps(line | describe()), flush=True)
            missed = missed or not line.get("met", True)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
