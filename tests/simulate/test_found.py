"""What seeds once found, each as a story of its own that a reader can follow."""

from hawser.log.protocol.events import Contract, Elect
from hawser.log.protocol.metadata import Status
from hawser.testing import Cluster, NetworkFaults
from hawser.testing.swarm import Swarm

# Nothing is kept that need not be, so that whoever was away needs a snapshot, in many pieces.
FORGETFUL = Swarm(segment_bytes=1_024, checkpoint_entries=4, spare_entries=0, piece_bytes=64, patience=3)


def settled(cluster: Cluster) -> None:
    cluster.run_until(lambda: not cluster.unsettled(), what="rest")
    cluster.compare()


def follower_of(cluster: Cluster) -> str:
    return next(name for name in cluster.nodes if name != cluster.leader)


def leave_behind(cluster: Cluster, name: str) -> None:
    """So much happens while the node is down that its next entry is nowhere any more."""
    cluster.crash(name)
    for number in range(60):
        cluster.publish(b"%d" % number + b"." * 200)
    cluster.trim(20)
    for number in range(8):
        cluster.publish(b"%d" % number)
    cluster.run_for(20_000)
    leader = cluster.leader
    assert leader is not None
    replica = cluster.nodes[leader].replica
    assert replica is not None
    watch = cluster.judge.watch(cluster.nodes[name].member)
    assert replica.journal.first > len(watch.epochs) + 1


def test_a_follower_restarted_on_an_idle_shard_learns_what_is_committed() -> None:
    cluster = Cluster(seed=1)
    cluster.publish(b"a")
    settled(cluster)
    follower = follower_of(cluster)
    cluster.crash(follower)
    cluster.restart(follower)
    settled(cluster)


def test_an_order_behind_one_that_cannot_be_is_carried_out() -> None:
    cluster = Cluster(seed=2)
    cluster.publish(b"a")
    operator = cluster.operators["o1"]
    for order in (Contract("n9.d1", "first"), Contract("n8.d1", "second"), Elect("third")):
        operator.take(order)
    cluster.run_until(lambda: not operator.orders, what="three reports")
    assert [cluster.reports[tag].done for tag in ("first", "second", "third")] == [False, False, True]


def test_a_snapshot_is_pulled_through_a_network_that_repeats_everything() -> None:
    cluster = Cluster(seed=3, swarm=FORGETFUL)
    for number in range(40):
        cluster.publish(b"%d" % number + b"." * 100)
    cluster.network.faults = NetworkFaults(duplication=0.5, delay_most=2_000)
    cluster.wipe(follower_of(cluster))
    events = cluster.clock.events
    settled(cluster)
    assert cluster.clock.events - events < 60_000


def test_two_operators_do_not_end_each_others_snapshots() -> None:
    cluster = Cluster(seed=4, operators=2, swarm=FORGETFUL)
    for number in range(60):
        cluster.publish(b"%d" % number + b"." * 200)
    cluster.wipe(follower_of(cluster))
    settled(cluster)
    assert cluster.store.metadata.epoch < 20


def test_a_member_left_behind_gets_a_snapshot_before_anything_new_is_committed() -> None:
    """And the leader, which cannot commit meanwhile, is not taken for stuck."""
    cluster = Cluster(seed=5, swarm=FORGETFUL)
    cluster.publish(b"a")
    late = follower_of(cluster)
    leave_behind(cluster, late)
    other = next(name for name in cluster.nodes if name not in (late, cluster.leader))
    cluster.crash(other)
    cluster.restart(late)
    assert cluster.elect().done
    epoch = cluster.store.metadata.epoch
    cluster.publish(b"with two of three")
    assert cluster.store.metadata.epoch == epoch
    cluster.restart(other)
    settled(cluster)


def test_an_election_whose_operator_died_before_it_fenced_anybody_is_finished() -> None:
    cluster = Cluster(seed=6, operators=2)
    cluster.publish(b"a")
    settled(cluster)
    cluster.partition(["o2"])
    cluster.operators["o2"].take(Elect("lost"))
    cluster.run_until(lambda: cluster.store.metadata.status is Status.ELECTION, what="the election")
    cluster.operators["o2"].crash()
    settled(cluster)
