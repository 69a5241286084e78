"""The native side of queues, as the API is built on it: what only a caller of the native module can see."""

import gc
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.memory import Consumer, Publisher, Region
from hawser.memory.settings import complete, queue_request, request
from hawser.testing import LocalBus
from tests.support.children import Channel, sleep_for_ever, victim


@pytest.fixture
def directory() -> Iterator[Path]:
    with LocalBus() as local:
        yield local.directory


def region_of(directory: Path, name: str = "jobs", **settings: Any) -> Region:
    wanted = complete(queue_request({"slot_size": 256, "capacity": 64, **settings}).given)
    return Region.attach(str(directory / f"{name}.topic"), str(directory / ".lock"), name, wanted)


def as_it_is(metadata: bytes, offset: int, deliveries: int) -> bytes:
    return metadata


def put(publisher: Publisher, count: int) -> None:
    publisher.publish_many([b"%d" % number for number in range(count)])


def values_of(consumer: Consumer) -> list[bytes]:
    """What there is; it comes again."""
    values: list[bytes] = []
    consumer.claim_values(9, values, 0)
    return values


def test_values_are_settled_together_and_once(directory: Path) -> None:
    region = region_of(directory)
    put(region.publisher("producer"), 6)
    consumer = region.consumer("consumer")
    values: list[bytes] = []
    claims = consumer.claim_values(3, values, 0)
    assert (values, claims.offsets, claims.delivery_counts) == ([b"0", b"1", b"2"], [1, 2, 3], [1] * 3)
    assert (len(claims), consumer.held, region.queue_state()["claimed"]) == (3, 3, 3)
    claims.accept()
    claims.accept()
    claims.release()
    del claims
    assert values_of(consumer) == [b"3", b"4", b"5"]  # their claims are dropped: they come again
    values.clear()
    again = consumer.claim_values(9, values, 0)
    assert (values, again.delivery_counts) == ([b"3", b"4", b"5"], [2] * 3)
    consumer.close()
    for _ in range(2):
        with pytest.raises(hawser.Fenced, match="3 messages was taken away"):
            again.accept()
    assert region.queue_state()["ready"] == 3
    assert len(values_of(region.consumer("other"))) == 3


def test_columns_end_at_a_hole(directory: Path) -> None:
    region = region_of(directory)
    publisher = region.publisher("producer")
    publisher.publish_many([b"a", b"", b"ccc", b"d", b"e"], None, [None, b"k", None, None, None])
    consumer, other = region.consumer("consumer"), region.consumer("other")
    first, second, third = other.claim_many(3, 0)
    second.accept()
    first.release()
    third.release()
    columns = consumer.claim_columns(9, 1000, 0)
    assert columns is not None and columns[:1] + columns[2:4] == (1, struct.pack("=2i", 0, 1), b"a")
    columns[-1].accept()
    rest = consumer.claim_columns(9, 1000, 0)
    assert rest is not None
    assert (rest[0], rest[2], rest[3], rest[4]) == (3, struct.pack("=4i", 0, 3, 4, 5), b"cccde", None)
    del rest
    assert region.queue_state()["ready"] == 3
    assert consumer.claim_columns(9, 2, 0)[3] == b""  # type: ignore[index]
    assert [bytes(each) for each in consumer.claim_many(9, 0)] == [b"ccc", b"d", b"e"]


class Undecodable(Exception):
    """What the decoder says."""


def test_what_cannot_be_decoded_harms_nobody_else(directory: Path) -> None:
    def decode(message: Any) -> bytes:
        if bytes(message) == b"2":
            raise Undecodable
        return bytes(message) * 2

    region = region_of(directory, max_deliveries=3)
    put(region.publisher("producer"), 4)
    consumer = region.consumer("consumer", decode=decode)
    values: list[bytes] = []
    before = consumer.claim_values(9, values, 0)
    assert values == [b"00", b"11"]
    before.accept()
    assert region.queue_state()["ready"] == 2
    for _ in range(3):
        with pytest.raises(Undecodable):
            values_of(consumer)
    assert region.queue_state()["dying"] == 1
    assert values_of(consumer) == [b"33"]


def test_what_was_claimed_ahead_was_not_delivered(directory: Path) -> None:
    region = region_of(directory, max_deliveries=2)
    put(region.publisher("producer"), 3)
    closed = region.consumer("closed")
    first = closed.claim_apart(3, 0)
    assert first is not None and (first.offset, closed.held) == (1, 3)
    closed.close()
    with pytest.raises(hawser.Closed):
        closed.claim_apart(3, 0)
    other = region.consumer("other")
    first = other.claim_apart(3, 0)
    assert first is not None and (first.offset, first.delivery_count) == (1, 2)
    other.give_back_ahead()
    assert (region.queue_state()["ready"], region.queue_state()["claimed"]) == (2, 1)
    with pytest.raises(hawser.UsageError):
        other.claim_apart(3, -1)
    with pytest.raises(hawser.UsageError, match="1 or more"):
        other.claim_apart(0, 0)
    del first, other
    rest = region.consumer("last").claim_many(3, 0)
    assert [(each.offset, each.delivery_count) for each in rest] == [(2, 1), (3, 1)]


def test_a_busy_consumer_notices_the_dead(directory: Path) -> None:
    region = region_of(directory)
    publisher, consumer = region.publisher("producer"), region.consumer("consumer")
    publisher.publish(b"victim's")

    def hold(channel: Channel) -> None:
        mine = region_of(directory)
        held = mine.consumer("victim").claim(0)
        channel.tell(str(held))
        sleep_for_ever()

    with victim(hold) as child:
        child.hear()
    for _ in range(10_000_000):
        publisher.publish(b"other")
        message = consumer.claim(0)
        assert message is not None
        if bytes(message) == b"victim's":
            break
        message.accept()
    else:
        pytest.fail("it never came back")
    assert message.redelivered


def moving(directory: Path) -> tuple[Region, Consumer, Region, Publisher]:
    region, dead_letters = region_of(directory), region_of(directory, "letters", capacity=1)
    put(region.publisher("producer"), 2)
    consumer = region.consumer("consumer")
    consumer.reject_many(consumer.claim_many(2, 0))
    return region, consumer, dead_letters, dead_letters.publisher("mover")


def test_a_consumer_that_has_left_moves_nothing(directory: Path) -> None:
    region, consumer, dead_letters, publisher = moving(directory)

    def leave(metadata: bytes, offset: int, deliveries: int) -> bytes:
        consumer.close()
        return metadata

    assert consumer.bury(publisher, leave) == 0
    assert (region.queue_state()["dying"], dead_letters.queue_state()["ready"]) == (2, 0)


def test_there_and_back_when_there_is_no_room(directory: Path) -> None:
    region, consumer, dead_letters, publisher = moving(directory)
    assert consumer.bury(publisher, as_it_is) == 1
    with pytest.raises(hawser.Full, match="no message can be moved"):
        consumer.bury(publisher, as_it_is)
    home = region.publisher("mover")
    home.publish_many([b"x"] * 64)
    reader = dead_letters.consumer("reader")
    with pytest.raises(hawser.Full, match="no message can be moved"):
        reader.retry(home, as_it_is)
    assert (dead_letters.queue_state()["ready"], region.queue_state()["ready"]) == (1, 64)
    topic = Region.attach(
        str(directory / "t.topic"), str(directory / ".lock"), "t", complete(request({}).given)
    )
    with pytest.raises(hawser.UsageError, match="not to a topic"):
        reader.retry(topic.publisher("mover"), as_it_is)
    with pytest.raises(hawser.UsageError, match="the publisher of a queue"):
        reader.retry(reader, as_it_is)  # type: ignore[arg-type]


def test_a_signal_in_the_call_for_the_dying_is_not_swallowed(directory: Path) -> None:
    def interrupt(consumer: Consumer) -> None:
        raise KeyboardInterrupt

    region = region_of(directory)
    put(region.publisher("producer"), 2)
    consumer = region.consumer("consumer", dying=interrupt)
    message = consumer.claim(0)
    assert message is not None
    with pytest.raises(KeyboardInterrupt):
        message.reject()
    assert region.queue_state()["dying"] == 1


def test_a_consumer_in_a_circle_is_collected(directory: Path) -> None:
    class Owner:
        """Refers to its consumer, which calls it."""

        def __init__(self) -> None:
            self.consumer = region.consumer("consumer", dying=self.told, decode=self.told)

        def told(self, what: object) -> None:
            """Nothing to do."""

    region = region_of(directory)
    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None and region.participants() == []


def test_loops_and_claims_in_a_circle_are_collected(directory: Path) -> None:
    class Owner:
        """Refers to what refers to its consumer, which calls it."""

        def __init__(self) -> None:
            consumer = region.consumer("consumer", dying=self.told)
            self.loop = consumer.iterate(2, self)
            next(self.loop).release()
            self.claims = consumer.claim_values(1, [], 0)

        def told(self, what: object) -> None:
            """Nothing to do."""

    region = region_of(directory)
    put(region.publisher("producer"), 3)
    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None
    assert [each["kind"] for each in region.participants()] == []
    assert (region.queue_state()["ready"], region.queue_state()["claimed"]) == (3, 0)


def test_one_consumer_alone(directory: Path) -> None:
    region = region_of(directory, max_deliveries=1)
    put(region.publisher("producer"), 3)
    ordinary = region.consumer("ordinary")
    with pytest.raises(hawser.UsageError, match="must be the only one"):
        region.consumer("recorder", reserve=True)
    ordinary.close()

    def record(channel: Channel) -> None:
        alone = region_of(directory).consumer("recorder", reserve=True)
        channel.tell(str(len(alone.claim_many(3, 0))))
        sleep_for_ever()

    for _ in range(3):
        with victim(record) as child:
            assert child.hear() == "3"
            with pytest.raises(hawser.UsageError, match="recorded by 'recorder'"):
                region.consumer("ordinary")
            with pytest.raises(hawser.UsageError, match="of the same name"):
                region.consumer("recorder", reserve=True)
    with pytest.raises(hawser.UsageError, match="recorded by 'recorder'"):
        region.consumer("another", reserve=True)
    assert region.forget("recorder")
    (first, *_) = region.consumer("ordinary").claim_many(3, 0)
    assert (first.delivery_count, first.redelivered) == (1, True)
