"""Movers that were killed before they took a pin away, and whose queue was deleted then. Found by review."""

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser.record.trace import region_number
from hawser.testing import LocalBus
from tests.poison.scribble import ORIGIN_BYTES, SLOT_BYTES, WORD, parts_of

SETTINGS: dict[str, Any] = {
    "slot_size": 64,
    "capacity": 4,
    "max_producers": 2,
    "max_consumers": 2,
    "max_held": 1,
}
DEAD_LETTERS: dict[str, Any] = {**SETTINGS, "slot_size": 2000}
# More than there are slots.
ROUNDS = 20
WORDS = (1 << 64) - 1


@pytest.fixture
def bus() -> Iterator[hawser.Bus]:
    with LocalBus() as local:
        yield local.connect("mover")


def pin_of(region: int, sequence: int) -> int:
    """As native/letters.hpp."""
    mixed = (region ^ sequence) * 0xFF51AFD7ED558CCD & WORDS
    return (mixed ^ mixed >> 32) | 1


def pin_again(target: hawser.Queue[Any], source: hawser.Queue[Any], sequence: int) -> None:
    """As a mover leaves it that was killed when message `sequence` was done in its own queue."""
    number = region_number(source.info().uuid)
    laid_out = {
        "history": 0,
        "depth": 4,
        "max_publishers": 2,
        "max_subscribers": 2,
        "max_held": 1,
        "max_loans": 1,
    }
    low, high = parts_of({**laid_out, "max_loans": 1}, is_queue=True).sections["slots"]
    file = os.open(target.info().path, os.O_RDWR)
    try:
        for origin in range(low + SLOT_BYTES, high, SLOT_BYTES + ORIGIN_BYTES):
            _, region, its_sequence, _ = struct.unpack("<4Q", os.pread(file, 4 * WORD, origin))
            if (region, its_sequence) == (number, sequence):
                os.pwrite(file, struct.pack("<Q", pin_of(number, sequence)), origin + 3 * WORD)
                return
    finally:
        os.close(file)
    raise AssertionError("no slot has the message")


def pinned(queue: Any) -> int:
    return int(queue._region.queue_state()["slots_pinned"])


def reject_one(queue: hawser.Queue[Any]) -> None:
    queue.put(b"bad", timeout=0)
    message = queue.get(0)
    assert message is not None
    message.reject()
    assert queue.get(0) is None


def accept_one(queue: hawser.Queue[Any]) -> None:
    message = queue.get(0)
    assert message is not None, "there is no room for it"
    message.accept()


def test_letters_of_deleted_queues_leave_no_slot_pinned(bus: hawser.Bus) -> None:
    graves = bus.queue("graves", **DEAD_LETTERS)
    for _ in range(ROUNDS):
        jobs = bus.queue("jobs", dead_letter="graves", **SETTINGS)
        reject_one(jobs)
        pin_again(graves, jobs, 1)
        accept_one(graves)
        jobs.delete()
    assert pinned(graves) == 1
    reject_one(bus.queue("others", dead_letter="graves", **SETTINGS))
    assert pinned(graves) == 0


def test_letters_that_go_back_leave_no_slot_pinned(bus: hawser.Bus) -> None:
    jobs = bus.queue("jobs", **SETTINGS)
    for _ in range(ROUNDS):
        dead_letters = jobs.dead_letters()
        reject_one(jobs)
        assert jobs.retry_dead_letters() == 1
        pin_again(jobs, dead_letters, 1)
        accept_one(jobs)
        dead_letters.delete()
    reject_one(jobs)
    assert jobs.retry_dead_letters() == 1
    assert pinned(jobs) == 0


def test_a_pin_of_a_queue_that_exists_stays(bus: hawser.Bus) -> None:
    graves = bus.queue("graves", **DEAD_LETTERS)
    first, second = (bus.queue(name, dead_letter="graves", **SETTINGS) for name in ("first", "second"))
    reject_one(first)
    pin_again(graves, first, 1)
    reject_one(second)
    assert pinned(graves) == 1
    reject_one(first)
    assert pinned(graves) == 0
