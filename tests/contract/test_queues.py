"""Queues mean the same on one host and on a cluster: one suite for both."""

import asyncio
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import hawser
from hawser import aio
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

PATIENCE_SECONDS = 20.0
_numbers = itertools.count()


class Order(msgspec.Struct):
    identity: int


@pytest.fixture(params=["one host", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cluster":
        running: RunningCluster = request.getfixturevalue("cluster")
        yield running.url
    else:
        with LocalBus() as local:
            yield local.url


@pytest.fixture
def bus(url: str) -> Iterator[hawser.Bus]:
    with hawser.connect(url, name="worker") as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"jobs {next(_numbers)}"


def got(queue: hawser.Queue[Any], timeout: float = PATIENCE_SECONDS) -> hawser.Message:
    message = queue.get(timeout)
    assert message is not None
    return message


def counts(queue: hawser.Queue[Any]) -> tuple[int, int, int]:
    info = queue.info()
    return info.ready, info.claimed, info.dead


def contents(queue: hawser.Queue[Any]) -> list[bytes]:
    return [bytes(each) for each in queue.peek(100)]


def test_a_message_and_what_it_says(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    receipt = queue.put(b"first", key=b"k", headers={"h": b"v"})
    assert (receipt.topic, receipt.first_offset, receipt.count) == (name, 1, 1)
    assert queue.put_many([b"", b"third"], keys=[None, b"t"]).first_offset == 2
    message = got(queue)
    assert isinstance(message, hawser.Message)
    assert (bytes(message), bytes(message.data), len(message)) == (b"first", b"first", 5)
    assert (message.offset, message.key, message.headers) == (1, b"k", {"h": b"v"})
    assert (message.delivery_count, message.redelivered, message.value) == (1, False, b"first")
    message.accept()
    messages = queue.get_many(9, PATIENCE_SECONDS)
    assert [(bytes(each), each.key) for each in messages] == [(b"", None), (b"third", b"t")]
    messages.accept()
    assert queue.get(0) is None
    assert queue.get_many(9, 0) == []
    assert counts(queue) == (0, 0, 0)


def test_what_becomes_of_it(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    queue.put(b"1")
    got(queue).release()
    with pytest.raises(ZeroDivisionError), got(queue) as message:
        assert (message.delivery_count, message.redelivered) == (2, True)
        _ = 1 / 0
    message = got(queue)
    assert (message.delivery_count, counts(queue)) == (3, (0, 1, 0))
    del message
    gc.collect()
    with got(queue) as message:
        assert message.delivery_count == 4
    message.accept()
    for other in (message.release, message.reject):
        with pytest.raises(hawser.UsageError, match="was accepted already"):
            other()
    assert counts(queue) == (0, 0, 0)


def test_many_in_one_step(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    queue.put_many([b"%d" % number for number in range(6)])
    messages = queue.get_many(6, PATIENCE_SECONDS)
    messages[1].accept()
    messages[4].reject()
    messages.release()
    with queue.get_many(2, PATIENCE_SECONDS) as messages:
        assert [bytes(each) for each in messages] == [b"0", b"2"]
    with queue.get_values(9, PATIENCE_SECONDS) as values:
        assert values == [b"3", b"5"]
    assert counts(queue) == (0, 0, 1)


def test_peek_and_info_change_nothing(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, max_deliveries=5)
    queue.put_many([b"0", b"1", b"2"])
    held = got(queue)
    assert contents(queue) == [b"0", b"1", b"2"]
    assert [each.offset for each in queue.peek(2)] == [1, 2]
    info = queue.info()
    assert (info.name, info.ready, info.claimed, info.dead, info.head) == (name, 2, 1, 0, 3)
    assert [(each.name, each.claimed) for each in info.owners] == [("worker", 1)]
    assert info.settings["max_deliveries"] == 5
    assert info.oldest_age_seconds is not None
    held.accept()
    assert contents(queue) == [b"1", b"2"]
    queue.get_many(9, PATIENCE_SECONDS).accept()
    assert queue.info().oldest_age_seconds is None


def test_iterating(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    queue.put_many([b"%d" % number for number in range(6)])
    seen = []
    with queue.consume(prefetch=2) as jobs:
        for job in jobs:
            seen.append(bytes(job))
            if bytes(job) == b"3" and not job.redelivered:
                continue
            with job:
                pass
            if set(seen) == {b"%d" % number for number in range(6)} and seen.count(b"3") == 2:
                break
    assert (len(seen), counts(queue)) == (7, (0, 0, 0))


def test_dead_letters(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, max_deliveries=2)
    queue.put(b"rejected", key=b"k")
    queue.put_many([b"poison", b"good"])
    got(queue).reject()
    for _ in range(2):
        message = got(queue)
        assert bytes(message) == b"poison"
        message.release()
    with got(queue) as message:
        assert bytes(message) == b"good"
    assert counts(queue) == (0, 0, 2)
    letters = queue.dead_letters()
    assert contents(letters) == [b"rejected", b"poison"]
    letter = got(letters)
    origin = msgspec.json.decode(letter.headers["hawser-dead-letter"])
    assert (letter.key, origin) == (b"k", {"queue": name, "offset": 1, "deliveries": 1})
    letter.reject()
    assert contents(letters) == [b"rejected", b"poison"]
    assert queue.retry_dead_letters(1) == 1
    with got(queue) as message:
        found = (bytes(message), message.key, message.delivery_count, message.headers)
        assert found == (b"rejected", b"k", 1, {})
    with got(letters) as letter:
        assert bytes(letter) == b"poison"
    assert queue.retry_dead_letters() == 0
    assert counts(queue) == (0, 0, 0)


def test_letters_elsewhere(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, dead_letter=f"{name} graves")
    queue.put(b"bad")
    got(queue).reject()
    graves = bus.queue(f"{name} graves")
    with got(graves) as letter:
        assert bytes(letter) == b"bad"
        assert msgspec.json.decode(letter.headers["hawser-dead-letter"])["queue"] == name


def test_values_of_a_schema(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, schema=Order)
    queue.put_many([Order(1), Order(2)])
    with queue.get_many(9, PATIENCE_SECONDS) as messages:
        assert [each.value for each in messages] == [Order(1), Order(2)]


def test_values_end_before_one_that_cannot_be_decoded(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, schema=Order, max_deliveries=2)
    queue.put_many([Order(1), Order(2)])
    bus.queue(name).put(b"junk")
    queue.put(Order(3))
    with queue.get_values(9, PATIENCE_SECONDS) as values:
        assert values == [Order(1), Order(2)]
    for _ in range(2):
        with pytest.raises(hawser.HawserError, match="Order"):
            queue.get_values(9, PATIENCE_SECONDS)
    assert counts(queue) == (1, 0, 1)
    with queue.get_values(9, PATIENCE_SECONDS) as values:
        assert values == [Order(3)]
    assert [bytes(each) for each in bus.queue(name).dead_letters().peek(9)] == [b"junk"]


def test_one_name_one_thing(bus: hawser.Bus, url: str, name: str) -> None:
    queue = bus.queue(name, max_deliveries=3)
    assert bus.queue(name) is queue
    with pytest.raises(hawser.NotFound):
        bus.queue(f"{name} other", create=False)
    with pytest.raises(hawser.SettingsMismatch, match="max_deliveries"):
        bus.queue(name, max_deliveries=4)
    with pytest.raises(hawser.UsageError, match="is a queue"):
        bus.topic(name)
    bus.topic(f"{name} topic")
    with pytest.raises(hawser.UsageError, match="is a topic"):
        bus.queue(f"{name} topic")
    assert name in bus.queues()
    assert name not in bus.topics()
    with hawser.connect(url) as other:
        assert other.queue(name).info().uuid == queue.info().uuid


def test_what_a_closed_bus_held_is_given_back(bus: hawser.Bus, url: str, name: str) -> None:
    queue = bus.queue(name)
    queue.put_many([b"1", b"2"])
    with hawser.connect(url, name="leaver") as leaver:
        message = got(leaver.queue(name))
    with pytest.raises((hawser.Fenced, hawser.Closed)):
        message.accept()
    # On a cluster it comes back with an entry, and may come later than the other one.
    again = [got(queue), got(queue)]
    assert sorted((bytes(each), each.redelivered) for each in again) == [(b"1", True), (b"2", False)]


def test_deleting(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name)
    queue.put(b"1")
    queue.delete()
    with pytest.raises(hawser.Closed):
        queue.put(b"2")
    assert name not in bus.queues()
    assert counts(bus.queue(name)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("put", ("text",)),
        ("put_many", ([],)),
        ("put_many", ([b"1"], [b"1", b"2"])),
        ("get_many", (-1, 0)),
        ("peek", (-1,)),
        ("consume", (-1,)),
        ("retry_dead_letters", (-1,)),
    ],
)
def test_wrong_arguments(bus: hawser.Bus, name: str, call: str, arguments: tuple[Any, ...]) -> None:
    queue = bus.queue(name)
    named = {"keys": arguments[1]} if call == "put_many" and len(arguments) > 1 else {}
    with pytest.raises((hawser.UsageError, TypeError)):
        getattr(queue, call)(*(arguments[:1] if named else arguments), **named)
    assert counts(queue) == (0, 0, 0)


def test_the_same_in_an_event_loop(url: str, name: str) -> None:
    async def story() -> None:
        async with aio.connect(url, name="worker") as bus, bus.queue(name, max_deliveries=1) as queue:
            await queue.put(b"1", key=b"k")
            await queue.put_many([b"2", b"3", b"4"])
            async with await queue.get_many(2, PATIENCE_SECONDS) as messages:
                assert [(bytes(each), each.key) for each in messages] == [(b"1", b"k"), (b"2", None)]
            message = await queue.get(PATIENCE_SECONDS)
            assert message is not None
            await message.release()
            async with queue.consume() as jobs:
                async for job in jobs:
                    async with job:
                        assert (bytes(job), job.delivery_count) == (b"4", 1)
                    break
            letters = await queue.dead_letters()
            assert [bytes(each) for each in await letters.peek(9)] == [b"3"]
            assert await queue.retry_dead_letters() == 1
            async with await queue.get_values(9, PATIENCE_SECONDS) as values:
                assert values == [b"3"]
            info = await queue.info()
            assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
            assert name in await bus.queues()
            await queue.delete()

    asyncio.run(asyncio.wait_for(story(), 60))
