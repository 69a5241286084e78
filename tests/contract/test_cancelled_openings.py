"""Every call that opens, asks, deletes, closes or works in a transaction in an event loop, cancelled at
each of its awaits. Then the object is used further: nothing is lost, doubled, stuck or left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import hawser
from hawser import aio
from tests.support.cancelling import (
    CANCELLED,
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

# What is asked, and what is closed.


def asking(what: str) -> Scene:
    async def scene(stage: Stage) -> None:
        queue, topic = stage.bus.queue(stage.name), stage.bus.topic(stage.name)
        await soon(queue.put(b"1"))
        await soon(topic.publish(b"1"))
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "topics": stage.bus.topics,
            "queues": stage.bus.queues,
            "participants": stage.bus.participants,
            "files": stage.bus.files,
            "recover": stage.bus.recover,
            "topic info": topic.info,
            "queue info": queue.info,
            "peek": lambda: queue.peek(1),
            "read_oldest": lambda: topic.read_oldest(1),
            "read_newest": lambda: topic.read_newest(1),
            "forget": lambda: topic.forget("group:nobody" if stage.is_cluster else "nobody"),
            "queue forget": lambda: queue.forget("nobody"),
            "retry": queue.retry_dead_letters,
        }
        await stage.cut(as_coroutine(calls[what]()))
        await soon(calls[what]())
        assert bytes((await topic.read_newest(1)).samples[0]) == b"1"
        assert bytes((await queue.peek(1))[0]) == b"1"
        await soon(queue.close())
        await soon(topic.close())

    return scene


ASKED = (
    "topics", "queues", "participants", "files", "recover", "topic info", "queue info", "peek", "read_oldest",
    "read_newest", "forget", "queue forget", "retry",
)  # fmt: skip


def retrying() -> Scene:
    async def scene(stage: Stage) -> None:
        queue = stage.bus.queue(stage.name)
        await soon(queue.put_many([b"0", b"1", b"2"]))
        for each in await soon(queue.get_many(3, PATIENCE_SECONDS)):
            await each.reject()
        await stage.cut(queue.retry_dead_letters())
        await soon(queue.retry_dead_letters())
        await until(lambda: _has_no_dead_letters(queue), "all letters are back")
        assert sorted(bytes(each) for each in await queue.peek(9)) == [b"0", b"1", b"2"]
        await soon(queue.close())

    return scene


async def _has_no_dead_letters(queue: Any) -> bool:
    return (await queue.info()).dead == 0 if not isinstance(await queue.retry_dead_letters(), str) else False


def deleting(kind: str) -> Scene:
    async def scene(stage: Stage) -> None:
        name = stage.name
        opened = getattr(stage.bus, kind)(name)
        await opened
        got = await stage.cut(opened.delete())
        if got is CANCELLED:
            again = getattr(stage.bus, kind)(name, create=False)
            try:
                await soon(as_coroutine(again))
                await soon(again.delete())
            except hawser.NotFound:
                pass
        assert name not in await getattr(stage.bus, f"{kind}s")()
        anew = getattr(stage.bus, kind)(name)
        await soon(as_coroutine(anew))
        await soon(anew.close())

    return scene


def closing(what: str) -> Scene:
    """Closed again it is closed, with all that was made of it; what was begun before is done."""

    async def scene(stage: Stage) -> None:
        before = asyncio.all_tasks()
        name, queue_name = stage.name, stage.name
        bus = aio.connect(stage.url)
        topic, queue = bus.topic(name), bus.queue(queue_name)
        publisher, subscription = topic.publisher(), topic.subscribe(history=1)
        await soon(publisher.publish(b"1"))
        await soon(subscription.take(PATIENCE_SECONDS))
        await soon(queue.put_many([b"1", b"2", b"3"]))
        consumer: Any = queue.consume(prefetch=0)
        held = await soon(anext(consumer))
        mine = await soon(queue.get(PATIENCE_SECONDS))
        begun = [publisher.publish_nowait(b"2"), publisher.publish_nowait(b"3")]
        closed: Any = {
            "publisher": publisher, "subscription": subscription, "consumer": consumer, "topic": topic,
            "queue": queue, "bus": bus,
        }[what]  # fmt: skip
        await stage.cut(closed.close())
        await soon(closed.close())
        if what in ("publisher", "topic", "bus"):
            assert [each.done() and each.exception() for each in begun] == [None, None]
        if what in ("consumer", "queue", "bus"):
            with pytest.raises((hawser.Closed, hawser.Fenced)):
                await held.accept()
        if what in ("queue", "bus"):
            other = stage.bus.queue(queue_name)
            await until(lambda: _is_all_ready(other, 3), "all is given back")
            with pytest.raises((hawser.Closed, hawser.Fenced)):
                await mine.accept()
        await soon(bus.close())
        await asyncio.wait_for(_until_only(before | {asyncio.current_task()}), PATIENCE_SECONDS)

    return scene


async def _is_all_ready(queue: Any, count: int) -> bool:
    info = await queue.info()
    return (info.ready, info.claimed) == (count, 0)


async def _until_only(known: Any) -> None:
    """Until no other task is left."""
    while asyncio.all_tasks() - known - {asyncio.current_task()}:
        await asyncio.sleep(0.01)


def opening(what: str) -> Scene:
    async def scene(stage: Stage) -> None:
        before = asyncio.all_tasks()
        bus = aio.connect(stage.url)
        topic, queue = bus.topic(stage.name), bus.queue(stage.name)
        opened: Any = {
            "bus": bus, "topic": topic, "queue": queue, "publisher": topic.publisher(),
        }.get(what)  # fmt: skip
        if opened is None:
            # On one host these are open at once.
            opened = topic.subscribe() if what == "subscription" else queue.consume()
        await stage.cut(as_coroutine(opened))
        await soon(as_coroutine(opened))
        await soon(topic.publish(b"1"))
        await soon(queue.put(b"1"))
        await soon(bus.close())
        await asyncio.wait_for(_until_only(before | {asyncio.current_task()}), PATIENCE_SECONDS)

    return scene


# Transactions.

STEPS = ("get", "publish", "accept", "commit", "rollback", "resolve")


def transacting(step: str) -> Scene:
    """Whatever is cancelled, all of it happened or nothing, and nothing stays with it."""

    async def scene(stage: Stage) -> None:
        jobs, results = stage.bus.queue(stage.name), stage.bus.topic(stage.name)
        await soon(jobs.put(b"job"))
        await results
        work = stage.bus.transaction()

        async def do(name: str, call: Any) -> Any:
            return await (stage.cut(call) if name == step else soon(call))

        job = await do("get", work.get(jobs, PATIENCE_SECONDS))
        if job is CANCELLED:
            job = await soon(work.get(jobs, PATIENCE_SECONDS))
        done = [await do("publish", work.publish(results, b"result")), await do("accept", work.accept(job))]
        if CANCELLED in done:
            await soon(work.rollback())
        elif step == "rollback":
            await stage.cut(work.rollback())
            await soon(work.rollback())
        else:
            await do("commit", work.commit())
            await do("resolve", work.resolve())
        is_committed = await soon(work.resolve())
        assert work.state == ("committed" if is_committed else "rolled back")
        assert is_committed or step in ("publish", "accept", "commit", "rollback")
        await check_work(jobs, results, is_committed)

    return scene


async def check_work(jobs: Any, results: Any, is_committed: bool) -> None:
    """The result is there and the job is not, or the other way round; then the job can be done."""
    found = [bytes(each) for each in (await results.read_oldest(9)).samples]
    assert found == [b"result"] * is_committed
    if not is_committed:
        job = await soon(jobs.get(PATIENCE_SECONDS))
        assert bytes(job) == b"job"
        await soon(job.accept())
    await until(lambda: is_empty(jobs), "nothing is held or left")
    await soon(jobs.close())
    await soon(results.close())


def running() -> Scene:
    async def scene(stage: Stage) -> None:
        jobs, results = stage.bus.queue(stage.name), stage.bus.topic(stage.name)
        await soon(jobs.put(b"job"))
        await results

        async def work(transaction: Any) -> None:
            job = await transaction.get(jobs, PATIENCE_SECONDS)
            await transaction.publish(results, b"result")
            await transaction.accept(job)

        await stage.cut(stage.bus.run_transaction(work))
        await until(lambda: _is_settled(jobs, results), "it is over")
        info = await results.info()
        await check_work(jobs, results, info.partitions[0].end > 1)

    return scene


async def _is_settled(jobs: Any, results: Any) -> bool:
    """Whether the job is back, or the result there."""
    info = await jobs.info()
    ends = [each.end for each in (await results.info()).partitions]
    return (info.ready, info.claimed) == (int(ends == [1]), 0)


OPENED = ("bus", "topic", "queue", "publisher", "subscription", "consumer")
SCENES: dict[str, Scene] = {
    **{f"asking for {what}": asking(what) for what in ASKED},
    "retrying letters": retrying(),
    "deleting a topic": deleting("topic"),
    "deleting a queue": deleting("queue"),
    **{f"closing a {what}": closing(what) for what in OPENED},
    **{f"opening a {what}": opening(what) for what in OPENED},
}
CLUSTER_SCENES: dict[str, Scene] = {
    **{f"{step} of a transaction": transacting(step) for step in STEPS},
    "run_transaction": running(),
}


@pytest.mark.parametrize("name", SCENES)
def test_whatever_is_cancelled_is_used_further(url: str, name: str) -> None:
    play(url, SCENES[name], list(SCENES).index(name))


@pytest.mark.parametrize("name", CLUSTER_SCENES)
def test_whatever_is_cancelled_on_a_cluster_is_used_further(cluster: RunningCluster, name: str) -> None:
    play(cluster.url, CLUSTER_SCENES[name], list(CLUSTER_SCENES).index(name))


@pytest.mark.soak
def test_a_long_sweep(url: str, soak_seconds: float, record_property: Callable[[str, object], None]) -> None:
    is_cluster = url.startswith("hawser:")
    record_property("awaits", play_for(url, SCENES | CLUSTER_SCENES if is_cluster else SCENES, soak_seconds))
