"""Steps that wait for a disk, beside the event loop of a node."""

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster.disk import Disk
from hawser.cluster.node.disk_steps import DiskSteps
from hawser.cluster.node.server import NodeSettings
from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol.events import Propose
from hawser.log.protocol.node import Limits
from hawser.log.replica import Settings
from hawser.transaction.participant.branches import transactional_parts
from tests.support.cluster import RunningCluster
from tests.support.processes import until

SECONDS = 30
MIB = 1 << 20


async def stepped(steps: DiskSteps, disk: Disk, call: Callable[[], Any]) -> Any:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def end(result: Any, failure: BaseException | None) -> None:
        if failure is None:
            ended.set_result(result)
        else:
            ended.set_exception(failure)

    steps.begin(disk, call, end)
    return await asyncio.wait_for(ended, SECONDS)


def test_the_loop_runs_while_a_step_syncs_and_at_no_other_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    real = os.fdatasync
    heard: list[str] = []

    def slow(descriptor: int) -> None:
        assert may_sync.wait(SECONDS)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)

    async def main() -> None:
        disk, steps, loop = Disk(tmp_path / "disk"), DiskSteps(2), asyncio.get_running_loop()

        def call() -> str:
            disk.create("a", 10)
            loop.call_soon_threadsafe(heard.append, "loop")
            # The loop stands still until the sync, however long this takes.
            loop.call_soon_threadsafe(may_sync.set)
            heard.append("before the sync")
            disk.sync("a")
            heard.append("after the sync")
            return "done"

        assert await stepped(steps, disk, call) == "done"
        assert heard == ["before the sync", "loop", "after the sync"]
        disk.sync("a")
        steps.close()
        disk.close()

    asyncio.run(main())


def test_more_steps_than_threads_end_and_what_one_raises_is_handed_on(tmp_path: Path) -> None:
    async def main() -> None:
        steps = DiskSteps(2)
        disks = [Disk(tmp_path / f"{number}") for number in range(7)]

        def sync(disk: Disk) -> int:
            for name in "abc":
                disk.create(name, 10)
                disk.sync(name)
                disk.sync_names()
            return len(disk.names())

        found = await asyncio.gather(*(stepped(steps, each, partial(sync, each)) for each in disks))
        assert found == [3] * 7
        with pytest.raises(FileExistsError):
            await stepped(steps, disks[0], lambda: sync(disks[0]))
        steps.close()
        for each in disks:
            each.close()

    asyncio.run(main())


def test_no_sync_holds_up_the_loop_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two syncs for a fence, two for each segment and 17 for a checkpoint with retention were made in the
    loop: on a slow disk every shard of the node stood still with the one."""
    settings = NodeSettings(
        replica=Settings(
            journal=JournalSettings(segment_bytes=64 << 10, tail_bytes=64 << 10),
            limits=Limits(idle_ticks=2),
            parts=transactional_parts,
            checkpoint_entries=30,
            spare_entries=0,
        )
    )
    with RunningCluster(tmp_path, settings=settings) as cluster:
        bus = cluster.connect()
        in_loop: list[str] = []
        beside = 0

        def counted(real: Callable[[int], None]) -> Callable[[int], None]:
            def count(descriptor: int) -> None:
                nonlocal beside
                if threading.current_thread().name == "cluster":
                    in_loop.append("".join(traceback.format_stack(limit=8)))
                else:
                    beside += 1
                return real(descriptor)

            return count

        monkeypatch.setattr(os, "fsync", counted(os.fsync))
        monkeypatch.setattr(os, "fdatasync", counted(os.fdatasync))
        topic: Any = bus.topic("synced", partitions=1, retention_bytes=100_000)
        publisher = topic.publisher()

        def publish(count: int) -> None:
            for _ in range(count):
                publisher.publish(bytes(10_000))

        publish(40)
        (partition,) = topic.info().partitions
        shards = [node.shards for node in cluster._nodes.values()]
        (name,) = {name for each in shards for name in each if name.startswith("synced@")}

        # A checkpoint with retention on each member, then a fence and a new leader.
        def are_shortened() -> bool:
            publish(10)
            return all(each[name].replica.journal.first > 1 for each in shards)

        until(are_shortened, "retention")
        other = next(node for node in cluster.nodes if node != partition.leader)
        cluster.transfer(name, other)
        publish(1)
        publisher.close()
        topic.delete()
        monkeypatch.undo()
        assert beside > 50
        assert not in_loop, "\n".join(in_loop)


def test_one_turn_of_the_loop_takes_a_bounded_part_of_what_is_proposed(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was appended and sent in one turn, 75 MB for example."""
    topic: Any = cluster.connect().topic("large-turns", partitions=1)
    (partition,) = topic.info().partitions
    shard = cluster._nodes[partition.leader].shards[partition.shard]
    taken: list[list[int]] = []
    step = shard.replica.step

    def watched(event: Any) -> Any:
        if isinstance(event, Propose):
            taken.append([len(each.payload) // MIB for each in event.commands])
        return step(event)

    async def propose() -> list[Any]:
        futures = [asyncio.get_running_loop().create_future() for _ in range(7)]
        for size, future in zip((3, 3, 1, 9, 1, 2, 0), futures, strict=True):
            shard.propose(Kind.NOTHING, bytes(size * MIB), future)
        return await asyncio.wait_for(asyncio.gather(*futures), SECONDS)

    monkeypatch.setattr(shard.replica, "step", watched)
    assert len(cluster.run(propose())) == 7
    assert taken == [[3, 3], [1, 9], [1, 2, 0]]
