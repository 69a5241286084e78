"""Loops over the values of a queue: going on accepts. One suite for both scopes, and for event loops."""

import itertools
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest

import hawser
from tests.contract.test_queues import PATIENCE_SECONDS, contents, counts, got
from tests.support.processes import until

_numbers = itertools.count()


class Order(msgspec.Struct):
    identity: int


def has(queue: hawser.Queue[Any], expected: tuple[int, int, int]) -> bool:
    return counts(queue) == expected


@pytest.fixture
def name() -> str:
    return f"values {next(_numbers)}"


def test_a_value_is_accepted_when_the_next_one_is_asked_for(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1", b"2"])
    values = worker.queue(name).consume(prefetch=0).values()
    for number in range(3):
        assert next(values) == b"%d" % number
        assert counts(seen) == (2 - number, 1, 0)
    values.accept()
    values.accept()
    assert counts(seen) == (0, 0, 0)
    seen.put(b"3")
    assert next(values) == b"3"
    del values
    until(lambda: counts(seen) == (1, 0, 0), "a value whose loop was left is back")
    assert got(seen).delivery_count == 2


@pytest.mark.parametrize("ahead", [0, 5])
def test_a_loop_over_values_that_is_left(worker: Any, bus: hawser.Bus, name: str, ahead: int) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"%d" % number for number in range(6)])
    consumer = worker.queue(name).consume(prefetch=ahead)
    for value in consumer.values():
        if value == b"2":
            break
    until(lambda: contents(seen) == [b"2", b"3", b"4", b"5"], "all but the accepted ones")
    # What is ahead comes before what came back.
    given: list[bytes] = []
    with pytest.raises(ZeroDivisionError):
        for value in consumer.values():
            given.append(value)
            _ = 1 / (int(value) - 4)
    consumer.close()
    left = sorted({b"2", b"3", b"4", b"5"} - set(given[:-1]))
    until(lambda: counts(seen) == (len(left), 0, 0), "what was not accepted is back")
    with seen.get_many(9, PATIENCE_SECONDS) as messages:
        deliveries = {b"2": 2, b"4": 2, b"5": 1}
        assert [(bytes(each), each.delivery_count) for each in messages] == [
            (each, deliveries[each]) for each in left
        ]


def test_a_block_accepts_the_last_value_unless_there_was_an_error(
    worker: Any, bus: hawser.Bus, name: str
) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1"])
    consumer = queue.consume(prefetch=0)
    with consumer.values() as values:
        for value in values:
            assert value == b"0"
            break
    assert contents(seen) == [b"1"]
    with pytest.raises(ZeroDivisionError), consumer.values() as values:
        for _ in values:
            _ = 1 / 0
    assert got(seen).delivery_count == 2
    with consumer.values() as values:
        pass


def test_a_loop_that_is_begun_again_was_left(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1"])
    values, given = queue.consume(prefetch=0).values(), []
    with suppress(ZeroDivisionError):
        for value in values:
            given.append(value)
            _ = 1 / (1 - int(value))
    for value in values:
        given.append(value)
        break
    values.accept()
    assert given == [b"0", b"1", b"1"]
    assert counts(seen) == (0, 0, 0)


def test_what_becomes_of_a_value_can_be_said(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1"])
    values = queue.consume(prefetch=0).values()
    assert next(values) == b"0"
    values.release()
    values.accept()
    assert next(values) == b"0"
    values.reject()
    assert next(values) == b"1"
    values.accept()
    assert counts(seen) == (0, 0, 1)


def test_two_loops_of_one_consumer(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"%d" % number for number in range(6)])
    consumer = queue.consume(prefetch=0)
    one, other = consumer.values(), consumer.values()
    message = next(consumer)
    assert [next(one), next(other), next(one), next(other)] == [b"1", b"2", b"3", b"4"]
    assert (bytes(message), counts(seen)) == (b"0", (1, 3, 0))
    message.accept()
    one.accept()
    other.accept()
    assert contents(seen) == [b"5"]


def accept_up_to(queue: hawser.Queue[Any], last: bytes) -> None:
    """Get messages and accept them, until it was this one: here, too, a lease may end."""
    found = b""
    while found != last:
        message = got(queue)
        with suppress(hawser.Fenced):
            value = bytes(message)
            message.accept()
            found = value


def test_a_value_whose_claim_was_taken_away(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, other = worker.queue(name, lease=1.0), bus.queue(name)
    queue.put_many([b"0", b"1"])
    values = queue.consume(prefetch=0).values()
    assert next(values) == b"0"
    accept_up_to(other, b"0")
    with pytest.raises(hawser.Fenced):
        next(values)
    queue.put(b"2")
    assert next(values) in (b"1", b"2")


def test_a_loop_that_is_begun_again_without_its_claim(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, other = worker.queue(name, lease=1.0), bus.queue(name)
    queue.put(b"0")
    values = queue.consume(prefetch=0).values()
    assert next(values) == b"0"
    accept_up_to(other, b"0")
    queue.put(b"1")
    for value in values:
        assert value == b"1"
        break
    with suppress(hawser.Fenced):
        values.accept()


def test_a_loop_over_values_goes_on_behind_one_that_cannot_be_decoded(
    worker: Any, bus: hawser.Bus, name: str
) -> None:
    orders, plain = worker.queue(name, schema=Order, max_deliveries=2), bus.queue(name)
    orders.put(Order(1))
    plain.put(b"junk")
    orders.put(Order(2))
    values = orders.consume(prefetch=0).values()
    assert next(values) == Order(1)
    errors = []
    for expected in ((2, 0, 0), (1, 0, 1)):
        with pytest.raises(hawser.HawserError, match="Order") as raised:
            next(values)
        errors.append(raised.value)  # which refers to the message
        until(partial(has, plain, expected), "it is back, or a dead letter")
    assert next(values) == Order(2)
    values.accept()
    until(lambda: counts(plain) == (0, 0, 1), "the other one is a dead letter")


def test_closing_under_a_loop_over_values(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue, seen = worker.queue(name), bus.queue(name)
    queue.put_many([b"0", b"1"])
    consumer = queue.consume(prefetch=1)
    values = consumer.values()
    assert next(values) == b"0"
    consumer.close()
    until(lambda: counts(seen) == (2, 0, 0), "everything is back")
    with pytest.raises((hawser.Fenced, hawser.Closed)):
        next(values)
    assert list(values) == []
