"""Queues mean the same on one host and on a cluster: one suite for both."""

import asyncio
import gc
import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec
import pytest

import hawser
from hawser import aio
from tests.support.processes import until

PATIENCE_SECONDS = 20.0
_numbers = itertools.count()


class Order(msgspec.Struct):
    identity: int


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


def test_an_empty_message_is_true(worker: Any, name: str) -> None:
    queue, topic = worker.queue(name), worker.topic(f"{name} topic")
    queue.put(b"")
    topic.publish(b"")
    empty = [queue.get(PATIENCE_SECONDS), *queue.peek(1), *topic.read_oldest(1).samples]
    assert [(bytes(each), bool(each)) for each in empty] == [(b"", True)] * 3


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


def test_many_in_one_step(worker: Any, name: str) -> None:
    queue = worker.queue(name)
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
    for get in (queue.get_many, queue.get_values):
        queue.put_many([b"6", b"7"])
        get(2, PATIENCE_SECONDS).release()
        again = get(2, PATIENCE_SECONDS)
        assert [bytes(each) for each in again] == [b"6", b"7"]
        again.reject()
    assert counts(queue) == (0, 0, 5)


GETS: dict[str, Callable[[Any], Any]] = {
    "one": lambda queue: queue.get(PATIENCE_SECONDS),
    "many": lambda queue: queue.get_many(2, PATIENCE_SECONDS),
    "values": lambda queue: queue.get_values(2, PATIENCE_SECONDS),
}


@pytest.mark.parametrize("how", GETS)
def test_the_error_of_a_block_is_what_counts(worker: Any, bus: hawser.Bus, name: str, how: str) -> None:
    queue, other = worker.queue(name, lease=0.2), bus.queue(name)
    queue.put(b"1")
    with pytest.raises(hawser.Fenced), GETS[how](queue):
        got(other)
    with pytest.raises(ZeroDivisionError), GETS[how](queue):
        got(other)
        _ = 1 / 0
    assert contents(other) == [b"1"]


def test_what_is_said_in_a_block_stays(worker: Any, bus: hawser.Bus, name: str) -> None:
    queue = worker.queue(name)
    for number, get in enumerate(GETS.values()):
        queue.put(b"%d" % number)
        with get(queue) as held:
            held.reject()
    assert counts(bus.queue(name)) == (0, 0, 3)


@pytest.mark.parametrize("how", GETS)
def test_whoever_is_cancelled_in_a_block_is_cancelled(url: str, name: str, how: str) -> None:
    async def story() -> None:
        async with aio.connect(url, name="worker") as bus, aio.connect(url, name="other") as others:
            queue, other = bus.queue(name, lease=0.2), others.queue(name)
            await queue.put(b"1")
            is_held = asyncio.Event()

            async def work() -> None:
                async with await GETS[how](queue):
                    is_held.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await is_held.wait()
            assert await GETS[how](other)
            working.cancel()
            await asyncio.wait([working])
            assert working.cancelled()

    asyncio.run(asyncio.wait_for(story(), 60))


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


def test_peek_shows_as_many_as_it_is_asked_for(bus: hawser.Bus, name: str) -> None:
    queue = bus.queue(name, slot_size=1 << 21)
    large = [bytes([number]) * (1 << 20) for number in range(12)]
    for each in large:
        queue.put(each)
    with got(queue):
        pass
    assert [bytes(each) for each in queue.peek(10)] == large[1:11]
    assert [bytes(each) for each in queue.peek(100)] == large[1:]
    assert queue.peek(0) == []


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
    dead_letters = queue.dead_letters()
    assert contents(dead_letters) == [b"rejected", b"poison"]
    letter = got(dead_letters)
    origin = msgspec.json.decode(letter.headers["hawser-dead-letter"])
    assert (letter.key, origin) == (b"k", {"queue": name, "offset": 1, "deliveries": 1})
    letter.reject()
    assert contents(dead_letters) == [b"rejected", b"poison"]
    assert queue.retry_dead_letters(1) == 1
    with got(queue) as message:
        found = (bytes(message), message.key, message.delivery_count, message.headers)
        assert found == (b"rejected", b"k", 1, {})
    with got(dead_letters) as letter:
        assert bytes(letter) == b"poison"
    assert queue.retry_dead_letters() == 0
    assert counts(queue) == (0, 0, 0)


def test_what_a_letter_keeps(bus: hawser.Bus, url: str, name: str) -> None:
    """Its time, and not who put it."""
    with hawser.connect(url, name="producer") as other:
        other.queue(name).put(b"bad")
    queue = bus.queue(name)
    message = got(queue)
    assert message.publisher == "producer"
    message.reject()
    mover = "" if url.startswith("hawser://") else "worker"
    (letter,) = queue.dead_letters().peek(9)
    assert (letter.publisher, letter.timestamp_ns) == (mover, message.timestamp_ns)
    assert queue.retry_dead_letters() == 1
    with got(queue) as again:
        assert (again.publisher, again.timestamp_ns) == (mover, message.timestamp_ns)


def test_letters_themselves_are_not_retried(bus: hawser.Bus, url: str, name: str) -> None:
    async def retry() -> None:
        async with aio.connect(url) as other:
            await other.queue(name).dead_letters().retry_dead_letters()

    queue = bus.queue(name)
    queue.put(b"bad")
    got(queue).reject()
    with pytest.raises(hawser.UsageError, match="at the queue they are of"):
        queue.dead_letters().retry_dead_letters()
    with pytest.raises(hawser.UsageError, match="at the queue they are of"):
        asyncio.run(retry())


def test_no_queue_is_its_own_dead_letter(bus: hawser.Bus, url: str, name: str) -> None:
    async def open_it() -> None:
        async with aio.connect(url) as other:
            await other.queue(name, dead_letter=name)

    for deliveries in (None, 3):
        with pytest.raises(hawser.UsageError, match="its own dead_letter"):
            bus.queue(name, dead_letter=name, max_deliveries=deliveries)
    with pytest.raises(hawser.UsageError, match="its own dead_letter"):
        asyncio.run(open_it())
    assert name not in bus.queues()


def test_letters_elsewhere(bus: hawser.Bus, name: str) -> None:
    """Where they are messages of that queue."""
    queue, other = (bus.queue(each, dead_letter=f"{name} graves") for each in (name, f"{name} other"))
    queue.put(b"bad")
    graves = bus.queue(f"{name} graves")
    graves.put(b"of its own")
    got(queue).reject()
    until(lambda: counts(graves) == (2, 0, 0), "the letter is moved")
    until(lambda: counts(queue) == (0, 0, 0), "the letter is no more at home")
    assert counts(other) == (0, 0, 0)
    with got(graves) as message:
        assert bytes(message) == b"of its own"
    with got(graves) as letter:
        assert bytes(letter) == b"bad"
        assert msgspec.json.decode(letter.headers["hawser-dead-letter"])["queue"] == name


def test_looking_for_letters_makes_no_queue(bus: hawser.Bus, url: str, name: str) -> None:
    async def look() -> str:
        async with aio.connect(url) as other:
            return (await other.queue(name, create=False).dead_letters(create=False)).name

    def are_there() -> bool:
        with suppress(hawser.NotFound):
            return queue.dead_letters(create=False).name == asyncio.run(look()) == f"{name} graves"
        return False

    own = bus.queue(f"{name} own")
    with suppress(hawser.NotFound):
        assert contents(own.dead_letters(create=False)) == []
    queue = bus.queue(name, dead_letter=f"{name} graves")
    with pytest.raises(hawser.NotFound, match="graves"):
        queue.dead_letters(create=False)
    with pytest.raises(hawser.NotFound, match="graves"):
        asyncio.run(look())
    assert queue.retry_dead_letters() == own.retry_dead_letters() == 0
    assert [each for each in bus.queues() if each.startswith(name)] == [name, own.name]
    queue.put(b"bad")
    got(queue).reject()
    until(are_there, "the queue is made with the first letter")


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


def test_what_is_wrong_is_said_in_words_of_queues(worker: Any, name: str) -> None:
    queue = worker.queue(name)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: queue.put("text"), "a message is bytes, not str"),
        (lambda: queue.put(None), "a message is bytes-like"),
        (lambda: queue.put_many(b"text"), "a batch is an iterable of messages, not one bytes"),
        (lambda: queue.put_many([]), "nothing to put"),
        (lambda: queue.put_many([b"1"], keys=[]), "give one for each"),
        (lambda: queue.put_many([b"1"], keys=[b"1", b"2"]), "keys"),
        (lambda: worker.queue(""), "a name has at least one character"),
        (lambda: worker.queue(f"{name} other", dead_letter=""), "a dead_letter has at least one character"),
    ]
    for call, said in calls:
        with pytest.raises(hawser.UsageError, match=said) as raised:
            call()
        assert not {"topic", "publish"} & set(re.findall("[a-z]+", str(raised.value)))
    assert counts(queue) == (0, 0, 0)


def test_a_timeout_is_a_time(worker: Any, name: str) -> None:
    queue, topic = worker.queue(name), worker.topic(f"{name} topic")
    calls = [
        partial(queue.put, b"1"),
        partial(queue.put_many, [b"1"]),
        queue.get,
        partial(queue.get_many, 1),
        partial(queue.get_values, 1),
        partial(topic.publish, b"1"),
        topic.subscribe().take,
    ]
    for call in calls:
        for timeout in ("x", -1, float("nan"), b""):
            with pytest.raises(hawser.UsageError, match="timeout is seconds, 0 or more"):
                call(timeout=timeout)
    assert counts(queue) == (0, 0, 0)
    queue.put(b"1", timeout=Fraction(1, 2))
    assert queue.get(1e300)


def test_counts_have_bounds(worker: Any, name: str) -> None:
    queue, topic = worker.queue(name), worker.topic(f"{name} topic")
    taking = topic.subscribe()
    calls: dict[str, Callable[[Any], Any]] = {
        "count": lambda count: queue.get_many(count, 0),
        "count in values": lambda count: queue.get_values(count, 0),
        "count in peek": queue.peek,
        "count in retry": queue.retry_dead_letters,
        "count in oldest": topic.read_oldest,
        "count in newest": topic.read_newest,
        "count in take_many": lambda count: taking.take_many(count, 0),
        "count in take_values": lambda count: taking.take_values(count, 0),
        "after": lambda after: topic.read_oldest(1, after),
        "prefetch": queue.consume,
        "history": lambda count: topic.subscribe(history=count),
    }
    for what, call in calls.items():
        for count in (-1, 1 << 63, 1 << 64, "x", True):
            with pytest.raises(
                hawser.UsageError, match=f"{what.split()[0]}={count!r} is (not a whole|outside)"
            ):
                call(count)
    queue.put_many([b"1", b"2"])
    most = (1 << 63) - 1
    assert len(queue.peek(most)) == 2
    with queue.get_many(most, PATIENCE_SECONDS) as messages:
        assert [bytes(each) for each in messages] == [b"1", b"2"]
    assert (queue.get_values(most, 0), queue.retry_dead_letters(most)) == ([], 0)


def test_many_who_want_as_many_as_there_may_be(url: str, name: str) -> None:
    async def story() -> None:
        async with aio.connect(url) as bus, aio.connect(url) as others:
            queue = bus.queue(name)
            waiting = [asyncio.create_task(queue.get_many((1 << 63) - 1)) for _ in range(4)]
            for number in range(4):
                await others.queue(name).put(b"%d" % number)
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    waiting.remove(each)
                    await (await each).accept()
            assert not waiting

    asyncio.run(asyncio.wait_for(story(), 60))


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
            dead_letters = await queue.dead_letters()
            assert [bytes(each) for each in await dead_letters.peek(9)] == [b"3"]
            assert await queue.retry_dead_letters() == 1
            async with await queue.get_values(9, PATIENCE_SECONDS) as values:
                assert values == [b"3"]
            info = await queue.info()
            assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
            assert name in await bus.queues()
            await queue.delete()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_describes_a_message_outlives_it(bus: hawser.Bus, name: str) -> None:
    """A log line after a block names the key of the job."""
    queue, topic = bus.queue(name), bus.topic(f"{name} topic")
    subscription = topic.subscribe()
    queue.put_many([b"1", b"2", b"3"], keys=[b"first", b"second", b"third"])
    topic.publish(b"x", key=b"fourth", headers={"a": b"b"})
    with got(queue) as accepted:
        pass
    rejected, released = got(queue), got(queue)
    rejected.reject()
    released.release()
    sample = subscription.take(5)
    assert sample is not None
    with sample:
        pass
    assert [each.key for each in (accepted, rejected, released)] == [b"first", b"second", b"third"]
    assert {each.delivery_count for each in (accepted, rejected, released)} == {1}
    assert (sample.key, sample.headers, accepted.headers) == (b"fourth", {"a": b"b"}, {})


@pytest.mark.parametrize("other", [b"x", bytearray(b"x"), memoryview(b"x"), "x"])
def test_a_message_is_not_its_bytes(bus: hawser.Bus, name: str, other: object) -> None:
    queue, topic = bus.queue(name), bus.topic(f"{name} topic")
    subscription = topic.subscribe()
    queue.put_many([b"x", b"y"])
    topic.publish(b"x")
    samples: list[Any] = [got(queue), subscription.take(5), *queue.peek(1)]

    async def get() -> None:
        async with aio.connect(bus.url) as looped:
            samples.append(await (await looped.queue(name)).get(PATIENCE_SECONDS))

    asyncio.run(get())
    for each in samples:
        with pytest.raises(TypeError, match=rf"^a message cannot be compared with {type(other).__name__};"):
            assert each == other
        assert each == each and each != object()  # noqa: PLR0124
        assert {each: 1}[each] == 1
