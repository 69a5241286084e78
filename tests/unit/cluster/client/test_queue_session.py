"""What a borrower does with its own requests."""

import asyncio
from typing import Any

import msgspec
import pytest

from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client import rpc
from hawser.cluster.client.queue import session
from hawser.log.queue.claims import Token
from tests.support.cluster import RunningCluster
from tests.unit.api.cluster.test_queue import SECONDS, unused_name


def test_an_answer_that_has_come_is_not_interrupted(cluster: RunningCluster) -> None:
    """Another leader answers while something is got ahead: that goes back, by the next request of the same
    task."""

    async def story() -> None:
        async with aio.connect(cluster.url, name="ahead", fetch_wait_seconds=60.0) as bus:
            queue: Any = bus.queue(unused_name())
            await queue.put_many([b"1", b"2"])
            async with queue.consume(prefetch=8) as consumer:
                first = await anext(consumer)
                assert bytes(first) == b"1"
                queue_session = consumer._session.queue_session
                while not (queue_session._is_polling and queue_session._ahead):
                    await asyncio.sleep(0.01)
                task, requests = queue_session._task, queue_session._request
                queue_session._leader = "another"
                await queue.put(b"3")
                while queue_session._unseen or queue_session._request < requests + 2:
                    await asyncio.sleep(0.01)
                assert queue_session._task is task and not task.cancelling()
                assert {bytes(await anext(consumer)) for _ in range(2)} == {b"2", b"3"}

    asyncio.run(asyncio.wait_for(story(), SECONDS))


def test_what_a_leader_of_earlier_lends_is_not_taken(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one has lent to the session before; what the earlier one is told or says changes nothing."""
    outdated: list[bool] = []

    async def ask(link: Any, body: bytes, timeout_seconds: float) -> wire.Answer:
        answer = await rpc.ask(link, body, timeout_seconds)
        if isinstance(answer, wire.Delivered) and answer.delivery_batches and outdated == [False]:
            outdated[:] = [True]
            (delivery_batch,) = answer.delivery_batches
            return wire.Delivered((msgspec.structs.replace(delivery_batch, token=Token(0, 77)),))
        return answer

    async def story() -> None:
        async with aio.connect(cluster.url, name="late") as bus:
            queue: Any = bus.queue(unused_name())
            await queue.put_many([b"1", b"2"])
            async with bus.transaction() as tx:
                first: Any = await tx.get(queue, SECONDS)
                await tx.accept(first)
            queue_session = queue._sessions[True].queue_session
            received = queue_session._received
            monkeypatch.setattr(session, "ask", ask)
            outdated.append(False)
            async with bus.transaction() as tx:
                message: Any = await tx.get(queue, SECONDS)
                assert bytes(message) == b"2" and message._held_message.epoch == received.epoch
                await tx.accept(message)
            assert outdated == [True] and queue_session._held == 0
            assert queue_session._received.epoch == received.epoch
            assert (await queue.info()).ready == (await queue.info()).claimed == 0

    asyncio.run(asyncio.wait_for(story(), SECONDS))
