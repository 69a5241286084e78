"""A disk without room for one more shard: the cluster says so, and goes on as soon as there is some."""

import os
from pathlib import Path

import pytest

import hawser
from tests.support.cluster import RunningCluster
from tests.support.disks import small_disk

MUST_STAY_FREE = 2 << 20
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
