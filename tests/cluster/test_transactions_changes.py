"""Shards are moved, snapshots made and everything is restarted while one transaction is prepared and another
one is open: both are there afterwards, and are committed as if nothing had happened."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.node.server import NodeSettings
from hawser.cluster.shard_map import node_of
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol.node import Limits
from hawser.log.replica import Replica, Settings
from hawser.transaction.participant.branches import Branches, transactional_parts
from hawser.xa import Xid
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, cluster_processes, until
from tests.support.transactions import Peer

XID: Final = Xid(17, b"coordinator", b"branch")
SMALL: Final = NodeSettings(
    replica=Settings(
        journal=JournalSettings(segment_bytes=4 << 10, tail_bytes=4 << 10),
        limits=Limits(idle_ticks=2),
        checkpoint_entries=16,
        spare_entries=16,
        parts=transactional_parts,
        piece_bytes=512,
    )
)


class Works:
    """Two transactions, each with something on a topic and on a queue: one is prepared, the other is open."""

    def __init__(self, bus: hawser.Bus) -> None:
        self.topic: hawser.Topic[Any] = bus.topic("results")
        self.queue: hawser.Queue[Any] = bus.queue("jobs")
        self.queue.put_many([b"1", b"2"])
        self._bus = bus
        branch = bus.xa.start(XID)
        branch.publish(self.topic, b"prepared")
        branch.accept(_got(branch, self.queue))
        bus.xa.end(XID)
        assert bus.xa.prepare(XID) == "ok"
        self.open = bus.transaction(timeout=3600)
        self.open.publish(self.topic, b"open")
        self.open.accept(_got(self.open, self.queue))

    def end(self, other: hawser.Bus) -> None:
        """Both are committed; the prepared one by somebody else."""
        assert other.xa.recover() == [XID]
        other.xa.commit(XID)
        # A leader that was started a moment ago may not reach the others yet, and tells them later.
        until(lambda: self._newest(1) == [b"prepared"], "what was prepared")
        self.open.publish(self.topic, b"and more")
        self.open.commit()
        until(lambda: self._newest(3) == [b"prepared", b"open", b"and more"], "the others")
        until(lambda: (self.queue.info().ready, self.queue.info().claimed) == (0, 0), "both to be accepted")
        assert other.xa.recover() == []

    def _newest(self, count: int) -> list[bytes]:
        return [bytes(each) for each in self.topic.read_newest(count).samples]


def _got(work: Any, queue: hawser.Queue[Any]) -> hawser.Message:
    message: hawser.Message | None = work.get(queue, timeout=LIMIT_SECONDS)
    assert message is not None
    return message


class Watch:
    """The shards that have work of both, and the one that decides."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self._peer = Peer(cluster, "watch")
        self.coordinator = self._peer.coordinator(XID)
        self.shards = [self._peer.shard("results"), self._peer.shard("jobs"), self.coordinator]

    def check(self) -> None:
        """Whether everything is there, as whoever leads now has it."""
        for shard in self.shards[:2]:
            until(partial(self._has_both, shard), f"both branches on {shard}")
        (record,) = (each for each in self._peer.look(self.coordinator).records if each.xid == XID)
        assert (record.state, record.outcome) == ("P", None)

    def _has_both(self, shard: str) -> bool:
        return sorted(each.prepared for each in self._peer.look(shard).branches) == [False, True]

    def members(self, shard: str) -> tuple[str, list[str]]:
        """The node that leads, and the others."""
        leader = self.cluster.run(self._peer.leader(shard))
        entry = self.cluster.ask(wire.GetMap()).shards[shard]
        return leader, [node for node in map(node_of, entry.members) if node != leader]

    def order(self, kind: wire.AdminKind, shard: str, *nodes: str) -> None:
        answer = self.cluster.ask(wire.Admin(kind, shard, nodes))
        assert isinstance(answer, wire.AdminDone) and answer.done, answer

    def leave(self) -> None:
        self._peer.leave()


@pytest.fixture
def five(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, 5) as cluster:
        yield cluster


def test_the_ensemble_is_changed(five: RunningCluster) -> None:
    works = Works(five.connect("worker"))
    watch = Watch(five)
    watch.check()
    for shard in watch.shards:
        leader, others = watch.members(shard)
        spare = [name for name in five.nodes if name not in (leader, *others)]
        watch.order(wire.AdminKind.SWAP, shard, leader, spare[0])
        watch.order(wire.AdminKind.EXPAND, shard, spare[1])
        watch.check()
        watch.order(wire.AdminKind.CONTRACT, shard, watch.members(shard)[0])
        watch.order(wire.AdminKind.TRANSFER, shard, watch.members(shard)[1][0])
        watch.check()
        watch.order(wire.AdminKind.ELECT, shard)
        watch.check()
        refused = five.delete(shard.partition("@")[0])
        assert isinstance(refused, wire.Failed) and refused.code is wire.Code.REJECTED, refused
    watch.leave()
    works.end(five.connect("other"))


def test_snapshots_carry_both(tmp_path: Path) -> None:
    """A newcomer gets them in the saved state; then it is restarted, leads, and commits."""
    with RunningCluster(tmp_path, 4, SMALL) as cluster:
        bus = cluster.connect("worker")
        _publish(bus.topic("results", retention_bytes=4 << 10))
        works = Works(bus)
        watch = Watch(cluster)
        watch.check()
        _publish(works.topic)
        results = watch.shards[0]
        leader, others = watch.members(results)
        (spare,) = (name for name in cluster.nodes if name not in (leader, *others))

        def is_shortened() -> bool:
            # By the first checkpoint behind a trim, which takes more entries to come.
            works.topic.publish(bytes(100))
            return _replica(cluster, leader, results).journal.first > 1

        until(is_shortened, "the log to be shortened")
        watch.order(wire.AdminKind.SWAP, results, others[0], spare)
        newcomer = _replica(cluster, spare, results)
        assert newcomer.journal.first > 1 and newcomer.machine.part(Branches).prepared_count == 1
        cluster.stop(spare)
        cluster.start(spare)
        until(lambda: spare in watch.members(results)[1], "the newcomer to be back")
        watch.order(wire.AdminKind.TRANSFER, results, spare)
        watch.leave()
        works.end(cluster.connect("other"))
        replicas = [_replica(cluster, node, results) for node in (spare, leader)]

        async def states() -> list[tuple[int, Any]]:
            machines = [each.machine for each in replicas]
            return [(each.applied, (each.hash, each.digest())) for each in machines]

        def are_level() -> bool:
            (one, state), (other, other_state) = cluster.run(states())
            assert one != other or state == other_state
            return one == other

        until(are_level, "the others to catch up")


def _publish(topic: hawser.Topic[Any]) -> None:
    """Some segments, entry by entry."""
    for number in range(60):
        topic.publish(b"plain %d" % number + bytes(100))


def _replica(cluster: RunningCluster, node: str, shard: str) -> Replica:
    return cluster._nodes[node].shards[shard].replica


def _staged(cluster: ClusterProcesses) -> int:
    """How many operations there are, of all transactions on all shards."""
    return sum(branch["operations"] for each in cluster.json("tx", "list") for branch in each["branches"])


def test_everything_is_killed_and_started_again(tmp_path: Path) -> None:
    with cluster_processes(tmp_path) as cluster:
        options: dict[str, Any] = {"connect_timeout": LIMIT_SECONDS, "timeout": LIMIT_SECONDS}
        with hawser.connect(cluster.url, **options) as bus:
            works = Works(bus)
            until(lambda: _staged(cluster) == 4, "all operations to be staged")
            cluster.kill()
            cluster.start()
            with hawser.connect(cluster.url, **options) as other:
                works.end(other)
