"""Dead letters on one host: what nobody could handle is kept apart, says where it was, and can come back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.processes import until

SETTINGS: dict[str, Any] = {"slot_size": 256, "capacity": 8, "max_held": 8}


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


def got(queue: hawser.Queue[Any], timeout: float | None = 0) -> hawser.Message:
    message = queue.get(timeout)
    assert message is not None
    return message


def contents(queue: hawser.Queue[Any]) -> list[bytes]:
    return [bytes(each) for each in queue.peek(100)]


def test_a_rejected_message_becomes_a_dead_letter(local: LocalBus) -> None:
    bus = local.connect("worker")
    queue = bus.queue("jobs", **SETTINGS)
    queue.put(b"good")
    queue.put(b"bad", key=b"k", headers={"h": b"v"})
    good = got(queue)
    got(queue).reject()
    good.accept()
    assert queue.get(0) is None
    dead_letters = queue.dead_letters()
    assert (dead_letters.name, dead_letters.dead_letters()) == ("jobs.dead", dead_letters)
    assert bus.queues() == ["jobs", "jobs.dead"]
    letter = got(dead_letters)
    origin = letter.headers["hawser-dead-letter"]
    assert (bytes(letter), letter.key, letter.headers["h"]) == (b"bad", b"k", b"v")
    assert json.loads(origin) == {"queue": "jobs", "offset": 2, "deliveries": 1}
    assert queue.info().dead == 1
    letter.accept()
    assert queue.info().dead == 0


def test_the_last_delivery_makes_a_dead_letter(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", max_deliveries=3, **SETTINGS)
    queue.put_many([b"poison", b"good"])
    for delivery in (1, 2, 3):
        message = got(queue)
        assert (bytes(message), message.delivery_count) == (b"poison", delivery)
        message.release()
    assert bytes(got(queue)) == b"good"
    assert contents(queue.dead_letters()) == [b"poison"]
    origin = queue.dead_letters().peek(1)[0].headers["hawser-dead-letter"]
    assert json.loads(origin)["deliveries"] == 3


def test_a_message_that_kills_its_consumers_becomes_a_dead_letter(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", max_deliveries=2, **SETTINGS)
    queue.put_many([b"poison", b"good"])

    def swallow(channel: Channel) -> None:
        jobs = hawser.connect(local.url).queue("jobs")
        channel.tell(bytes(got(jobs, 30)).decode())
        sleep_for_ever()

    for _ in range(2):
        with victim(swallow) as child:
            assert child.hear() == "poison"
    assert bytes(got(queue, 30)) == b"good"
    assert contents(queue.dead_letters()) == [b"poison"]


def test_without_a_bound_nothing_dies_by_itself(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put(b"1")
    for _ in range(1500):
        got(queue).release()
    message = got(queue)
    assert message.redelivered
    message.accept()
    assert queue.info().dead == 0


def test_dead_letters_are_retried(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", max_deliveries=1, **SETTINGS)
    queue.put_many([b"%d" % number for number in range(5)], keys=[b"k%d" % number for number in range(5)])
    queue.get_many(5, 0).release()
    assert queue.get(0) is None
    assert queue.retry_dead_letters(2) == 2
    assert queue.retry_dead_letters(0) == 0
    assert contents(queue.dead_letters()) == [b"2", b"3", b"4"]
    with queue.get_many(9, 0) as messages:
        assert [(bytes(each), each.key, each.delivery_count) for each in messages] == [
            (b"0", b"k0", 1),
            (b"1", b"k1", 1),
        ]
        assert not any("hawser-dead-letter" in each.headers for each in messages)
    assert queue.retry_dead_letters() == 3
    assert queue.retry_dead_letters() == 0
    queue.get_many(9, 0).accept()
    assert queue.info().dead == 0


def test_a_full_queue_takes_as_many_back_as_there_is_room(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put_many([b"%d" % number for number in range(6)])
    queue.get_many(6, 0).reject()
    queue.put_many([b"x"] * 5)
    assert queue.retry_dead_letters() == 3
    with pytest.raises(hawser.Full, match="no message can be moved"):
        queue.retry_dead_letters()
    assert contents(queue.dead_letters()) == [b"3", b"4", b"5"]


def test_letters_without_room_are_why_a_queue_is_full(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", slot_size=64, capacity=2, max_held=1, max_consumers=1)
    why = r"messages wait to become dead letters \(\d+\); .* room in dead_letters\(\)"
    with pytest.raises(hawser.Full, match=why):
        for _ in range(100):
            queue.put(b"bad", timeout=0)
            got(queue).reject()
    info = queue.info()
    assert (info.ready, info.claimed) == (0, 0)


def test_the_largest_message_has_room_among_the_letters_and_back(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    for data in (b"", b"x" * 256):
        queue.put(data)
        got(queue).reject()
        assert contents(queue.dead_letters()) == [data]
        assert queue.retry_dead_letters() == 1
        with got(queue) as message:
            assert bytes(message) == data


def test_a_dead_letter_stays_one(local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put(b"bad")
    got(queue).reject()
    dead_letters = queue.dead_letters()
    for _ in range(3):
        got(dead_letters).reject()
    assert contents(dead_letters) == [b"bad"]
    assert local.connect().queues() == ["jobs", "jobs.dead"]
    with pytest.raises(hawser.UsageError, match=r"retry|dead letters"):
        dead_letters.retry_dead_letters()


def test_letters_of_several_queues_in_one(local: LocalBus) -> None:
    bus = local.connect()
    first, second = (bus.queue(name, dead_letter="graves", **SETTINGS) for name in ("first", "second"))
    for number in range(3):
        first.put(b"f%d" % number)
        second.put(b"s%d" % number)
        got(first).reject()
        got(second).reject()
    graves = first.dead_letters()
    assert graves is second.dead_letters() is bus.queue("graves")
    assert contents(graves) == [b"f0", b"s0", b"f1", b"s1", b"f2", b"s2"]
    assert second.retry_dead_letters(2) == 2
    assert contents(second) == [b"s0", b"s1"]
    assert contents(graves) == [b"f0", b"f1", b"f2", b"s2"]


def test_letters_wait_while_there_is_no_room_for_them(
    local: LocalBus, caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted, nothing is lost, and the queue goes on."""
    bus = local.connect()
    bus.queue("graves", slot_size=2000, capacity=2)
    queue = bus.queue("jobs", dead_letter="graves", **SETTINGS)
    queue.put_many([b"%d" % number for number in range(6)])
    queue.get_many(4, 0).reject()
    with queue.get_many(9, 0) as messages:
        assert [bytes(each) for each in messages] == [b"4", b"5"]
    assert queue.info().dead == 2
    assert "dead letters of queue 'jobs' stay in it" in caplog.text
    graves = queue.dead_letters()
    graves.get_many(9, 0).accept()
    until(lambda: queue.get(0) is None and queue.info().dead == 0, "they are moved when somebody looks")
    assert sorted(contents(graves)) == [b"2", b"3"]


def test_letters_that_do_not_fit_are_kept(local: LocalBus, caplog: pytest.LogCaptureFixture) -> None:
    bus = local.connect()
    bus.queue("graves", slot_size=16)
    queue = bus.queue("jobs", dead_letter="graves", **SETTINGS)
    queue.put_many([b"x" * 100, b"small"])
    queue.get_many(2, 0).reject()
    assert queue.get(0) is None
    assert queue.info().dead == 1
    assert contents(queue.dead_letters()) == [b"small"]
    assert "graves" in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("n" * 97, {}, "dead letters"),
        ("q", {"dead_letter": "t"}, "is a topic"),
        ("q", {"dead_letter": "q", "max_deliveries": 3}, "its own dead_letter"),
        ("q", {"dead_letter": "/"}, "empty part"),
    ],
)
def test_letters_need_a_place(local: LocalBus, name: str, settings: dict[str, Any], words: str) -> None:
    bus = local.connect()
    bus.topic("t")
    with pytest.raises(hawser.UsageError, match=words):
        bus.queue(name, **settings)
    assert bus.queues() == []


def test_a_long_name_with_letters_elsewhere(local: LocalBus) -> None:
    bus = local.connect()
    queue = bus.queue("n" * 100, dead_letter="graves")
    queue.put(b"bad")
    got(queue).reject()
    assert contents(bus.queue("graves")) == [b"bad"]
    # 95 bytes are enough for both, and the letters' own queue can be opened as any other.
    queue = bus.queue("m" * 95)
    assert bus.queue(queue.dead_letters().name) is queue.dead_letters()


def test_letters_deleted_under_our_feet_are_made_anew(local: LocalBus) -> None:
    bus = local.connect()
    queue = bus.queue("jobs", **SETTINGS)
    for number in range(3):
        queue.put(b"%d" % number)
        got(queue).reject()
        assert contents(queue.dead_letters()) == [b"%d" % number]
        local.connect().queue("jobs.dead").delete(force=True)
    assert queue.info().dead == 0
