"""What goes together: everything that is published while a batch is under way, or because one has landed."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from hawser import aio
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from tests.support.cluster import RunningCluster

TASKS = 8
ROUNDS = 20


async def _publish_in_tasks(url: str, topic_name: str, partitions: int = 1) -> tuple[Counter[int], list[int]]:
    """How many messages each partition got, and the sizes of all batches of partition 0, by tasks of which
    each waits for its receipt before it publishes again."""
    async with aio.connect(url) as bus:
        topic = bus.topic(topic_name, replication=3, partitions=partitions)
        await topic
        places: Counter[int] = Counter()

        async def work() -> None:
            for _ in range(ROUNDS):
                places[(await topic.publish(b"value")).partition] += 1

        await asyncio.gather(*(work() for _ in range(TASKS)))
        sizes: list[int] = []
        async with topic.subscribe(start="earliest") as subscription:
            while sum(sizes) < TASKS * ROUNDS:
                sizes += [batch.num_rows for batch in await subscription.take_batches(100, timeout=10)]
        return places, sizes


def test_what_a_landing_sets_free_goes_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningCluster(tmp_path) as cluster:
        _, sizes = asyncio.run(_publish_in_tasks(cluster.url, "together"))
        # The first message leaves alone; from then on all tasks wait for one batch.
        assert len(sizes) <= ROUNDS + 2, sizes
        monkeypatch.setattr(PartitionProducer, "_send_soon", PartitionProducer._send_what_waits)
        _, sizes = asyncio.run(_publish_in_tasks(cluster.url, "apart"))
        assert len(sizes) > ROUNDS + 2, "the canary was not noticed"


def test_messages_without_a_key_go_round(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        places, _ = asyncio.run(_publish_in_tasks(cluster.url, "round", partitions=4))
    assert set(places) == {0, 1, 2, 3}
    assert sum(places.values()) == TASKS * ROUNDS
