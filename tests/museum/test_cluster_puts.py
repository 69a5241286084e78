"""Puts into a queue of a cluster that outlived the time-out of their connection. Found by review."""

import asyncio
import itertools
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from tests.support.cluster import RunningCluster
from tests.unit.api.cluster.test_queue_faults import Thief

PATIENCE_SECONDS = 60
TIMEOUT_SECONDS = 3.0
LARGE = bytes(900)
_numbers = itertools.count()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def _full_queue(bus: Any) -> Any:
    queue = bus.queue(f"full {next(_numbers)}", capacity_bytes=1000)
    await queue.put(LARGE)
    return queue


@pytest.mark.parametrize("timeout", [None, 86_400.0])
def test_a_put_that_waited_for_room_hears_that_nobody_answers(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    """It kept the deadline of its wait for room, up to a year, and the end of the bus waited with it."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=TIMEOUT_SECONDS) as bus:
            queue = await _full_queue(bus)
            (putter,) = queue._queue.publisher._producers
            waiting = [asyncio.create_task(queue.put(LARGE, timeout=timeout)) for _ in range(2)]
            await _until(lambda: putter._pause is not None and len(putter._queue) == 2)
            Thief(monkeypatch, wire.QueuePut, inf)
            done, _ = await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
            assert len(done) == 2, "a put waits for an answer beyond the time-out of its connection"
            errors = [each.exception() for each in waiting]
            assert isinstance(errors[0], hawser.OutcomeUnknown), errors
            assert isinstance(errors[1], hawser.Unavailable | hawser.OutcomeUnknown), errors
            assert all(f"within {TIMEOUT_SECONDS:g}" in str(each) for each in errors), errors

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_SECONDS))


def test_a_put_with_a_long_wait_for_room_hears_that_nobody_answers(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait for room counted as time for the answer, though nobody had said that there was no room."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=TIMEOUT_SECONDS) as bus:
            queue: Any = bus.queue(f"roomy {next(_numbers)}")
            await queue.info()
            Thief(monkeypatch, wire.QueuePut, inf)
            waiting = asyncio.create_task(queue.put(LARGE, timeout=86_400.0))
            await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)
            assert waiting.done(), "a put waits for an answer beyond the time-out of its connection"
            assert isinstance(waiting.exception(), hawser.OutcomeUnknown)

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_SECONDS))


def test_a_put_in_doubt_waits_for_room_until_its_queue_is_closed(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says that there is no room has answered; but the end of a queue does not wait for room."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=TIMEOUT_SECONDS) as bus:
            queue = await _full_queue(bus)
            (putter,) = queue._queue.publisher._producers
            waiting = asyncio.create_task(queue.put(LARGE))
            await _until(lambda: putter._pause is not None)
            thief = Thief(monkeypatch, wire.QueuePut, 1)
            await _until(lambda: thief.stolen == 1)
            await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
            assert not waiting.done()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await queue.close()
            with pytest.raises(hawser.OutcomeUnknown):
                await waiting

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_SECONDS))


def test_what_waits_behind_a_put_in_doubt_hears_that_nobody_leads(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for room though the only one who had said that there was none was gone."""

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=TIMEOUT_SECONDS) as bus:
            queue = await _full_queue(bus)
            (putter,) = queue._queue.publisher._producers
            waiting = [asyncio.create_task(queue.put(LARGE, timeout=each)) for each in (None, 86_400.0)]
            await _until(lambda: putter._pause is not None and len(putter._queue) == 2)
            thief = Thief(monkeypatch, wire.QueuePut, 1)
            await _until(lambda: thief.stolen == 1 and bool(putter._in_flight) and putter._is_full)
            monkeypatch.setattr(putter._router, "leader_link", lambda shard: None)
            done, _ = await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
            assert len(done) == 2, "a put waits for room, and nobody leads its queue"
            errors = [type(each.exception()) for each in waiting]
            assert errors == [hawser.OutcomeUnknown, hawser.Unavailable], errors

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_SECONDS))
