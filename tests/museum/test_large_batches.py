"""Batches of Spark that were larger than what a shard let transactions stage.

400 MB for one partition ended at 256 MiB, although memory had none of it. The error named no size and no
setting, and the next write, of the same number, found the place still taken by what the failed one had left.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.node.server import NodeSettings
from hawser.log.replica import Replica
from hawser.spark import connection
from hawser.transaction.participant.branches import Branches
from tests.museum.test_spark_identity import Driver
from tests.support.cluster import RunningCluster
from tests.support.processes import until

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[RunningCluster]:
    """One node that lets transactions stage 2 MiB, in place of the three of other files."""
    with RunningCluster(module_path, 1, NodeSettings(staged_bytes=2 * MIB)) as running:
        yield running


def branches(cluster: RunningCluster, name: str) -> Branches:
    """Those of the only partition of a topic, on its leader."""
    shards = cluster._nodes["n1"].shards
    (found,) = [shard for shard in shards.values() if shard.name.startswith(f"{name}@")]
    return found.replica.machine.part(Branches)


def rows(mib: int) -> list[bytes]:
    return [bytes(MIB // 2)] * (2 * mib)


def count(topic: hawser.Topic[Any]) -> int:
    (partition,) = topic.info().partitions
    return partition.end - partition.start


def limited(cluster: RunningCluster, name: str) -> hawser.Topic[Any]:
    """A topic whose leader has set the limit."""
    topic = cluster.connect().topic(name, replication=1)
    until(lambda: branches(cluster, name).limit.most_bytes == 2 * MIB, "the limit of the node's settings")
    return topic


def test_a_batch_that_is_too_large_says_how_large_and_which_setting(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = limited(cluster, "refused")
    said = rf"would have [0-9]+ bytes staged on this shard, and {2 * MIB} are allowed; .* node.staged_bytes"
    with pytest.raises(hawser.TransactionAborted, match=said):
        Driver(cluster, monkeypatch).write(rows(4), topic="refused", txnAppId="load", txnVersion=7)
    assert count(topic) == 0


def test_the_next_write_of_the_same_number_finds_nothing_of_one_that_failed(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the failed one had staged was rolled back some time later, or not before its process was lost."""
    topic, driver = limited(cluster, "again"), Driver(cluster, monkeypatch)
    version: dict[str, Any] = {"topic": "again", "txnAppId": "load", "txnVersion": 7}
    for _ in range(3):
        with pytest.raises(hawser.TransactionAborted, match="staged_bytes"):
            driver.write(rows(4), **version)
        found = branches(cluster, "again")
        assert (found.staged_bytes, found.staged_count, found.open_count, found.needed) == (0, 0, 0, None)
        driver.write(rows(1), **version)
        version["txnVersion"] += 1
    assert count(topic) == 3 * len(rows(1))


def test_a_large_batch_is_in_the_journal_and_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningCluster(tmp_path, 1) as cluster:
        topic, driver = cluster.connect().topic("large", replication=1), Driver(cluster, monkeypatch)
        writer, message = driver.prepared([bytes(MIB)] * 10, 30, topic="large", txnAppId="load", txnVersion=0)
        found = branches(cluster, "large")
        assert found.staged_bytes > 300 * MIB and len(found.digest()) < MIB // 16
        writer.commit([message])
        assert found.staged_bytes == 0
        assert count(topic) == 300


def test_an_attempt_that_gives_up_on_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was given up before the rollback was sent: the disk stayed full until the session was
    lost."""
    reserve = Replica._reserve

    def reserve_once(replica: Replica, size: int, freeing: bool) -> bool:
        """The disk is full as soon as something is staged."""
        is_full = replica.machine.part(Branches).staged_count > 0
        return (freeing or not is_full) and reserve(replica, size, freeing)

    monkeypatch.setattr(Replica, "_reserve", reserve_once)
    monkeypatch.setattr(connection, "_SETTINGS", ClientSettings(timeout=5.0))
    with RunningCluster(tmp_path, 1) as cluster:
        topic, driver = cluster.connect().topic("full", replication=1), Driver(cluster, monkeypatch)
        version: dict[str, Any] = {"topic": "full", "txnAppId": "load", "txnVersion": 0}
        with pytest.raises(hawser.Unavailable, match="the leader's disk is full"):
            driver.write(rows(8), **version)
        assert branches(cluster, "full").staged_count == 0
        monkeypatch.setattr(Replica, "_reserve", reserve)
        monkeypatch.setattr(connection, "_SETTINGS", ClientSettings())
        driver.write(rows(8), **version)
        assert count(topic) == len(rows(8))
