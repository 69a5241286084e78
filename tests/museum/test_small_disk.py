"""A new member whose disk is smaller than the snapshot.

Found by review: the pull began again and again, which the operator took for progress, so the change never
ended, and the leader, always being read from, saved and trimmed nothing any more: one full disk filled the
others.
"""

from hawser.log.protocol.events import Expand
from hawser.testing.cluster import Cluster

BATCHES = 60


def test_a_change_that_has_no_room_is_given_up() -> None:
    cluster = Cluster(seed=3, nodes=4, members=3)
    for _ in range(BATCHES):
        cluster.publish(b"x" * 200)
    new = cluster.nodes["n4"]
    new.disk.capacity_bytes = sum(new.disk.size(name) for name in new.disk.names()) + 3000
    tag = cluster.next_tag()
    cluster.order(Expand(new.member, tag), cluster.random)
    cluster.run_until(lambda: tag in cluster.reports)
    assert not cluster.reports[tag].done
    before = _checkpoint(cluster)
    for _ in range(2 * BATCHES):
        cluster.publish(b"y" * 200)
    cluster.run_until(lambda: _checkpoint(cluster) > before)


def _checkpoint(cluster: Cluster) -> int:
    """What the leader has saved."""
    leader = cluster.leader
    replica = cluster.nodes[leader].replica if leader is not None else None
    return replica.journal.checkpoint.index if replica is not None and replica.journal.checkpoint else 0
