"""Damage to a queue that was once believed. Found by tests/poison."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.poison.scribble import LABEL_BYTES, LINE, ORIGIN_BYTES, SLOT_BYTES, WORD, Parts, parts_of

CAPACITY = 6
SETTINGS: dict[str, Any] = {
    "slot_size": 64,
    "capacity": CAPACITY,
    "max_producers": 2,
    "max_consumers": 4,
    "max_held": 2,
}
RETURNS_AT = LABEL_BYTES + 9 * LINE
CLAIM_AT = 7 * WORD
DOOMED = 4
USED = 2


class Damaged:
    """A queue of three messages, and its file to write into."""

    def __init__(self, local: LocalBus, **more: Any) -> None:
        self.bus = local.connect("author")
        self.queue = self.bus.queue("damaged", **SETTINGS, **more)
        self.queue.put_many([b"one", b"two", b"three"])
        self._path: Path = local.directory / "damaged.topic"

    def add(self, place: int, step: int) -> None:
        with self._path.open("r+b") as file:
            file.seek(place)
            (word,) = struct.unpack("<Q", file.read(WORD))
            file.seek(place)
            file.write(struct.pack("<Q", word + step & (1 << 64) - 1))

    def read(self, place: int) -> int:
        with self._path.open("rb") as file:
            file.seek(place)
            (word,) = struct.unpack("<Q", file.read(WORD))
        return int(word)

    def write(self, place: int, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(place)
            file.write(data)

    def lose_references(self, sequence: int) -> None:
        """Those who read a message are forgotten."""
        low, high = self.parts.sections["slots"]
        for slot in range(low, high, SLOT_BYTES + ORIGIN_BYTES):
            if self.read(slot + WORD) == sequence:
                assert self.read(slot) != 0
                self.write(slot, bytes(WORD))

    @property
    def parts(self) -> Parts:
        laid_out = {"history": 0, "depth": CAPACITY, "max_publishers": 2, "max_subscribers": 4}
        return parts_of({**laid_out, "max_held": 2, "max_loans": 1}, is_queue=True)


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    with LocalBus() as local:
        yield Damaged(local)


def test_a_ring_word_of_another_place_does_not_hide_messages(damaged: Damaged) -> None:
    ring_at = damaged.parts.sections["ring"][0]
    damaged.add(ring_at + WORD, (CAPACITY - 3) << 16)  # message 1 seems to be the one after the next
    with pytest.raises(hawser.Corrupt):
        damaged.queue.get(timeout=0)


def test_a_slot_that_was_never_used_holds_no_dead_letter(damaged: Damaged) -> None:
    low, high = damaged.parts.sections["slots"]
    unused = high - (SLOT_BYTES + ORIGIN_BYTES)
    assert unused > low
    damaged.write(unused + CLAIM_AT, struct.pack("<Q", DOOMED))
    message = damaged.queue.get(timeout=0)
    assert message is not None
    message.reject()
    assert b"" not in [bytes(letter) for letter in damaged.queue.dead_letters().peek(CAPACITY)]


def test_the_name_of_a_damaged_record_can_be_told(damaged: Damaged) -> None:
    records_at = damaged.parts.sections["records"][0]
    damaged.write(records_at, struct.pack("<Q", USED) + bytes(3 * WORD) + b"\xff\xfe\x80")
    with pytest.raises(hawser.HawserError):
        damaged.queue.get(timeout=0)


def test_a_count_of_returns_that_looks_like_none_hides_nothing(damaged: Damaged) -> None:
    first = damaged.queue.get(timeout=0)
    assert first is not None
    first.release()
    damaged.write(RETURNS_AT, b"\xff" * WORD)
    other = damaged.bus.queue("damaged").consume()
    assert next(other).offset == 1


def test_a_damaged_message_in_a_batch_harms_no_other(damaged: Damaged) -> None:
    low, high = damaged.parts.sections["slots"]
    for slot in range(low, high, SLOT_BYTES + ORIGIN_BYTES):
        if damaged.read(slot + WORD) == 2:
            damaged.add(slot + 5 * WORD, 1)  # its check word
    values = damaged.queue.get_values(2, timeout=0)
    assert values == [b"one"]
    values.accept()
    for _ in range(3):
        with pytest.raises(hawser.Corrupt):
            damaged.queue.get_values(2, timeout=0)
    assert [each.held for each in damaged.queue.info().participants if each.kind == "consumer"] == [0]


@pytest.mark.parametrize("way", ["copied", "decoded", "decoded in a batch"])
def test_a_lost_reference_is_told_and_its_message_goes_back(way: str) -> None:
    with LocalBus() as local:
        damaged = Damaged(local, lease=60.0)

        def decode(message: Any) -> bytes:
            if message.offset == 2:
                damaged.lose_references(2)
            return bytes(message)

        consumer = damaged.queue._region.consumer("w", decode=None if way == "copied" else decode)  # type: ignore[attr-defined]
        values = consumer.iterate_values(2, damaged)
        assert next(values) == b"one"
        if way == "copied":
            damaged.lose_references(2)
        with pytest.raises(hawser.Corrupt, match="a reference to message 2 was lost"):
            if way == "decoded in a batch":
                values.accept()
                consumer.give_back_ahead()
                consumer.claim_values(2, [], 0)
            else:
                next(values)
        assert (damaged.queue.info().ready, damaged.queue.info().claimed) == (2, 0)
        del values
        consumer.give_back_ahead()
        assert consumer.held == 0
