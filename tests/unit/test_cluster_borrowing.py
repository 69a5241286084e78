"""What a borrower does with its own requests."""

import asyncio
from typing import Any

from hawser import aio
from tests.support.cluster import RunningCluster
from tests.unit.test_cluster_queue import SECONDS, unused_name


def test_an_answer_that_has_come_is_not_interrupted(cluster: RunningCluster) -> None:
    """Another leader answers while something is got ahead: that goes back, by the next request of the same
    task."""

    async def story() -> None:
        async with aio.connect(cluster.url, name="ahead", fetch_wait_seconds=60.0) as bus:
            queue: Any = bus.queue(unused_name())
            await queue.put_many([b"1", b"2"])
            async with queue.consume(prefetch=8) as consumer:
                assert bytes(await anext(consumer)) == b"1"
                borrower = consumer._session.borrower
                while not (borrower._is_polling and borrower._ahead):
                    await asyncio.sleep(0.01)
                task, requests = borrower._task, borrower._request
                borrower._leader = "another"
                await queue.put(b"3")
                while borrower._unseen or borrower._request < requests + 2:
                    await asyncio.sleep(0.01)
                assert borrower._task is task and not task.cancelling()
                assert {bytes(await anext(consumer)) for _ in range(2)} == {b"2", b"3"}

    asyncio.run(asyncio.wait_for(story(), SECONDS))
