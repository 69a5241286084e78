"""A disk that cannot sync any more: whoever has it says nothing from then on, and nothing is lost."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hawser.cluster.disk import Disk, DiskSync
from hawser.cluster.node.shard import Shard
from hawser.log.journal.journal import Sync
from hawser.log.journal.storage import StorageFull
from tests.support.cluster import RunningCluster

MESSAGES = 200


class Broken(DiskSync):
    """Its files cannot be synced: a pipe never can."""

    @property
    def descriptors(self) -> list[int]:
        reading, writing = os.pipe()
        os.close(writing)
        return [reading]


@pytest.mark.parametrize("of_the_leader", [True, False])
@pytest.mark.parametrize("how", ["fails", "begins after one that failed", "finds no room", "cannot end"])
def test_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, of_the_leader: bool) -> None:
    planted: list[str] = []
    failed: list[str] = []
    begin, end, ended = Disk.begin_sync, Disk.end_sync, Shard._end_sync
    ends_badly: list[DiskSync] = []
    heard: list[bool] = []

    def begin_sync(disk: Disk, names: Sequence[str]) -> DiskSync:
        if not planted or f"/{planted[0]}/" not in f"{disk.directory}/" or "busy" not in str(disk.directory):
            return begin(disk, names)
        failed.append(planted.pop())
        if how == "begins after one that failed":
            disk._fail(names[0], errno.EIO)
        if how == "finds no room":
            raise StorageFull("planted")
        sync = begin(disk, names)
        if how == "fails":
            return Broken(names, sync.files)
        ends_badly.append(sync)
        return sync

    def end_sync(disk: Disk, sync: DiskSync, error: int, seconds: float) -> None:
        end(disk, sync, error, seconds)
        if sync in ends_badly:
            raise OSError("planted")

    def hear(shard: Shard, sync: Sync, error: Exception | None) -> None:
        is_planted = bool(failed and not heard and f"{shard.member}.".startswith(f"{failed[0]}."))
        synced = shard.replica.journal.synced
        ended(shard, sync, error)
        if is_planted and "busy" in shard.name:
            heard.append(shard.replica.halted is not None and shard.replica.journal.synced == synced)

    monkeypatch.setattr(Disk, "begin_sync", begin_sync)
    monkeypatch.setattr(Disk, "end_sync", end_sync)
    monkeypatch.setattr(Shard, "_end_sync", hear)
    with RunningCluster(tmp_path) as cluster:
        topic = cluster.connect().topic("busy", replication=3)
        leader = topic.info().partitions[0].leader
        assert leader is not None
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                other = next(each for each in cluster.nodes if each != leader)
                planted.append(leader if of_the_leader else other)
            topic.publish(b"%d" % number)
        with topic.subscribe(start="earliest") as subscription:
            taken = [sample.value for _, sample in zip(range(MESSAGES), subscription, strict=False)]
    assert taken == [b"%d" % number for number in range(MESSAGES)]
    # It was halted, has not said that this was synced, and its disk is not used again.
    assert heard == [True]
    assert any(each.name.startswith("busy") for each in (tmp_path / failed[0] / "damaged").iterdir())


@pytest.mark.parametrize("sync", [1, 2, 3])
def test_a_node_stops_whatever_its_last_syncs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: int
) -> None:
    """The one that is under way, or one of those behind it."""
    begin = Disk.begin_sync
    is_stopping, begun = False, 0

    def begin_sync(disk: Disk, names: Sequence[str]) -> DiskSync:
        nonlocal begun
        if not (is_stopping and "/n1/" in str(disk.directory) and "busy" in str(disk.directory)):
            return begin(disk, names)
        begun += 1
        files = begin(disk, names)
        return Broken(names, files.files) if begun == sync else files

    monkeypatch.setattr(Disk, "begin_sync", begin_sync)
    with RunningCluster(tmp_path) as cluster:
        topic = cluster.connect().topic("busy", replication=3)
        topic.publish(b"before")
        is_stopping = True
        topic.publish_nowait(b"meanwhile")
        cluster.stop("n1")
        is_stopping = False
        assert begun
        cluster.start("n1")
        topic.publish(b"after")
        with topic.subscribe(start="earliest") as subscription:
            taken = [sample.value for _, sample in zip(range(3), subscription, strict=False)]
    assert taken == [b"before", b"meanwhile", b"after"]
