"""Messages that were lost to an error further on in the same batch. Found by reading the binding."""

from typing import Any

import msgspec
import pytest

import hawser
from hawser.testing import LocalBus
from tests.poison.scribble import WORD, parts_of

SETTINGS: dict[str, Any] = {
    "slot_size": 64,
    "history": 4,
    "depth": 4,
    "max_publishers": 2,
    "max_subscribers": 2,
    "max_held": 4,
    "max_loans": 1,
}


class Point(msgspec.Struct):
    x: int


def test_values_before_one_that_cannot_be_decoded() -> None:
    with LocalBus() as local:
        topic = local.connect("reader").topic("points", schema=Point)
        subscription = topic.subscribe(resume=True)
        topic.publish_many([Point(1), Point(2)])
        local.connect().topic("points").publish(b"\xff")
        topic.publish(Point(4))
        assert subscription.take_values(9, 0) == [Point(1), Point(2)]
        assert (subscription.position, subscription.received) == (2, 2)
        assert [record.mark for record in topic.info().records] == [2]
        with pytest.raises(hawser.Corrupt, match="message 3"):
            subscription.take_values(9, 0)
        assert subscription.take_values(9, 0) == [Point(4)]


@pytest.mark.parametrize("call", ["take_many", "take_values"])
def test_messages_before_damage(call: str) -> None:
    with LocalBus() as local:
        topic = local.connect().topic("damaged", **SETTINGS)
        subscription = topic.subscribe()
        topic.publish_many([b"one", b"two", b"three"])
        with (local.directory / "damaged.topic").open("r+b") as file:
            file.seek(parts_of(SETTINGS).sections["ring"][0] + 3 * WORD)
            file.write(bytes(WORD))
        taken = getattr(subscription, call)(3, 0)
        assert [bytes(each) for each in taken] == [b"one", b"two"]
        with pytest.raises(hawser.Corrupt):
            getattr(subscription, call)(3, 0)
