"""Scribbles over copies of topics and queues: `python -m tests.poison.poison --first 1`. Prints JSON.

The seeds run in a child that writes down which one it is at; a child that dies or hangs is a finding, and
the next child goes on behind that seed.
"""

import argparse
import io
import json
import logging
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import hawser

from .attack import DEPTHS, PUBLISHED, make_template
from .queue_attack import make_queue_template

HANG_SECONDS = 20
MOST_FINDINGS = 20


def run_seeds(directory: Path, seeds: range, place: mmap.mmap, report: int) -> None:
    """In the child: one line of JSON for each finding, and one for the counts. Never returns."""
    logging.disable()
    makers = (make_template, make_queue_template)
    templates = [make(directory, depth, count) for make in makers for depth in DEPTHS for count in PUBLISHED]
    strange: list[str] = []

    def unraisable(found: Any) -> None:
        sys.__unraisablehook__(found)  # as it is without a hook: it refers to what it is told
        if not isinstance(found.exc_value, hawser.HawserError):
            strange.append(repr(found.exc_value))

    sys.unraisablehook = unraisable
    refused = answered = 0
    for seed in seeds:
        sys.stderr = io.StringIO()
        place[:8] = seed.to_bytes(8, "little")
        signal.alarm(HANG_SECONDS)
        template = random.Random(seed).choice(templates)
        attack = template.attack(directory, template, seed)
        try:
            attack.run()
            assert not strange, strange
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} in {last.name}; {attack.damage}"
            os.write(report, json.dumps({"seed": seed, "finding": text}).encode() + b"\n")
            strange.clear()
        refused += attack.twin.refused
        answered += attack.twin.answered
    os.write(report, json.dumps({"refused": refused, "answered": answered}).encode() + b"\n")
    os._exit(0)


def poison(first: int, count: int) -> dict[str, Any]:
    """Run the seeds, each in some child; the figures."""
    figures: dict[str, Any] = {"scribbles": 0, "refused": 0, "answered": 0, "findings": []}
    seed = first
    while seed < first + count and len(figures["findings"]) < MOST_FINDINGS:
        directory = Path(tempfile.mkdtemp(prefix="hawser-test-poison-", dir="/dev/shm"))
        report = directory / "report"
        place = mmap.mmap(-1, 8)
        process = os.fork()
        if process == 0:
            file = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            run_seeds(directory, range(seed, first + count), place, file)
        _, status = os.waitpid(process, 0)
        at = int.from_bytes(place[:8], "little")
        for line in report.read_text().splitlines():
            told = json.loads(line)
            if "finding" in told:
                figures["findings"].append(told)
            else:
                figures["refused"] += told["refused"]
                figures["answered"] += told["answered"]
        if status != 0:
            died = (
                f"ended by {signal.Signals(status & 0x7F).name}" if status & 0x7F else f"exit {status >> 8}"
            )
            figures["findings"].append({"seed": at, "finding": died})
        figures["scribbles"] += at + 1 - seed
        seed = at + 1
        shutil.rmtree(directory)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    arguments = parser.parse_args()
    json.dump(poison(arguments.first, arguments.count), sys.stdout)


if __name__ == "__main__":
    main()
