"""The ensemble is changed, and the cluster restarted, under load; operators are killed on the way."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.cluster.shard_map import node_of
from hawser.cluster.stores import open_store
from hawser.cluster.stores.shard_metadata import StoredShard, list_shards
from hawser.log.protocol.metadata import Phase
from tests.cluster.attack import Clients, judged, leader_of, under_load
from tests.cluster.worker import TOPIC
from tests.support.processes import ClusterProcesses, cluster_processes, until

Record = Callable[[str, object], None]
SHARD = f"{TOPIC}/0"
# Shorter than any phase of a change.
_LOOK_SECONDS = 0.002

pytestmark = pytest.mark.timeout(900)


def _until(cluster: ClusterProcesses, fits: Callable[[Any], bool]) -> Any:
    """The shard as soon as it is steady and `fits`."""
    seen: list[Any] = [None]

    def is_so() -> bool:
        shard = seen[0] = cluster.shard(TOPIC)
        return bool(shard["state"] == "steady" and fits(shard))

    until(is_so, "a shard as it should be", lambda: seen[0])
    return seen[0]


def _nodes_of(shard: Any) -> list[str]:
    return sorted(shard["members"])


def _change(cluster: ClusterProcesses, kind: str, *nodes: str) -> None:
    """Have the ensemble changed. What an operator gave up, since somebody stood still, is ordered again."""
    leaves = nodes[0] if kind != "expand" else None
    comes = nodes[-1] if kind != "contract" else None
    said: list[str] = []

    def is_done() -> bool:
        done = cluster.run("cluster", kind, SHARD, *nodes, code=None)
        said.append(done.stderr)
        members = _nodes_of(_until(cluster, lambda shard: shard["leader"] is not None))
        return leaves not in members and (comes is None or comes in members)

    until(is_done, f"{kind} {nodes}", lambda: said)


@pytest.mark.slow
def test_swap_expand_contract_transfer(tmp_path: Path, record_property: Record) -> None:
    with cluster_processes(tmp_path, nodes=5) as cluster:
        with under_load(cluster) as clients:
            members = _nodes_of(cluster.shard(TOPIC))
            spare = [name for name in cluster.nodes if name not in members]
            _change(cluster, "swap", leader_of(cluster), spare[0])
            clients.wait_for_more()
            _change(cluster, "expand", spare[1])
            assert len(_nodes_of(cluster.shard(TOPIC))) == 4
            _change(cluster, "contract", leader_of(cluster))
            members = _nodes_of(cluster.shard(TOPIC))
            assert len(members) == 3
            other = next(name for name in members if name != leader_of(cluster))
            _transfer(cluster, other)
            clients.wait_for_more()
        for name, value in judged(cluster, clients).items():
            record_property(name, value)


def _transfer(cluster: ClusterProcesses, node: str) -> None:
    """Until the node was seen to lead."""

    def leads() -> bool:
        cluster.run("cluster", "transfer", SHARD, node, code=None)
        return leader_of(cluster) == node

    until(leads, f"{node} leading")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["swap", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("expand", "contract"))]
)
def test_operators_killed_in_a_change(tmp_path: Path, kind: str, record_property: Record) -> None:
    """Killed as soon as the store has a phase of the change, the next operator ends it: with the ensemble
    from before or from after, and nothing lost."""
    outcomes = {"before": 0, "after": 0}
    killed_in: set[Phase] = set()
    with cluster_processes(tmp_path, nodes=4) as cluster:
        with under_load(cluster, {"write": 1, "read": 1}) as clients:
            # A phase that is over before it is seen gets a second chance.
            for phase in (Phase.PREPARE, Phase.COMMIT, Phase.PREPARE, Phase.COMMIT):
                if phase in killed_in:
                    continue
                _make_room(cluster, kind)
                before = _nodes_of(cluster.shard(TOPIC))
                if _kill_in(cluster, kind, before, phase):
                    killed_in.add(phase)
                after = _nodes_of(_until(cluster, lambda shard: shard["leader"] is not None))
                outcomes["before" if before == after else "after"] += 1
                clients.wait_for_more()
        record_property("killed in", sorted(killed_in))
        for name, value in {**outcomes, **judged(cluster, clients)}.items():
            record_property(name, value)
        assert killed_in


def _make_room(cluster: ClusterProcesses, kind: str) -> None:
    """Four members for a contraction, three for the others."""
    members = _nodes_of(cluster.shard(TOPIC))
    if kind == "contract" and len(members) == 3:
        spare = next(name for name in cluster.nodes if name not in members)
        _change(cluster, "expand", spare)
    elif kind != "contract" and len(members) == 4:
        _change(cluster, "contract", members[-1])


def _kill_in(cluster: ClusterProcesses, kind: str, members: list[str], phase: Phase) -> bool:
    """Begin the change, kill the operator in that phase if it is seen, and start the next one."""
    spare = next((name for name in cluster.nodes if name not in members), "")
    leader = leader_of(cluster)
    follower = next(name for name in members if name != leader)
    arguments = {"swap": [follower, spare], "expand": [spare], "contract": [follower]}[kind]
    order = [sys.executable, "-m", "hawser", "cluster", kind, SHARD, *arguments, "--url", cluster.url]
    store = open_store(cluster.metadata)
    with subprocess.Popen(order, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as ordering:
        try:
            while ordering.poll() is None:
                stored = [each for each in list_shards(store).values() if isinstance(each, StoredShard)]
                if any(each.metadata.phase is phase for each in stored):
                    cluster.operators["o1"].kill()
                    cluster.operators["o1"].start()
                    return True
                time.sleep(_LOOK_SECONDS)
            return False
        finally:
            ordering.kill()
            store.close()


@pytest.mark.slow
def test_rolling_restart_fails_no_call(tmp_path: Path, record_property: Record) -> None:
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as clients:
            for node in cluster.nodes.values():
                assert node.stop() == 0
                clients.wait_for_more()
                node.start()
                cluster.wait_until_alive(*cluster.nodes)
                _wait_until_caught_up(cluster)
        figures = judged(cluster, clients)
        assert figures["refused"] == figures["unknown"] == 0
        for name, value in figures.items():
            record_property(name, value)


def _wait_until_caught_up(cluster: ClusterProcesses) -> None:
    """A node is stopped only when the others have everything."""
    _until(cluster, lambda shard: max(shard["lag"].values(), default=0) < 100)


@pytest.mark.slow
def test_a_lost_disk_is_replaced(tmp_path: Path, record_property: Record) -> None:
    """The disk of a follower, then of the leader."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as clients:
            _lose_disk(cluster, clients, lambda name, leader: name != leader)
            _lose_disk(cluster, clients, lambda name, leader: name == leader)
        for name, value in judged(cluster, clients).items():
            record_property(name, value)


def _lose_disk(cluster: ClusterProcesses, clients: Clients, fits: Callable[[str, str], bool]) -> None:
    leader = leader_of(cluster)
    name = next(each for each in cluster.nodes if fits(each, leader))
    node = cluster.nodes[name]
    (lost,) = (member for member in _members(cluster) if node_of(member) == name)
    node.kill()
    for journal in (node.directory / "shards").iterdir():
        for file in journal.iterdir():
            file.unlink()
    node.start()
    clients.wait_for_more()
    # Of two lost disks one must have been replaced before the other is lost.
    _until(cluster, lambda _: lost not in _members(cluster))


def _members(cluster: ClusterProcesses) -> tuple[str, ...]:
    """Those of the topic's shard, each a node with a disk."""
    store = open_store(cluster.metadata)
    try:
        shards = list_shards(store)
    finally:
        store.close()
    (stored,) = (each for name, each in shards.items() if name.startswith(f"{TOPIC}@"))
    assert isinstance(stored, StoredShard)
    return stored.metadata.members


def test_a_disk_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with cluster_processes(tmp_path / "a", nodes=1) as first, hawser.connect(first.url) as bus:
        bus.topic("mine", replication=1).publish(b"1")
        first.nodes["n1"].stop()
        with cluster_processes(tmp_path / "b", nodes=1) as second:
            second.nodes["n1"].stop()
            (first.nodes["n1"].directory).rename(tmp_path / "moved")
            (second.nodes["n1"].directory).rename(tmp_path / "old")
            (tmp_path / "moved").rename(second.nodes["n1"].directory)
            second.nodes["n1"].begin()
            operator = second.operators["o1"]
            until(lambda: "cluster" in operator.last_words, "a refusal", lambda: operator.last_words)
