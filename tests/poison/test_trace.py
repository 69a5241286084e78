"""A scribbled trace: who is traced notices nothing, and readers get true records or know what is lost."""

import mmap
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hawser
from hawser.memory._native import Region, TraceRing

from .scribble import LINE, PAGE, Parts, scribble

SETTINGS: dict[str, int | str] = {
    "slot_size": 64,
    "history": 4,
    "depth": 4,
    "max_publishers": 2,
    "max_subscribers": 2,
    "max_held": 2,
    "max_loans": 1,
    "ephemeral": 0,
    "group": 0,
    "schema": "",
}
RECORDS = 64
RECORD_BYTES = 64
PARTS = Parts(
    {
        "label": (0, 128),
        "head": (128, 128 + LINE),
        "records": (PAGE, PAGE + RECORDS * RECORD_BYTES),
        "more records": (PAGE, PAGE + RECORDS * RECORD_BYTES),
    },
    PAGE + RECORDS * RECORD_BYTES,
)
SEEDS = 600
PATIENT_ONES = 150  # one of so many waits for what is missing


class Attack:
    """A domain with a ring and a traced topic, whose ring is damaged in the middle of the work."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = directory / ".trace"
        self.path.unlink(missing_ok=True)
        self.ring = TraceRing.create(str(self.path), RECORDS, False)
        path = directory / f"traced-{seed}.topic"
        self.region = Region.attach(str(path), str(directory / ".lock"), "traced", SETTINGS)
        self.region.trace(self.ring)
        self.publisher = self.region.publisher("publisher")
        self.subscriber = self.region.subscriber("subscriber")
        self.published = 0
        self.refused = self.lost = 0

    def work(self, count: int) -> None:
        """What is traced goes on whatever the ring looks like."""
        for _ in range(count):
            self.published += 1
            payload = self.published.to_bytes(8, "little")
            self.publisher.publish(payload)
            assert self.subscriber.take_value(0) == payload

    def damage(self) -> None:
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), PARTS.control_bytes) as memory:
            scribble(memory, PARTS, self.chance)

    def read(self, ring: TraceRing, position: int) -> tuple[int, list[bytes]]:
        """What one call gives, each record at its own position; where the next one begins."""
        first, data = ring.read(position, 100)
        assert first >= position
        self.lost += first - position
        records = [data[i : i + RECORD_BYTES] for i in range(0, len(data), RECORD_BYTES)]
        for number, record in enumerate(records, first + 1):
            assert record[:8] == number.to_bytes(8, "little")
        return first + len(records), records

    def run(self, patiently: bool) -> None:
        self.work(self.chance.choice((5, 30, 60)))
        _, before = self.read(self.ring, 0)
        known, self.lost = self.published, 0
        self.damage()
        self.work(3)
        for record in self.read_again(patiently):
            sequence = int.from_bytes(record[24:32], "little")
            assert record in before or known < sequence <= self.published, "a false record"
        self.region.remove(True)

    def read_again(self, patiently: bool) -> list[bytes]:
        """What a new reader gets: up to what is missing, or beyond it."""
        records: list[bytes] = []
        try:
            ring = TraceRing.open(str(self.path))
            assert ring is not None
            position, more = self.read(ring, 0)
            while more or (patiently and position < ring.head):
                records += more
                position, more = self.read(ring, position)
        except hawser.HawserError:
            self.refused += 1
        return records


def test_damage_is_lost_or_refused_and_hurts_nobody(
    tmp_path: Path, record_property: Callable[[str, object], Any]
) -> None:
    tmp_path.chmod(0o700)
    lost = refused = 0
    for seed in range(SEEDS):
        attack = Attack(tmp_path, seed)
        try:
            attack.run(patiently=seed % PATIENT_ONES == 0)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        lost += attack.lost
        refused += attack.refused
    assert lost and refused
    record_property("scribbles", SEEDS)
    record_property("refused", refused)
    record_property("positions lost", lost)
