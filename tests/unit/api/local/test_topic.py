"""Topics: publishing of every kind, reading, and what a topic tells about itself."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy
import pyarrow
import pytest

import hawser
from hawser.testing import LocalBus


class Order(msgspec.Struct):
    identity: int
    title: str


@pytest.fixture
def bus() -> Iterator[hawser.Bus]:
    with LocalBus() as local:
        yield local.connect("tester")


def contents(topic: hawser.Topic[Any]) -> list[bytes]:
    return [bytes(each) for each in topic.read_oldest(1000).samples]


def test_a_receipt_says_what_was_published(bus: hawser.Bus) -> None:
    topic = bus.topic("a/b")
    assert topic.publish(b"x") == hawser.Receipt("a/b", 0, 1, 1, "process")
    assert topic.publish_many([b"y", b"z"]) == [hawser.Receipt("a/b", 0, 2, 2, "process")]
    assert topic.publish(b"") == ("a/b", 0, 4, 1, "process")
    assert contents(topic) == [b"x", b"y", b"z", b""]


def test_receipts_are_told_apart_by_their_hash(bus: hawser.Bus) -> None:
    """From Python 3.14 on a tuple keeps its hash, and a receipt that was dropped is used again."""
    topic = bus.topic("hashed")
    for offset in range(1, 4):
        assert hash(topic.publish(b"")) == hash(("hashed", 0, offset, 1, "process"))
    kept = {topic.publish(b"") for _ in range(3)} | set(topic.publish_many([b"", b""]))
    assert kept == {
        hawser.Receipt("hashed", 0, *each, "process") for each in [(4, 1), (5, 1), (6, 1), (7, 2)]
    }


@pytest.mark.parametrize(
    "data",
    [bytearray(b"ab"), memoryview(b"xaby")[1:3], numpy.frombuffer(b"ab", "<u2"), pyarrow.py_buffer(b"ab")],
)
def test_anything_with_bytes_can_be_published(bus: hawser.Bus, data: Any) -> None:
    topic = bus.topic("t")
    topic.publish(data)
    topic.publish_many([data, data])
    topic.publisher().publish(data)
    assert contents(topic) == [b"ab"] * 4


@pytest.mark.parametrize("data", ["text", 7, None, numpy.zeros((4, 4))[:, 0], numpy.array([object()])])
def test_what_has_no_bytes_is_refused(bus: hawser.Bus, data: Any) -> None:
    topic = bus.topic("t")
    publisher = topic.publisher()
    for call in (topic.publish, publisher.publish, lambda each: topic.publish_many([each])):
        with pytest.raises(hawser.UsageError):
            call(data)
    assert contents(topic) == []


def test_a_batch_with_a_wrong_message_leaves_a_prefix(bus: hawser.Bus) -> None:
    topic: hawser.Topic[Any] = bus.topic("t")
    with pytest.raises(hawser.UsageError, match="not str") as caught:
        topic.publish_many([b"a", b"b", "text", b"c"])
    assert (caught.value.published, caught.value.outcome) == (2, "applied")
    assert contents(topic) == [b"a", b"b"]
    assert topic.publish_many([])[0].count == 0


def test_a_batch_may_come_from_a_generator(bus: hawser.Bus) -> None:
    topic = bus.topic("t", history=100)
    assert topic.publish_many(b"%d" % number for number in range(100))[0].count == 100
    assert contents(topic) == [b"%d" % number for number in range(100)]


def test_key_and_headers_travel_along(bus: hawser.Bus) -> None:
    topic = bus.topic("t")
    topic.publish(b"x", key=b"k", headers={"a": b"1"})
    topic.publish(b"y")
    with topic.loan(1, key=b"l") as buffer:
        buffer[:] = b"z"
    taken = topic.subscribe(history=3, max_held=3).take_many(3, 0)
    assert [(bytes(each), each.key, each.headers) for each in taken] == [
        (b"x", b"k", {"a": b"1"}),
        (b"y", None, {}),
        (b"z", b"l", {}),
    ]
    assert [each.publisher for each in taken] == ["tester"] * 3
    mistakes: list[dict[str, Any]] = [{"key": "k"}, {"headers": {"a": "1"}}]
    for wrong in mistakes:
        with pytest.raises(hawser.UsageError):
            topic.publish(b"x", **wrong)


def test_a_message_says_when_it_was_published(bus: hawser.Bus) -> None:
    """Whichever way, and however many go out between two looks at the clock (docs/decisions/0052)."""
    topic, off = bus.topic("t"), 1000

    def loan() -> None:
        with topic.loan(1):
            pass

    ways: list[Callable[[], object]] = [
        lambda: topic.publish(b"x"),
        lambda: topic.publish_many([b"x"]),
        lambda: topic.publish_many(iter([b"x"])),
        loan,
    ]
    for way in ways * 2000:
        before = time.time_ns()
        way()
        stamp = topic.read_newest(1).samples[0].timestamp_ns
        assert before - off <= stamp <= time.time_ns() + off


def test_futures_are_done_at_once(bus: hawser.Bus) -> None:
    topic = bus.topic("t", history=0, depth=1)
    assert topic.publish_nowait(b"x").result(0).first_offset == 1
    topic.flush()
    with topic.subscribe(reliable=True):
        topic.publish(b"fits")
        with pytest.raises(hawser.Full):
            topic.publish_nowait(b"y").result(0)
        with pytest.raises(hawser.Full, match="tester"):
            topic.publish(b"y", timeout=0.01)
    assert topic.publish(b"z").first_offset == 3


def test_a_sample_too_large_is_refused(bus: hawser.Bus) -> None:
    topic = bus.topic("t", slot_size=10)
    topic.publish(b"0123456789")
    for call in (lambda: topic.publish(bytes(11)), lambda: topic.loan(11), lambda: topic.loan_array(11)):
        with pytest.raises(hawser.UsageError, match="slot_size"):
            call()


def test_reading_goes_on_where_it_was(bus: hawser.Bus) -> None:
    topic = bus.topic("t", history=4, depth=1)
    topic.publish_many([b"%d" % number for number in range(1, 11)])
    first = topic.read_oldest(2)
    assert first.samples[0].offset == topic.info().oldest
    assert first.missed == topic.info().oldest - 1
    rest = topic.read_oldest(100, after=first.last)
    assert (rest.last, rest.missed) == (10, 0)
    assert topic.read_oldest(9, after=10) == ([], 10, 0)
    newest = topic.read_newest(2)
    assert ([bytes(each) for each in newest.samples], newest.last) == ([b"9", b"10"], 10)


def test_info_tells_settings_and_use(bus: hawser.Bus) -> None:
    topic = bus.topic("t", slot_size=1 << 20, history=5, depth=3, partitions=4, trace="metadata")
    before = topic.info()
    for _ in range(5):
        topic.publish(bytes(1 << 20))
    after = topic.info()
    assert after.settings["history"] == 5
    assert after.settings["mode"] == "user"
    assert after.settings["trace"] == "metadata"
    assert after.unused == {"partitions": 4}
    assert (after.head, after.oldest, after.ring) == (5, 1, 8)
    assert after.slots == 8 + 33 * 4 + 8 * 3
    assert after.slots_leaked == 0
    assert after.configured_bytes == before.configured_bytes > after.slots << 20
    assert before.resident_bytes + (5 << 20) <= after.resident_bytes < after.configured_bytes // 4
    assert [each.kind for each in after.participants] == ["publisher"]
    assert msgspec.json.decode(msgspec.json.encode(after))["name"] == "t"


def test_typed_topics_carry_values(bus: hawser.Bus) -> None:
    orders = bus.topic("orders", schema=Order)
    orders.publish(Order(1, "a"))
    orders.publish_many([Order(2, "b"), Order(3, "c")])
    values = orders.subscribe(history=3).values()
    assert [next(values) for _ in range(3)] == [Order(1, "a"), Order(2, "b"), Order(3, "c")]
    with pytest.raises(hawser.UsageError, match="Order"):
        orders.publish(b"raw")  # type: ignore[arg-type]
    other = msgspec.defstruct("Order", [("identity", str)])
    with pytest.raises(hawser.SettingsMismatch, match="schema"):
        bus.topic("orders", schema=other)
    raw: hawser.Topic[Any] = bus.topic("orders")
    assert msgspec.msgpack.decode(bytes(raw.read_oldest(1).samples[0])) == {"identity": 1, "title": "a"}


def test_arrow_data_is_carried_whole(bus: hawser.Bus) -> None:
    batch = pyarrow.record_batch({"a": [1, 2, 3]})
    topic: hawser.Topic[Any] = bus.topic("t")
    topic.publish(batch)
    sample = topic.subscribe(history=1).take(0)
    assert sample is not None
    assert sample.arrow().equals(batch)
    typed = bus.topic("typed", schema=batch.schema)
    typed.publish(batch)
    assert next(typed.subscribe(history=1).values()).equals(batch)


def test_arrays_are_views_of_the_sample(bus: hawser.Bus) -> None:
    topic: hawser.Topic[Any] = bus.topic("t")
    image = numpy.arange(12, dtype="<u2").reshape(3, 4)
    topic.publish(image)
    sample = topic.subscribe(history=1).take(0)
    assert sample is not None
    array = sample.array("<u2", (3, 4))
    assert (array == image).all()
    assert not array.flags.writeable
    with pytest.raises(BufferError):
        sample.release()
    del array
    sample.release()


def test_an_exclusive_publisher_is_alone(bus: hawser.Bus) -> None:
    topic = bus.topic("t")
    with topic.publisher(exclusive=True) as publisher:
        assert publisher.publish(b"x").first_offset == 1
        with pytest.raises(hawser.HawserError):
            topic.publish(b"y")
        with pytest.raises(hawser.HawserError):
            topic.publisher(exclusive=True)
    topic.publish(b"z")
    with pytest.raises(hawser.HawserError):
        topic.publisher(exclusive=True)


@pytest.mark.parametrize(("size", "count"), [(1, 500), (1 << 20, 12)])
def test_threads_share_a_topic(bus: hawser.Bus, size: int, count: int) -> None:
    topic = bus.topic("t", slot_size=size, history=8 * count)
    errors: list[BaseException] = []

    def publish(mark: int) -> None:
        try:
            for _ in range(count):
                topic.publish(bytes([mark]) * size)
        except hawser.HawserError as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = [bytes(each) for each in topic.read_oldest(8 * count).samples]
    assert {each: found.count(each) for each in found} == {bytes([mark]) * size: count for mark in range(8)}
    assert len(topic.info().participants) == 1


def test_deleting_needs_nobody_else(bus: hawser.Bus) -> None:
    topic = bus.topic("t")
    topic.publish(b"x")
    topic.delete()
    assert bus.topics() == []
    with pytest.raises(hawser.Closed):
        topic.publish(b"y")
    assert contents(bus.topic("t")) == []
