"""A cluster was restored from a backup while its clients lived on: they waited in silence until the log had
grown to where they were, and never got the records before that. Found by review."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser import aio
from tests.support.cluster import RunningCluster

SECONDS = 60.0
GONE = r"topic 'orders', partition 0: the log ends at record 4, and .* up to record 9\. So 5 records are gone"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path / "cluster") as running:
        yield running


def publish(topic: Any, first: int, last: int) -> None:
    topic.publish_many([b"%d" % number for number in range(first, last + 1)])


def values(samples: Any) -> list[bytes]:
    return [bytes(sample) for sample in samples]


def taken(subscription: Any, count: int) -> list[bytes]:
    """So many samples, one by one."""
    return [bytes(subscription.take(SECONDS)) for _ in range(count)]


@pytest.fixture
def topic(cluster: RunningCluster, tmp_path: Path) -> Any:
    """There is a backup with four samples."""
    topic = cluster.connect("publisher").topic("orders")
    publish(topic, 1, 4)
    cluster.back_up(tmp_path / "backup")
    return topic


@pytest.mark.parametrize("group", [None, "g"])
def test_a_subscription_ahead_of_the_log_ends_with_an_error(
    cluster: RunningCluster, topic: Any, tmp_path: Path, group: str | None
) -> None:
    publish(topic, 5, 9)
    subscription = topic.subscribe(start="earliest", group=group)
    assert len(taken(subscription, 9)) == 9
    cluster.restore(tmp_path / "backup")
    with pytest.raises(hawser.OffsetOutOfRange, match=GONE):
        subscription.take(SECONDS)
    subscription.close()
    with topic.subscribe(start="earliest", group=group) as again:
        publish(topic, 5, 6)
        assert taken(again, 6) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("group", [None, "g"])
def test_the_same_with_asyncio(
    cluster: RunningCluster, topic: Any, tmp_path: Path, group: str | None
) -> None:
    async def read() -> None:
        async with aio.connect(cluster.url, connect_timeout=SECONDS) as bus:
            opened = bus.topic("orders")
            async with opened.subscribe(start="earliest", group=group) as subscription:
                for _ in range(9):
                    assert await subscription.take(SECONDS) is not None
                await asyncio.to_thread(cluster.restore, tmp_path / "backup")
                with pytest.raises(hawser.OffsetOutOfRange, match=GONE):
                    await subscription.take(SECONDS)

    publish(topic, 5, 9)
    asyncio.run(read())
