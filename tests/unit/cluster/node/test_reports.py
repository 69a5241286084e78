"""What a shard keeps to say again is what it would find if it looked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.node.shard import Shard
from hawser.log.protocol import messages as m
from tests.support.cluster import RunningCluster

Record_property = Callable[[str, object], None]


async def _compare(cluster: RunningCluster) -> int:
    """How many shards were compared."""
    compared = 0
    for name in cluster.nodes:
        for shard in cluster._nodes[name].shards.values():
            if shard._step_end is not None:
                # It waits for the disk: what it makes true is not told before it is durable.
                continue
            node = shard.replica.node
            found = wire.ShardReport(shard.replica.member, m.encode(node.status()), shard.replica.halted)
            assert shard.report == found
            assert shard.restless == node.restless
            compared += 1
    return compared


def _use(cluster: RunningCluster) -> int:
    """Let everything happen that changes how a replica is."""
    compared = 0
    topic = cluster.connect().topic("busy", partitions=2, replication=3)
    for number in range(20):
        topic.publish_nowait(b"%d" % number)
        compared += cluster.run(_compare(cluster))
    topic.flush()
    cluster.stop("n3")
    compared += cluster.run(_compare(cluster))
    topic.publish(b"without one of them")
    cluster.start("n3")
    compared += cluster.run(_compare(cluster))
    shard, entry = next(iter(cluster.ask(wire.GetMap("busy")).shards.items()))
    to = next(member.rpartition(".")[0] for member in entry.members if member != entry.leader)
    cluster.transfer(shard, to)
    for _ in range(20):
        topic.publish(b"more")
        compared += cluster.run(_compare(cluster))
    return compared


def test_reports_are_never_stale(tmp_path: Path, record_property: Record_property) -> None:
    with RunningCluster(tmp_path) as cluster:
        record_property("compared", _use(cluster))


def test_canary_a_report_that_outlives_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Shard._carry_out

    def forgetful(shard: Shard, outputs: list[Any]) -> None:
        kept = shard._report
        original(shard, outputs)
        shard._report = kept

    with RunningCluster(tmp_path) as cluster:
        topic = cluster.connect().topic("one", replication=1)
        topic.publish(b"first")

        async def plant() -> None:
            """Before anything else happens: what is reported then is what is kept."""
            await _compare(cluster)
            monkeypatch.setattr(Shard, "_carry_out", forgetful)

        cluster.run(plant())
        topic.publish(b"second")
        with pytest.raises(AssertionError):
            cluster.run(_compare(cluster))
