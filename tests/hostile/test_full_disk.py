"""A disk without room for one more shard: the cluster says so, and goes on as soon as there is some."""

import os
from pathlib import Path

import hawser
from tests.support.cluster import RunningCluster
from tests.support.disks import small_disk
from tests.support.processes import until

MUST_STAY_FREE = 2 << 20


def is_refused(bus: hawser.Bus) -> bool:
    """Whether it is said why; not if the time was over in the middle of a request."""
    try:
        bus.topic("refused")
    except hawser.Unavailable as error:
        assert "No space left on device. Free some" in str(error), error
        return True
    except hawser.OutcomeUnknown:
        return False
    raise AssertionError("there is no room, and it was made")


def test_a_topic_is_made_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "160m") as place, RunningCluster(place / "cluster") as cluster:
        bus = cluster.connect()
        bus.topic("before").publish(b"x")
        filler = place / "filler"
        free = os.statvfs(place)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - MUST_STAY_FREE))
        until(lambda: is_refused(bus), "the reason to be told")
        filler.unlink()
        with cluster.connect().topic("refused") as topic:
            topic.publish(b"y")
