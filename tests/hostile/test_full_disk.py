"""A disk without room for one more shard: the cluster says so, and goes on as soon as there is some."""

import os
from pathlib import Path

import pytest

import hawser
from tests.support.cluster import RunningCluster
from tests.support.disks import small_disk
from tests.support.processes import LIMIT_SECONDS

MUST_STAY_FREE = 2 << 20
LARGE = b"x" * (256 << 10)
NO_ROOM = "No space left on device. Free some"


def test_a_topic_is_made_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "160m") as place, RunningCluster(place / "cluster") as cluster:
        bus = cluster.connect()
        bus.topic("before").publish(b"x")
        filler = place / "filler"
        free = os.statvfs(place)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - MUST_STAY_FREE))
        # The reason is told, also if the time was over in the middle of a request.
        for asking in (bus, cluster.connect(timeout=4.0)):
            with pytest.raises((hawser.Unavailable, hawser.OutcomeUnknown), match=NO_ROOM):
                asking.topic("refused")
        filler.unlink()
        with cluster.connect().topic("refused") as topic:
            topic.publish(b"y")


def test_a_small_disk_stays_writable(tmp_path: Path) -> None:
    """Retention makes room for more than the disk holds; so does what an idle queue keeps for followers."""
    with small_disk(tmp_path / "small", "160m") as place, RunningCluster(place / "cluster", 1) as cluster:
        bus = cluster.connect()
        with bus.queue("idle", replication=1) as queue:
            for _ in range(100):
                queue.put(LARGE)
                message = queue.get(timeout=LIMIT_SECONDS)
                assert message is not None
                message.accept()
        with bus.topic("kept", replication=1) as topic:
            topic.publish(LARGE)
            free = os.statvfs(place)
            (place / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - MUST_STAY_FREE))
            for _ in range(40):
                topic.publish(LARGE)
        segments = list(place.glob("cluster/n1/shards/idle*/log-*"))
        assert len(segments) == 1, "the queue is empty, and keeps nothing but the segment that it writes"
        (place / "filler").unlink()
        with bus.topic("bounded", replication=1, retention_bytes=8 << 20) as topic:
            for _ in range(400):
                topic.publish(LARGE)
