"""Nodes and operators that do not hear each other, both ways or one way only, under load."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.cluster.attack import judged, leader_of, under_load
from tests.support.hosts import Hosts
from tests.support.processes import ClusterProcesses, NodeProcess, OperatorProcess

Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(900)

NODES = ("n1", "n2", "n3")
PORT, HTTP_PORT = 7400, 7401


class Network(ClusterProcesses):
    """The nodes and an operator, each on a host of its own; clients are on this one."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        super().__init__(directory, nodes=0, operators=0)
        addresses = {name: f"{hosts.addresses[name]}:{PORT}" for name in NODES}
        for name in NODES:
            node = NodeProcess(name, directory, PORT, HTTP_PORT)
            node.address, node.http = addresses[name], f"http://{hosts.addresses[name]}:{HTTP_PORT}"
            listen, http = node.arguments.index("--listen"), node.arguments.index("--http")
            node.arguments[listen + 1] = addresses[name]
            node.arguments[http + 1] = f"{hosts.addresses[name]}:{HTTP_PORT}"
            node.prefix = hosts.prefix(name)
            self.nodes[name] = node
        operator = OperatorProcess("o1", directory, self.metadata, addresses, HTTP_PORT)
        operator.http = f"http://{hosts.addresses['o1']}:{HTTP_PORT}"
        operator.arguments[operator.arguments.index("--http") + 1] = f"{hosts.addresses['o1']}:{HTTP_PORT}"
        operator.prefix = hosts.prefix("o1")
        self.operators["o1"] = operator
        self._first = list(NODES)


@contextmanager
def network(directory: Path) -> Iterator[tuple[Hosts, Network]]:
    with Hosts([*NODES, "o1"]) as hosts:
        cluster = Network(directory, hosts)
        try:
            cluster.start()
            yield hosts, cluster
        finally:
            cluster.kill()


@pytest.mark.slow
def test_partitions(tmp_path: Path, record_property: Record) -> None:
    """The leader alone; the leader without its followers, but with the operator; one way only."""
    cuts = 0
    with network(tmp_path) as (hosts, cluster):
        with under_load(cluster) as clients:
            for shape in ("alone", "without followers", "mute", "deaf"):
                leader = leader_of(cluster)
                others = [name for name in NODES if name != leader]
                if shape == "alone":
                    hosts.part([leader], [*others, "o1"])
                elif shape == "without followers":
                    hosts.part([leader], others)
                else:
                    for other in [*others, "o1"]:
                        hosts.cut(*((leader, other) if shape == "mute" else (other, leader)))
                cuts += 1
                clients.wait_for_more()
                hosts.heal()
                clients.wait_for_more()
        for name, value in {"partitions": cuts, **judged(cluster, clients)}.items():
            record_property(name, value)


@pytest.mark.slow
def test_cuts_at_random(tmp_path: Path, record_property: Record) -> None:
    random = Random(1)
    names = [*NODES, "o1"]
    cuts = 0
    with network(tmp_path) as (hosts, cluster):
        with under_load(cluster) as clients:
            for _ in range(6):
                for _ in range(random.randrange(1, 5)):
                    source, target = random.sample(names, 2)
                    hosts.cut(source, target)
                    cuts += 1
                _linger(random)
                hosts.heal()
                clients.wait_for_more()
        for name, value in {"one-way cuts": cuts, **judged(cluster, clients)}.items():
            record_property(name, value)


def _linger(random: Random) -> None:
    """Let the cut be felt: shorter and longer than the operator's patience."""
    time.sleep(random.uniform(0.2, 3))
