"""A time that is over now, in a loop that makes no timer of it. Found by tests/cluster under load.

Of uvloop's handles only those that lie ahead say when they ring; whoever came next was told that there is no
such attribute.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import hawser
from hawser.cluster.client.publish.batch import Item
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from hawser.cluster.client.queue.waiters import Waiters
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.transport import new_event_loop
from hawser.record.batch import Compression
from hawser.record.record import Record

SECONDS = 60.0


def run(story: Coroutine[Any, Any, None]) -> None:
    loop = new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(story, SECONDS))
    finally:
        loop.close()


def test_one_comes_to_a_queue_when_the_time_of_another_is_over() -> None:
    async def story() -> None:
        getters = Waiters(asyncio.get_running_loop(), lambda: hawser.Unavailable("late"))
        early = getters.add(1, False, 0.0)
        late = getters.add(1, False, SECONDS)
        assert await early.future == []
        assert not late.future.done()
        getters.close()

    run(story())


class Nobody:
    """A router that knows no leader."""

    def __init__(self) -> None:
        self.settings = ClientSettings(backoff_least_seconds=SECONDS, backoff_most_seconds=SECONDS)

    def leader_link(self, shard: str) -> None:
        return None


def test_one_publishes_when_the_time_of_another_is_over() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        producer = PartitionProducer(Nobody(), "t", 0, "t@1/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
        futures: list[asyncio.Future[hawser.Receipt]] = []
        for seconds in (0.0, SECONDS):
            futures.append(loop.create_future())
            producer.submit(Item([Record(b"x")], futures[-1], seconds, loop.time()))
        with pytest.raises(hawser.Unavailable):
            await futures[0]
        assert not futures[1].done()
        await producer.close()

    run(story())
