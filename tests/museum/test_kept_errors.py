"""A message that cannot be decoded, behind values that were returned: the next call that takes or commits
raises its error.

Found by reading: a transaction moved its group past the message without an error, and `async for` over a
subscription of `hawser.connect` went on behind it.
"""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

import hawser
from hawser import aio
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS

UNREADABLE = 2
reading: list[bool] = []


class Value(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if reading and self.n == UNREADABLE:
            raise ValueError("cannot be decoded")


@pytest.fixture(autouse=True)
def unreadable() -> Iterator[None]:
    yield
    reading.clear()


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> hawser.Topic[Value]:
    """With three messages, of which the second cannot be decoded."""
    topic = cluster.connect().topic(request.node.name, schema=Value)
    topic.publish_many([Value(n) for n in (1, UNREADABLE, 3)])
    reading.append(True)
    return topic


def test_a_transaction_does_not_pass_it_in_silence(
    cluster: RunningCluster, topic: hawser.Topic[Value]
) -> None:
    bus = cluster.connect()
    subscription = bus.topic(topic.name, schema=Value).subscribe(group="g", start="earliest")
    assert subscription.take_values(3, LIMIT_SECONDS) == [Value(1)]
    with pytest.raises(hawser.Corrupt), bus.transaction() as tx:
        tx.commit_offsets(subscription)
    # It is rolled back, and the subscription takes the same again.
    assert subscription.take_values(3, LIMIT_SECONDS) == [Value(1)]
    with bus.transaction() as tx, pytest.raises(hawser.Corrupt):
        tx.commit_offsets(subscription)
    assert subscription.take_values(3, LIMIT_SECONDS) == [Value(3)]


def test_a_transaction_in_a_loop_does_not_pass_it_in_silence(
    cluster: RunningCluster, topic: hawser.Topic[Value]
) -> None:
    async def work() -> None:
        async with aio.connect(cluster.url) as bus:
            subscription = await bus.topic(topic.name, schema=Value).subscribe(group="g", start="earliest")
            assert await subscription.take_values(3, LIMIT_SECONDS) == [Value(1)]
            with pytest.raises(hawser.Corrupt):
                async with bus.transaction() as tx:
                    await tx.commit_offsets(subscription)
            assert await subscription.take_values(3, LIMIT_SECONDS) == [Value(1)]
            async with bus.transaction() as tx:
                with pytest.raises(hawser.Corrupt):
                    await tx.commit_offsets(subscription)
            assert await subscription.take_values(3, LIMIT_SECONDS) == [Value(3)]

    asyncio.run(work())


def test_an_iteration_in_a_loop_does_not_pass_it_in_silence(topic: hawser.Topic[Value]) -> None:
    subscription = topic.subscribe(start="earliest")
    assert subscription.take_values(3, LIMIT_SECONDS) == [Value(1)]

    async def work() -> None:
        with pytest.raises(hawser.Corrupt):
            await anext(subscription)
        assert (await anext(subscription)).value == Value(3)

    asyncio.run(work())
