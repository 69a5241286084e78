"""Every call that publishes, puts, gets, settles or takes in an event loop, cancelled at each of its awaits.
Then the object is used further: nothing is lost, doubled, stuck or left behind. Both scopes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hawser.api.cluster.aio.publishing import ClusterAsyncPublishing
from tests.support.cancelling import (
    CANCELLED,
    MODES,
    PATIENCE_SECONDS,
    Scene,
    Stage,
    as_coroutine,
    is_empty,
    play,
    play_for,
    soon,
    until,
)
from tests.support.cluster import RunningCluster

# Publishing.


async def _loan(publishing: Any, data: bytes) -> None:
    async with publishing.loan(len(data)) as buffer:
        buffer[:] = data


async def _loan_array(publishing: Any, data: bytes) -> None:
    async with publishing.loan_array(len(data)) as array:
        array[:] = list(data)


async def _nowait(publishing: Any, data: bytes) -> None:
    publishing.publish_nowait(data)
    await publishing.flush()


PUBLISHES: dict[str, Callable[[Any, bytes], Awaitable[Any]]] = {
    "publish": lambda publishing, data: publishing.publish(data),
    "publish_many": lambda publishing, data: publishing.publish_many([data]),
    "loan": _loan,
    "loan_array": _loan_array,
    "flush": _nowait,
}


def publishing(how: str, is_open: bool, by_publisher: bool) -> Scene:
    async def scene(stage: Stage) -> None:
        topic = stage.bus.topic(stage.name)
        maker = topic.publisher() if by_publisher else topic
        if is_open:
            await soon(maker.publish(b"first"))
        await stage.cut(as_coroutine(PUBLISHES[how](maker, b"cut")))
        await soon(maker.publish(b"next"))
        await soon(maker.flush())
        found = [bytes(each) for each in (await topic.read_oldest(9)).samples]
        assert found == [b"first"] * is_open + [b"cut"] * (b"cut" in found) + [b"next"]
        await soon(topic.close())

    return scene


def putting(many: bool, is_open: bool) -> Scene:
    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        if is_open:
            await soon(queue.put(b"first"))
        await stage.cut(queue.put_many([b"cut"]) if many else queue.put(b"cut"))
        await soon(queue.put(b"next"))
        found = [bytes(each) for each in await queue.peek(9)]
        assert found == [b"first"] * is_open + [b"cut"] * (b"cut" in found) + [b"next"]
        await soon(queue.close())

    return scene


# Getting and settling.


async def _get_one(queue: Any) -> list[Any]:
    return [await queue.get(PATIENCE_SECONDS)]


def _from_loop(queue: Any) -> Callable[[], Awaitable[list[Any]]]:
    loop = aiter(queue.consume())

    async def step() -> list[Any]:
        return [await anext(loop)]

    return step


def _from_consumer(queue: Any) -> Callable[[], Awaitable[list[Any]]]:
    consumer = queue.consume()

    async def step() -> list[Any]:
        return [await anext(consumer)]

    return step


GETS: dict[str, Callable[[Any], Callable[[], Awaitable[Any]]]] = {
    "get": lambda queue: lambda: _get_one(queue),
    "get_many": lambda queue: lambda: queue.get_many(2, PATIENCE_SECONDS),
    "loop": _from_loop,
    "consumer": _from_consumer,
}


def getting(how: str, waits: bool, is_open: bool) -> Scene:
    async def scene(stage: Stage) -> None:
        name = stage.name
        queue, other = stage.bus.queue(name), stage.bus.queue(name)
        items = [b"0", b"1", b"2"]
        get = GETS[how](queue)
        if is_open:
            await soon(queue.put(b"before"))
            for each in await soon(get()):
                await each.accept()
        if waits:
            asyncio.get_running_loop().call_later(0.02, lambda: asyncio.ensure_future(other.put_many(items)))
        else:
            await soon(other.put_many(items))
        got = await stage.cut(as_coroutine(get()))
        found: list[bytes] = []
        while len(found) < len(items):
            if got is CANCELLED:
                got = await soon(get())
            for each in got:
                assert (bytes(each), each.delivery_count, each.redelivered) == (items[len(found)], 1, False)
                found.append(bytes(each))
                await soon(each.accept())
            got = CANCELLED
        info = await queue.info()
        assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
        await soon(queue.close())

    return scene


def values(waits: bool) -> Scene:
    """A step that is cancelled gives out nothing, and may have accepted the one before."""

    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        items = [b"%d" % number for number in range(4)]
        await soon(queue.put_many(items[: 1 if waits else 4]))
        loop = queue.consume().values()
        found = [await soon(anext(loop))]
        if waits:
            asyncio.get_running_loop().call_later(
                0.02, lambda: asyncio.ensure_future(queue.put_many(items[1:]))
            )
        got = await stage.cut(as_coroutine(anext(loop)))
        found += [] if got is CANCELLED else [got]
        while len(found) < len(items):
            found.append(await soon(anext(loop)))
        await soon(loop.accept())
        assert found == items
        info = await queue.info()
        assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
        await soon(queue.close())

    return scene


def getting_values() -> Scene:
    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        await soon(queue.put_many([b"0", b"1"]))
        got = await stage.cut(queue.get_values(2, PATIENCE_SECONDS))
        found: list[bytes] = []
        while len(found) < 2:
            held = await soon(queue.get_values(2, PATIENCE_SECONDS)) if got is CANCELLED else got
            got = CANCELLED
            found += held
            await soon(held.accept())
        assert found == [b"0", b"1"]
        await until(lambda: is_empty(queue), "nothing is held")
        await soon(queue.close())

    return scene


SETTLED = {"accept": (0, 0, 0), "release": (1, 0, 0), "reject": (0, 0, 1)}


async def _loop_of_values(queue: Any) -> Any:
    loop = queue.consume(prefetch=0).values()
    await anext(loop)
    return loop


HELD: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "one": lambda queue: queue.get(PATIENCE_SECONDS),
    "all": lambda queue: queue.get_many(1, PATIENCE_SECONDS),
    "values": lambda queue: queue.get_values(1, PATIENCE_SECONDS),
    "a loop": _loop_of_values,
}


def settling(verdict: str, what: str) -> Scene:
    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        await soon(queue.put(b"1"))
        held = await soon(HELD[what](queue))
        await stage.cut(getattr(held, verdict)())
        await soon(getattr(held, verdict)())
        info = await queue.info()
        assert (info.ready, info.claimed, info.dead) == SETTLED[verdict]
        await soon(queue.close())

    return scene


async def _block(held: Any) -> None:
    async with held:
        pass


def block(what: str) -> Scene:
    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        await soon(queue.put(b"1"))
        held = await soon(HELD[what](queue))
        await stage.cut(_block(held))
        await soon(held.accept())
        info = await queue.info()
        assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
        await soon(queue.close())

    return scene


def dead_letters(what: str) -> Scene:
    """The dead letters of a queue are a queue too."""

    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        await soon(queue.put(b"1"))
        await soon((await soon(queue.get(PATIENCE_SECONDS))).reject())
        dead_letters = queue.dead_letters()

        async def accept() -> None:
            await (await dead_letters.get(PATIENCE_SECONDS)).accept()

        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "opening": lambda: as_coroutine(dead_letters),
            "info": dead_letters.info,
            "peek": lambda: dead_letters.peek(1),
            "get": lambda: dead_letters.get(0.0),
            "accepting": accept,
        }
        await stage.cut(as_coroutine(calls[what]()))
        await until(lambda: _is_free(dead_letters, what == "accepting"), "nothing is held")
        if (await dead_letters.info()).ready:
            assert bytes((await soon(dead_letters.peek(1)))[0]) == b"1"
            await soon(accept())
        await until(lambda: is_empty(dead_letters), "nothing is left")
        assert (await queue.info()).dead == 0
        await soon(dead_letters.close())
        await soon(queue.close())

    return scene


async def _is_free(dead_letters: Any, may_be_gone: bool) -> bool:
    info = await dead_letters.info()
    return (info.ready, info.claimed) == (1, 0) or (may_be_gone and (info.ready, info.claimed) == (0, 0))


DEAD_LETTERS = ("opening", "info", "peek", "get", "accepting")


# Taking.


async def _take_one(subscription: Any) -> list[Any]:
    return [await subscription.take(PATIENCE_SECONDS)]


async def _next_one(subscription: Any) -> list[Any]:
    return [await anext(subscription)]


async def _next_value(subscription: Any) -> list[Any]:
    return [await anext(subscription.values())]


async def _take_batches(subscription: Any) -> list[Any]:
    batches = await subscription.take_batches(1, PATIENCE_SECONDS)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


async def _take_value(subscription: Any) -> list[Any]:
    return [await subscription.take_value(PATIENCE_SECONDS)]


TAKES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "take": _take_one,
    "take_many": lambda subscription: subscription.take_many(2, PATIENCE_SECONDS),
    "take_value": _take_value,
    "take_values": lambda subscription: subscription.take_values(2, PATIENCE_SECONDS),
    "take_batches": _take_batches,
    "loop": _next_one,
    "values": _next_value,
}


def taking(how: str, waits: bool, group: str | None = None) -> Scene:
    async def scene(stage: Stage) -> None:
        topic = stage.bus.topic(stage.name)
        await topic
        items = [b"0", b"1", b"2"]
        if not waits:
            await soon(topic.publish_many(items))
        if stage.is_cluster:
            subscription = topic.subscribe(start="earliest", group=group)
        else:
            subscription = topic.subscribe(history=9)
        if waits:
            asyncio.get_running_loop().call_later(
                0.02, lambda: asyncio.ensure_future(topic.publish_many(items))
            )
        got = await stage.cut(as_coroutine(TAKES[how](subscription)))
        found: list[bytes] = []
        while len(found) < len(items):
            found += map(bytes, await soon(TAKES[how](subscription)) if got is CANCELLED else got)
            got = CANCELLED
        assert (found, subscription.missed) == (items, 0)
        assert await subscription.take(0) is None
        await soon(subscription.close())
        await soon(topic.close())

    return scene


def committing() -> Scene:
    async def scene(stage: Stage) -> None:
        topic = stage.bus.topic(stage.name)
        await soon(topic.publish_many([b"0", b"1"]))
        async with topic.subscribe(start="earliest", group="g") as subscription:
            await soon(subscription.take(PATIENCE_SECONDS))
            await stage.cut(subscription.commit())
            await soon(subscription.commit())
        async with topic.subscribe(start="earliest", group="g") as subscription:
            assert bytes(await soon(subscription.take(PATIENCE_SECONDS))) == b"1"
        await soon(topic.close())

    return scene


SCENES: dict[str, Scene] = {
    **{
        f"{how} of a {'publisher' if own else 'topic'}, {'open' if is_open else 'new'}": publishing(
            how, is_open, own
        )
        for how in PUBLISHES
        for is_open in (False, True)
        for own in (False, True)
    },
    **{
        f"{'put_many' if many else 'put'}, {'open' if is_open else 'new'}": putting(many, is_open)
        for many in (False, True)
        for is_open in (False, True)
    },
    **{
        f"{how} of a queue, {'empty' if waits else 'filled'}, {'open' if is_open else 'new'}": getting(
            how, waits, is_open
        )
        for how in GETS
        for waits in (False, True)
        for is_open in (False, True)
    },
    "values": values(False),
    "values, empty": values(True),
    "get_values": getting_values(),
    **{f"{verdict} {what}": settling(verdict, what) for verdict in SETTLED for what in HELD},
    **{f"block of {what}": block(what) for what in HELD},
    **{f"{what} of dead letters": dead_letters(what) for what in DEAD_LETTERS},
    **{
        f"{how} of a topic, {'empty' if waits else 'filled'}": taking(how, waits)
        for how in TAKES
        if how != "take_batches"
        for waits in (False, True)
    },
}
CLUSTER_SCENES: dict[str, Scene] = {
    "take_batches of a topic": taking("take_batches", False),
    "take_batches of a topic, empty": taking("take_batches", True),
    "take of a group": taking("take", False, "g"),
    "take of a group, empty": taking("take", True, "g"),
    "commit of a group": committing(),
}


@pytest.mark.parametrize("name", SCENES)
def test_whatever_is_cancelled_is_used_further(url: str, name: str) -> None:
    play(url, SCENES[name], list(SCENES).index(name))


@pytest.mark.parametrize("name", CLUSTER_SCENES)
def test_whatever_is_cancelled_on_a_cluster_is_used_further(cluster: RunningCluster, name: str) -> None:
    play(cluster.url, CLUSTER_SCENES[name], list(CLUSTER_SCENES).index(name))


def test_a_cancelled_publish_that_is_repeated_is_found_out(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(self: Any, record: Any, timeout: float | None) -> Any:
        try:
            return await original(self, record, timeout)
        except asyncio.CancelledError:
            repeated.append(asyncio.create_task(original(self, record, timeout)))
            raise

    repeated: list[asyncio.Task[Any]] = []
    original = ClusterAsyncPublishing._publish
    monkeypatch.setattr(ClusterAsyncPublishing, "_publish", publish)
    with pytest.raises(AssertionError, match="cut"):
        play(cluster.url, publishing("publish", is_open=True, by_publisher=False), MODES.index("when done"))


@pytest.mark.soak
def test_a_long_sweep(url: str, soak_seconds: float, record_property: Callable[[str, object], None]) -> None:
    is_cluster = url.startswith("hawser:")
    record_property("awaits", play_for(url, SCENES | CLUSTER_SCENES if is_cluster else SCENES, soak_seconds))
