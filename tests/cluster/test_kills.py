"""Nodes and operators killed -9 and stopped, one after the other and at random, under load."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cluster.attack import judged, leader_of, under_load
from tests.support.processes import cluster_processes

Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(900)

# Those who publish batches, are members of a group, and do both in an event loop, watched by a reader.
EVERY_ROLE = {"batch": 1, "aio": 1, "member": 2, "read": 1}
PARTITIONS = 3


def _note(record_property: Record, figures: dict[str, object]) -> None:
    for name, value in figures.items():
        record_property(name, value)


@pytest.mark.soak
@pytest.mark.slow
def test_every_leader_killed_in_turn(tmp_path: Path, record_property: Record) -> None:
    killed: list[str] = []
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as clients:
            for _ in range(4):
                leader = leader_of(cluster)
                cluster.nodes[leader].kill()
                killed.append(leader)
                clients.wait_for_more()
                cluster.nodes[leader].start()
                clients.wait_for_more()
        _note(record_property, {"leaders killed": len(killed), **judged(cluster, clients)})


@pytest.mark.slow
def test_leaders_that_are_stopped_and_come_back(tmp_path: Path, record_property: Record) -> None:
    """A leader that stood still believes for a moment that it leads."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as clients:
            for _ in range(3):
                leader = leader_of(cluster)
                cluster.nodes[leader].pause()
                clients.wait_for_more()
                cluster.nodes[leader].resume()
                clients.wait_for_more()
        _note(record_property, judged(cluster, clients))


@pytest.mark.slow
def test_two_operators_killed_and_stopped(tmp_path: Path, record_property: Record) -> None:
    with cluster_processes(tmp_path, operators=2) as cluster:
        with under_load(cluster) as clients:
            for name in ("o1", "o2"):
                cluster.operators[name].kill()
                cluster.nodes[leader_of(cluster)].kill()
                clients.wait_for_more()
                for node in cluster.nodes.values():
                    if not node.runs:
                        node.start()
                cluster.operators[name].start()
        _note(record_property, judged(cluster, clients))


@pytest.mark.slow
def test_all_nodes_killed_at_once(tmp_path: Path, record_property: Record) -> None:
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster) as clients:
            for _ in range(2):
                cluster.restart_nodes()
                clients.wait_for_more()
        _note(record_property, judged(cluster, clients))


@pytest.mark.slow
def test_batches_groups_and_event_loops(tmp_path: Path, record_property: Record) -> None:
    """A leader and a client of each kind are killed at once, for every partition."""
    with cluster_processes(tmp_path) as cluster:
        with under_load(cluster, EVERY_ROLE, PARTITIONS) as clients:
            for partition, role in enumerate(("member", "batch", "aio")):
                leader = leader_of(cluster, partition)
                cluster.nodes[leader].kill()
                clients.replace(role)
                clients.wait_for_more()
                cluster.nodes[leader].start()
                clients.wait_for_more()
        _note(record_property, {"leaders and clients killed": 6, **judged(cluster, clients)})


@pytest.mark.soak
def test_random_storm(tmp_path: Path, soak_seconds: float, record_property: Record) -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    deeds = 0
    end = time.monotonic() + soak_seconds
    record_property("seed", seed)
    with cluster_processes(tmp_path, operators=2) as cluster:
        with under_load(cluster, {**EVERY_ROLE, "write": 2, "read": 2}, PARTITIONS) as clients:
            while time.monotonic() < end:
                if random.random() < 0.3:
                    clients.replace(random.choice(["batch", "aio", "member"]))
                    deeds += 1
                daemon = random.choice(cluster.daemons)
                if random.random() < 0.5:
                    daemon.kill()
                    time.sleep(random.uniform(0, 2))
                    daemon.start()
                else:
                    daemon.pause()
                    time.sleep(random.uniform(0, 2))
                    daemon.resume()
                deeds += 1
                clients.wait_for_more(5)
        _note(record_property, {"kills and stops": deeds, **judged(cluster, clients)})
