"""Reads whose time runs out: each raises, and none returns fewer messages than it was asked for."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.queue import dead_letters
from hawser.log.entry import Kind
from hawser.log.state.commands import TrimTo, encode_command
from tests.support.cluster import RunningCluster
from tests.support.lossy import LossyNetwork
from tests.support.processes import until

BATCHES = 6


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> LossyNetwork:
    return LossyNetwork(monkeypatch)


@pytest.fixture
def bus(cluster: RunningCluster) -> Iterator[hawser.Bus]:
    # One batch is fetched at a time.
    with hawser.connect(cluster.url, timeout=3.0, connect_timeout=30.0, fetch_bytes=1) as bus:
        yield bus


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest, bus: hawser.Bus) -> hawser.Topic[Any]:
    """With six batches of one message."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]
    made = cluster.connect().topic(name)
    for number in range(1, BATCHES + 1):
        made.publish(str(number).encode())
    opened: hawser.Topic[Any] = bus.topic(name, create=False)
    return opened


def offsets(result: hawser.ReadResult) -> list[int]:
    return [sample.offset for sample in result.samples]


def test_a_read_that_is_cut_short_raises_with_what_it_has(
    topic: hawser.Topic[Any], network: LossyNetwork
) -> None:
    network.lose(wire.Fetch, since=3)
    with pytest.raises(hawser.Unavailable, match="reading topic") as caught:
        topic.read_oldest(100)
    read = caught.value.read
    assert read is not None and caught.value.retryable
    assert (offsets(read), read.last, read.missed) == ([1, 2], 2, 0)
    network.heal()
    rest = topic.read_oldest(100, after=read.last)
    assert (offsets(rest), rest.last, rest.missed) == ([3, 4, 5, 6], 6, 0)


def test_a_read_that_takes_too_long_raises_with_what_it_has(
    topic: hawser.Topic[Any], network: LossyNetwork
) -> None:
    network.delay_seconds = 3.5
    network.delays = lambda request: isinstance(request, wire.Fetch) and request.offset == 2
    with pytest.raises(hawser.Timeout, match="only 2 of the messages came within 3 s") as caught:
        topic.read_oldest(100)
    read = caught.value.read
    assert read is not None and (offsets(read), read.last) == ([1, 2], 2)


@pytest.mark.parametrize("newest", [False, True])
def test_a_read_that_gets_nothing_is_not_an_empty_topic(
    topic: hawser.Topic[Any], network: LossyNetwork, newest: bool
) -> None:
    network.lose(wire.Fetch)
    with pytest.raises(hawser.Unavailable) as caught:
        (topic.read_newest if newest else topic.read_oldest)(1)
    assert caught.value.read is None


def test_a_read_in_an_event_loop_raises_with_what_it_has(
    cluster: RunningCluster, topic: hawser.Topic[Any], network: LossyNetwork
) -> None:
    async def read() -> None:
        async with aio.connect(cluster.url, timeout=3.0, connect_timeout=30.0, fetch_bytes=1) as bus:
            opened = await bus.topic(topic.name, create=False)
            network.lose(wire.Fetch, since=5)
            with pytest.raises(hawser.Unavailable) as caught:
                await opened.read_newest(4)
            read = caught.value.read
            assert read is not None and (offsets(read), read.last) == ([3, 4], 4)
            network.heal()
            assert offsets(await opened.read_newest(4)) == [3, 4, 5, 6]

    asyncio.run(read())


def test_a_read_goes_on_when_all_it_was_to_read_is_trimmed(
    cluster: RunningCluster, topic: hawser.Topic[Any], network: LossyNetwork
) -> None:
    """What was published meanwhile is behind it: an empty result would say that there is nothing."""
    partition = topic.info().partitions[0]
    writer = cluster.connect().topic(topic.name)
    is_trimmed = False

    def trim(request: Any) -> bool:
        nonlocal is_trimmed
        if isinstance(request, wire.Fetch) and not is_trimmed:
            is_trimmed = True
            writer.publish(b"7")
            trimmed = wire.Execute(partition.shard, Kind.TRIM, encode_command(TrimTo(7)))
            assert isinstance(cluster.ask(trimmed, partition.leader), wire.Executed)
        return False

    network.loses = trim
    found = topic.read_oldest(100)
    assert (offsets(found), found.last, found.missed) == ([7], 7, 6)
    assert offsets(topic.read_newest(100)) == [7]


def test_a_subscription_from_a_time_begins_there_or_not_at_all(
    topic: hawser.Topic[Any], network: LossyNetwork
) -> None:
    network.lose(wire.Fetch)
    moment = datetime.fromtimestamp(0, UTC)
    with pytest.raises(hawser.Unavailable, match="reading topic"):
        topic.subscribe(start=moment)
    network.heal()
    with topic.subscribe(start=moment) as subscription:
        assert subscription.take(timeout=30.0) is not None


@pytest.mark.parametrize("lost", [wire.Inspect, wire.QueueLook])
def test_participants_are_all_or_an_error(
    bus: hawser.Bus, topic: hawser.Topic[Any], network: LossyNetwork, lost: type
) -> None:
    bus.queue("of-participants").put(b"1")
    network.lose(lost)
    with pytest.raises(hawser.Unavailable, match="looking at"):
        bus.participants()


def test_retrying_dead_letters_says_how_many_it_has_moved(
    cluster: RunningCluster, network: LossyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_TOGETHER", 2)
    queue: Any = cluster.connect(timeout=3.0).queue("of-letters")
    queue.put_many([b"1", b"2", b"3", b"4"])
    found = queue.get_many(4, timeout=60.0)
    assert len(found) == 4
    found.reject()
    seen: list[Any] = []

    def loses(request: Any) -> bool:
        if isinstance(request, wire.QueueSettle) and request not in seen:
            seen.append(request)
        return len(seen) > 1 and isinstance(request, wire.QueueSettle)

    network.loses = loses
    with pytest.raises(hawser.HawserError) as caught:
        queue.retry_dead_letters()
    # Unknown if the time is over while a request is under way.
    assert caught.value.published == 2 and caught.value.outcome in ("applied", "unknown")
    network.heal()
    moved = 0

    def is_all_moved() -> bool:
        # The session that failed may hold its letters for a moment.
        nonlocal moved
        moved += queue.retry_dead_letters()
        return bool(moved == 2)

    until(is_all_moved, "the rest of the letters to be moved")
