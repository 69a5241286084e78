"""Damage that was once believed. Found by tests/poison."""

import contextlib
import dataclasses
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.poison.scribble import ENTRY_BYTES, LABEL_BYTES, LINE, PAGE, SLOT_BYTES, WORD, parts_of

SETTINGS: dict[str, Any] = {
    "slot_size": 64,
    "history": 4,
    "depth": 4,
    "max_publishers": 2,
    "max_subscribers": 2,
    "max_held": 2,
    "max_loans": 1,
}
RING = 8
HEAD_AT = LABEL_BYTES + LINE
BOOT_AT = 40
SCHEMA_AT = 384


@dataclasses.dataclass
class Damaged:
    """A topic of two messages, and its file to write into."""

    topic: hawser.Topic[Any]
    path: Path

    def word(self, place: int) -> int:
        with self.path.open("rb") as file:
            file.seek(place)
            return int(struct.unpack("<Q", file.read(WORD))[0])

    def write(self, place: int, data: bytes | int) -> None:
        with self.path.open("r+b") as file:
            file.seek(place)
            file.write(data if isinstance(data, bytes) else struct.pack("<Q", data))

    def ring_at(self, offset: int) -> int:
        return parts_of(SETTINGS).sections["ring"][0] + offset % RING * WORD


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    with LocalBus() as local:
        topic = local.connect("author").topic("damaged", **SETTINGS)
        topic.publish_many([b"one", b"two"])
        yield Damaged(topic, local.directory / "damaged.topic")


def test_a_message_lost_from_the_ring_is_not_an_empty_topic(damaged: Damaged) -> None:
    subscription = damaged.topic.subscribe(history=2)
    damaged.write(damaged.ring_at(1), 0)
    with pytest.raises(hawser.Corrupt):
        subscription.take(0)


def test_a_head_beyond_the_ring_leaves_no_gap(damaged: Damaged) -> None:
    damaged.write(HEAD_AT, 3)
    with pytest.raises(hawser.Corrupt):
        damaged.topic.publish(b"three")


def test_a_head_with_the_right_tag_is_still_wrong(damaged: Damaged) -> None:
    damaged.topic.publish_many([b"x"] * 18)
    damaged.write(HEAD_AT, 20 + (1 << 48))
    with pytest.raises(hawser.Corrupt):
        damaged.topic.publish(b"y")


def test_the_head_does_not_follow_a_message_that_is_not_there(damaged: Damaged) -> None:
    damaged.write(damaged.ring_at(3), 3 << 16 | damaged.word(damaged.ring_at(2)) & 0xFFFF)
    with pytest.raises(hawser.Corrupt):
        damaged.topic.publish(b"three")
    with pytest.raises(hawser.Corrupt):
        damaged.topic.read_newest(1)


def test_a_repeated_incarnation_takes_over_no_name(damaged: Damaged) -> None:
    """The entry of the first publisher is set back, so that the next one gets the same identity."""
    before = damaged.word(PAGE)
    assert damaged.path.stat().st_size > PAGE + ENTRY_BYTES
    url = f"shm://{damaged.path.parent}"
    damaged.topic.publish_many([b"x"] * 20)
    damaged.topic.close()
    damaged.write(PAGE, before - (1 << 8) & ~0xFF)
    with hawser.connect(url, name="impostor") as bus:
        topic = bus.topic("damaged")
        topic.publish_many([b"y"] * 20)
        assert {sample.publisher for sample in topic.read_newest(8).samples} == {"impostor"}


def test_a_damaged_boot_id_is_no_reason_to_discard_a_topic(damaged: Damaged) -> None:
    damaged.write(BOOT_AT, b"?")
    with (
        hawser.connect(f"shm://{damaged.path.parent}") as bus,
        pytest.raises(hawser.Corrupt, match="damaged"),
    ):
        bus.topic("damaged")
    assert len(damaged.topic.read_oldest(2).samples) == 2


@pytest.mark.parametrize("state", [1, 2, 3, 1 << 63])
def test_a_damaged_state_does_not_end_a_topic(damaged: Damaged, state: int) -> None:
    damaged.write(LABEL_BYTES, state)
    with hawser.connect(f"shm://{damaged.path.parent}") as bus:
        assert bus.topic("damaged").publish(b"three").first_offset == 3
    assert len(damaged.topic.read_oldest(3).samples) == 3


def test_a_damaged_label_does_not_reach_those_who_have_read_it(damaged: Damaged) -> None:
    before = damaged.topic.info()
    damaged.write(0, b"\xff" * LABEL_BYTES)
    after = damaged.topic.info()
    assert (after.settings, after.uuid, after.created_ns) == (before.settings, before.uuid, before.created_ns)


def lose_references(damaged: Damaged) -> None:
    """No slot says any more that somebody reads it."""
    low, high = parts_of(SETTINGS).sections["slots"]
    for slot in range(low, high, SLOT_BYTES):
        damaged.write(slot, 0)


@pytest.mark.parametrize("with_view", [False, True])
def test_a_sample_without_its_reference_is_freed_once(
    damaged: Damaged, with_view: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was freed again when the hook let go of it, and the next two takes returned one object."""
    subscription = damaged.topic.subscribe(history=2)
    sample = subscription.take(0)
    assert sample is not None
    view = sample.data if with_view else None
    lose_references(damaged)
    sys.unraisablehook, before = sys.__unraisablehook__, sys.unraisablehook
    try:
        with contextlib.suppress(LookupError):
            try:
                raise LookupError
            finally:
                del sample, view
    finally:
        sys.unraisablehook = before
    assert "a reference to message 1 was lost" in capsys.readouterr().err
    damaged.topic.publish(b"three")
    one, two = subscription.take(0), subscription.take(0)
    assert one is not None and two is not None
    assert one is not two
    assert (bytes(one), bytes(two)) == (b"two", b"three")
