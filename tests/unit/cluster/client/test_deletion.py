"""Deleting by a handle: it deletes what the handle is of, and never what has the name since."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.admin import catalog
from hawser.log.state.results import Reason, Rejected
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster
from tests.support.lossy import LossyNetwork

KINDS = ["topic", "queue"]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> LossyNetwork:
    return LossyNetwork(monkeypatch)


@pytest.fixture(params=["shm", "hawser"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "hawser":
        yield request.getfixturevalue("cluster").url
    else:
        with LocalBus() as local:
            yield local.url


@pytest.fixture
def name() -> str:
    return f"again-{secrets.token_hex(4)}"


def add(opened: Any, message: bytes) -> None:
    getattr(opened, "publish" if isinstance(opened, hawser.Topic) else "put")(message)


def contents(bus: hawser.Bus, kind: str, name: str) -> list[bytes]:
    """What is there; NotFound if nothing of that name is."""
    opened = getattr(bus, kind)(name, create=False)
    found = opened.read_oldest(10).samples if kind == "topic" else opened.peek(10)
    return [bytes(each) for each in found]


def made_anew(bus: hawser.Bus, kind: str, name: str) -> None:
    getattr(bus, kind)(name).delete(force=True)
    add(getattr(bus, kind)(name), b"new")


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_of_what_was_made_anew_deletes_nothing(url: str, kind: str, name: str) -> None:
    with hawser.connect(url) as bus, hawser.connect(url) as other:
        old = getattr(bus, kind)(name)
        add(old, b"old")
        made_anew(other, kind, name)
        old.delete()
        assert contents(other, kind, name) == [b"new"]
        assert contents(bus, kind, name) == [b"new"]
        getattr(bus, kind)(name).delete(force=True)
        with pytest.raises(hawser.NotFound):
            contents(other, kind, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_in_an_event_loop_deletes_nothing_that_was_made_anew(url: str, kind: str, name: str) -> None:
    async def run(other: hawser.Bus) -> None:
        async with aio.connect(url) as bus:
            old = getattr(bus, kind)(name)
            await (old.publish if kind == "topic" else old.put)(b"old")
            await asyncio.to_thread(made_anew, other, kind, name)
            await old.delete()

    with hawser.connect(url) as other:
        asyncio.run(run(other))
        assert contents(other, kind, name) == [b"new"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_that_is_repeated_deletes_nothing_that_was_made_anew(
    cluster: RunningCluster, network: LossyNetwork, kind: str, name: str
) -> None:
    with hawser.connect(cluster.url) as bus, hawser.connect(cluster.url) as other:
        old = getattr(bus, kind)(name)

        def anew() -> None:
            add(getattr(other, kind)(name), b"new")

        network.meanwhile = lambda: asyncio.to_thread(anew)
        network.loses_answer = is_deletion
        old.delete()
        assert contents(other, kind, name) == [b"new"]


def is_deletion(request: Any) -> bool:
    return isinstance(request, wire.Admin) and request.kind is wire.AdminKind.DELETE


def test_a_deletion_that_nobody_has_heard_of_raises(
    cluster: RunningCluster, network: LossyNetwork, name: str
) -> None:
    """It returns when a topic that is opened again cannot be the old one."""
    with hawser.connect(cluster.url, timeout=3.0) as bus:
        topic = bus.topic(name)
        network.lose(wire.GetMap)
        with pytest.raises(hawser.Unavailable, match="is deleted, but no node that answers") as caught:
            topic.delete()
        assert caught.value.retryable and caught.value.outcome == "applied"
        network.heal()
        topic.delete()
        with pytest.raises(hawser.NotFound):
            bus.topic(name, create=False)


@pytest.mark.parametrize("was_sent", [False, True])
def test_a_deletion_without_an_answer_raises(
    cluster: RunningCluster, network: LossyNetwork, name: str, was_sent: bool
) -> None:
    with hawser.connect(cluster.url, timeout=2.0) as bus:
        topic = bus.topic(name)
        if was_sent:
            network.loses_answer, network.loses_all_answers = is_deletion, True
        else:
            network.loses = is_deletion
        with pytest.raises(hawser.OutcomeUnknown if was_sent else hawser.Unavailable, match="deleting"):
            topic.delete()


def test_a_deletion_names_what_it_deletes(cluster: RunningCluster, name: str) -> None:
    cluster.connect().topic(name).publish(b"1")
    refused = cluster.ask(wire.Admin(wire.AdminKind.DELETE, name))
    assert isinstance(refused, wire.Failed) and refused.code is wire.Code.REJECTED, refused
    assert "uuid" in refused.text
    other = cluster.ask(wire.Admin(wire.AdminKind.DELETE, name, uuid="0" * 32))
    assert isinstance(other, wire.Failed) and other.code is wire.Code.NOT_FOUND, other
    assert contents(cluster.connect(), "topic", name) == [b"1"]


def test_what_was_deleted_has_no_info(url: str, name: str) -> None:
    with hawser.connect(url) as bus, hawser.connect(url) as other:
        topic: Any = bus.topic(name)
        made_anew(other, "topic", name)
        with pytest.raises(hawser.Closed):
            topic.info()


def test_forgetting_a_group_is_not_repeated_when_in_doubt(
    cluster: RunningCluster, network: LossyNetwork, name: str
) -> None:
    """A group that others have made anew is theirs."""
    with hawser.connect(cluster.url) as bus, hawser.connect(cluster.url) as other:
        topic: Any = bus.topic(name)
        topic.subscribe(group="g").close()
        theirs: Any = other.topic(name)

        def anew() -> None:
            theirs.subscribe(group="g").close()

        network.meanwhile = lambda: asyncio.to_thread(anew)
        network.loses_answer = lambda request: isinstance(request, wire.Execute)
        with pytest.raises(hawser.OutcomeUnknown, match="forgetting group 'g'"):
            topic.forget("group:g")
        assert [record.name for record in theirs.info().records] == ["group:g"]
        assert theirs.forget("group:g")
        assert not theirs.forget("group:g")


def test_a_group_that_a_transaction_moves_is_not_forgotten_in_silence(
    cluster: RunningCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.connect().topic(name)
    monkeypatch.setattr(catalog, "decode_result", lambda data: Rejected(Reason.LOCKED))
    with pytest.raises(hawser.Rejected, match="a prepared transaction is about to move it") as caught:
        topic.forget("group:g")
    assert caught.value.retryable


@pytest.mark.parametrize("kind", KINDS)
def test_a_bus_of_an_event_loop_gives_what_was_made_anew(url: str, kind: str, name: str) -> None:
    """The old object says at most once that it was deleted; the bus has forgotten it then."""

    async def run(other: hawser.Bus) -> None:
        async with aio.connect(url) as bus:

            async def add_one(data: bytes) -> None:
                opened = getattr(bus, kind)(name)
                await (opened.publish if kind == "topic" else opened.put)(data)

            for number in range(3):
                await add_one(b"old")
                old = getattr(bus, kind)(name)
                await asyncio.to_thread(made_anew, other, kind, name)
                with contextlib.suppress(hawser.Closed):
                    await add_one(b"first %d" % number)
                await add_one(b"second %d" % number)
                assert getattr(bus, kind)(name) is not old
                assert getattr(bus, kind)(name) is getattr(bus, kind)(name)
                assert b"second %d" % number in await asyncio.to_thread(contents, other, kind, name)
            await getattr(bus, kind)(name).close()
            await add_one(b"last")
            assert len(bus._topics if kind == "topic" else bus._queues) == 1  # type: ignore[attr-defined]

    with hawser.connect(url) as other:
        asyncio.run(run(other))


@pytest.mark.parametrize("is_async", [False, True])
def test_dead_letters_are_those_of_a_queue_that_was_made_anew(
    cluster: RunningCluster, name: str, is_async: bool
) -> None:
    dead_letters = f"{name}-letters"

    async def run(bus: aio.AsyncBus) -> None:
        async with bus:
            queue = await bus.queue(name, dead_letter=dead_letters)
            assert await queue.dead_letters().peek(1) == []
            await asyncio.to_thread(made_anew, other, "queue", dead_letters)
            with contextlib.suppress(hawser.Closed):
                await queue.dead_letters().peek(1)
            assert [bytes(each) for each in await queue.dead_letters().peek(1)] == [b"new"]

    with hawser.connect(cluster.url) as bus, hawser.connect(cluster.url) as other:
        if is_async:
            asyncio.run(run(aio.connect(cluster.url)))
            return
        queue: Any = bus.queue(name, dead_letter=dead_letters)
        assert queue.dead_letters().peek(1) == []
        made_anew(other, "queue", dead_letters)
        with contextlib.suppress(hawser.Closed):
            queue.dead_letters().peek(1)
        assert [bytes(each) for each in queue.dead_letters().peek(1)] == [b"new"]
