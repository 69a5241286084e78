"""What samples said about themselves. Found by review."""

import time
from collections.abc import Iterator

import msgspec

from hawser.testing import LocalBus


class Point(msgspec.Struct):
    x: int


def test_samples_read_from_the_history_are_typed() -> None:
    with LocalBus() as local:
        topic = local.connect().topic("points", schema=Point)
        topic.publish_many([Point(1), Point(2)])
        assert [sample.value for sample in topic.read_newest(2).samples] == [Point(1), Point(2)]
        assert [sample.value for sample in topic.read_oldest(1).samples] == [Point(1)]


def test_what_a_generator_makes_has_the_time_it_was_made_at() -> None:
    """One time stamp was shared by a whole batch, however long the generator took over it."""
    made: list[int] = []

    def slowly() -> Iterator[bytes]:
        for _ in range(3):
            made.append(time.time_ns())
            yield b"x"

    with LocalBus() as local:
        topic = local.connect().topic("slow", slot_size=64)
        topic.publish_many(slowly())
        stamps = [sample.timestamp_ns for sample in topic.read_oldest(3).samples]
    assert all(stamp >= moment for stamp, moment in zip(stamps, made, strict=True))
