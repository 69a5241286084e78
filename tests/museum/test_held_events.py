"""Events that a shard holds back while a step waits for its disk.

Found by review: the disk failed in such a step and in a sync beside it, the shard ended twice, and requests
that were held back were never answered. Any exception did the same, and the node could not be stopped. Ticks
were dropped, so a busy shard made no checkpoint and kept its whole log, and fetches waited until no step did.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster.node.server import NodeSettings
from hawser.cluster.node.shard import Shard
from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol.events import Tick
from hawser.log.protocol.node import Limits
from hawser.log.replica import Settings
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.participant.branches import transactional_parts
from tests.support.cluster import RunningCluster

SECONDS = 30
SETTINGS = NodeSettings(
    replica=Settings(
        journal=JournalSettings(segment_bytes=64 << 10, tail_bytes=64 << 10),
        limits=Limits(idle_ticks=2),
        parts=transactional_parts,
    )
)
SMALL, LARGE = (bytes(Batch.of([Record(bytes(size))]).data) for size in (10, 65_000))


class SlowSyncs:
    """Python's syncs wait while they are held, and fail if they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.failure: OSError | None = None
        real = os.fdatasync

        def sync(descriptor: int) -> None:
            assert self.may_go.wait(SECONDS)
            if self.failure is not None:
                raise self.failure
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", sync)


@contextmanager
def led_shard(directory: Path) -> Iterator[tuple[RunningCluster, str, Shard]]:
    """A cluster, the node that leads a shard, and the shard there."""
    with RunningCluster(directory, settings=SETTINGS) as cluster:
        topic: Any = cluster.connect().topic("held", partitions=1)
        topic.publish(b"first")
        (partition,) = topic.info().partitions
        shards = cluster._nodes[partition.leader].shards
        yield (
            cluster,
            partition.leader,
            next(each for name, each in shards.items() if name.startswith("held@")),
        )


async def begin_waiting_step(shard: Shard) -> "asyncio.Future[Any]":
    """Propose what needs a new segment, and return when the step for it waits for the disk."""
    large: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.propose(Kind.BATCH, LARGE, large)
    while shard._step_end is None:
        await asyncio.sleep(0)
    return large


def proposed(shard: Shard) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.propose(Kind.BATCH, SMALL, future)
    return future


def test_requests_behind_a_failed_step_and_a_failed_sync_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = SlowSyncs(monkeypatch)
    with led_shard(tmp_path) as (cluster, _, shard):

        async def scene() -> None:
            syncs.may_go.clear()
            large = await begin_waiting_step(shard)
            held = proposed(shard)
            await asyncio.sleep(0)
            # The sync beside the step fails first, and is held back until the step has failed, too.
            shard._held.appendleft(lambda: shard._carry_out(shard.replica.sync_failed("planted", True)))
            read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            shard.read(read)
            syncs.failure = OSError(errno.EIO, "Input/output error")
            syncs.may_go.set()
            await asyncio.wait_for(asyncio.wait([large, held, read]), SECONDS)

        cluster.run(scene())
        syncs.failure = None


def test_an_event_that_fails_strands_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = SlowSyncs(monkeypatch)
    with led_shard(tmp_path) as (cluster, node, shard):

        async def scene() -> None:
            syncs.may_go.clear()
            large = await begin_waiting_step(shard)
            shard._held.append(lambda: 1 // 0)  # type: ignore[arg-type]
            held = proposed(shard)
            syncs.may_go.set()
            await asyncio.wait_for(large, SECONDS)
            assert shard._step_end is not None or not shard._held
            await asyncio.wait_for(held, SECONDS)

        cluster.run(scene())
        cluster.stop(node)


def test_a_tick_and_a_fetch_wait_for_one_step_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = SlowSyncs(monkeypatch)
    with led_shard(tmp_path) as (cluster, _, shard):

        async def scene() -> list[str]:
            heard: list[str] = []
            real = shard.replica.step

            def step(event: Any) -> Any:
                heard.append(type(event).__name__)
                return real(event)

            monkeypatch.setattr(shard.replica, "step", step)
            syncs.may_go.clear()
            steps = [await begin_waiting_step(shard)]
            heard.clear()
            # Each of these waits for the disk, too.
            for _ in range(3):
                large: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                shard.propose(Kind.BATCH, LARGE, large)
                await asyncio.sleep(0)
                steps.append(large)
            shard.tick()
            shard.tick()
            fetched = shard._fetched

            def fetch_now(offset: int, max_bytes: int, term: int) -> Any:
                heard.append("fetch")
                return fetched(offset, max_bytes, term)

            monkeypatch.setattr(shard, "_fetched", fetch_now)
            fetch = asyncio.create_task(shard.fetch(1, 1 << 20, 0, 0))
            await asyncio.sleep(0)
            syncs.may_go.set()
            await asyncio.wait_for(asyncio.gather(fetch, *steps), SECONDS)
            return heard

        heard = cluster.run(scene())
        assert heard[:2] == ["Propose", "fetch"] and Tick.__name__ in heard, heard
