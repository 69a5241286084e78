"""Loans: published by a clean end, dropped by any other, and never writable afterwards."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import hawser
from hawser.testing import LocalBus


@pytest.fixture
def topic() -> Iterator[hawser.Topic[Any]]:
    with LocalBus() as local:
        yield local.connect("tester").topic("t", history=8)


def head(topic: hawser.Topic[Any]) -> int:
    return topic.info().head


def newest(topic: hawser.Topic[Any]) -> bytes:
    return bytes(topic.read_newest(1).samples[0])


def test_a_clean_end_publishes(topic: hawser.Topic[Any]) -> None:
    loan = topic.loan(3)
    with loan as buffer:
        assert not buffer.readonly
        buffer[:] = b"abc"
        assert (head(topic), loan.receipt) == (0, None)
    assert loan.receipt == ("t", 0, 1, 1, "process")
    assert newest(topic) == b"abc"
    with pytest.raises(ValueError, match="released"):
        buffer[0]
    with pytest.raises(hawser.UsageError, match="over"), loan:
        pass
    assert head(topic) == 1


def test_an_exception_drops(topic: hawser.Topic[Any]) -> None:
    for _ in range(5):
        with pytest.raises(KeyError), topic.loan(3) as buffer:
            buffer[:] = b"abc"
            raise KeyError
    with pytest.raises(KeyError), topic.loan_array((3,)) as array:
        array[:] = 7
        raise KeyError
    assert head(topic) == 0
    del array, buffer
    assert topic.info().slots_lent == 0


@pytest.mark.parametrize(
    "keep",
    [
        lambda buffer: buffer[1:],
        lambda buffer: numpy.frombuffer(buffer, "u1"),
        lambda buffer: memoryview(buffer),
    ],
)
def test_a_view_that_stays_stops_the_publish(topic: hawser.Topic[Any], keep: Any) -> None:
    with pytest.raises(BufferError), topic.loan(3) as buffer:
        kept = keep(buffer)
    assert head(topic) == 0
    kept[0] = 1
    topic.publish(b"other")
    assert kept[0] == 1
    del kept, buffer
    gc.collect()
    assert topic.info().slots_lent == 0


def test_a_loan_of_nothing_is_a_message(topic: hawser.Topic[Any]) -> None:
    with topic.loan(0) as buffer:
        assert len(buffer) == 0
    with topic.loan_array((0, 3), "f8") as array:
        assert array.shape == (0, 3)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"", b""]


def test_an_array_stays_readable_and_becomes_read_only(topic: hawser.Topic[Any]) -> None:
    with topic.loan_array((2, 3), "<f4", key=b"k") as array:
        array[:] = 1.5
        array[0, 1] += array.sum()
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 2
    expected = array.tobytes()
    for _ in range(200):
        topic.publish(b"other")
    assert array.tobytes() == expected
    del array
    assert topic.info().slots_lent == 0


def test_arrays_can_follow_each_other(topic: hawser.Topic[Any]) -> None:
    for number in range(20):
        with topic.loan_array(4, "u1") as array:
            array[:] = number
    assert newest(topic) == bytes([19] * 4)
    assert head(topic) == 20


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array[1:],
        lambda array: array.T,
        lambda array: array.view("u1"),
        lambda array: array[1:][:1],
        lambda array: memoryview(array),
        lambda array: [array],
    ],
)
def test_a_view_of_the_array_that_stays_stops_the_publish(topic: hawser.Topic[Any], keep: Any) -> None:
    with pytest.raises(BufferError), topic.loan_array((3, 2), "<u2") as array:
        kept = keep(array)
    assert head(topic) == 0
    topic.publish(b"other")
    del array, kept
    gc.collect()
    assert topic.info().slots_lent == 0


@pytest.mark.parametrize("size", [-1, 1.5, "3", None])
def test_a_size_that_is_none_is_refused(topic: hawser.Topic[Any], size: Any) -> None:
    with pytest.raises(hawser.UsageError):
        topic.loan(size)


def test_loans_are_counted(topic: hawser.Topic[Any]) -> None:
    first, second = topic.loan(1), topic.loan(1)
    with pytest.raises(hawser.Full, match="max_loans"):
        topic.loan(1)
    del first
    with second as buffer:
        buffer[:] = b"x"
    assert newest(topic) == b"x"


def test_a_loan_waits_for_a_reliable_subscriber_no_longer_than_told() -> None:
    with LocalBus() as local:
        topic = local.connect().topic("t", history=0, depth=1)
        subscription = topic.subscribe(reliable=True)
        topic.publish(b"x")
        with pytest.raises(hawser.Full), topic.loan(1, timeout=0.01) as buffer:
            buffer[:] = b"y"
        assert topic.info().slots_lent == 0
        sample = subscription.take(0)
        assert sample is not None
        assert bytes(sample) == b"x"
