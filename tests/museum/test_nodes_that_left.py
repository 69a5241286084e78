"""Nodes that move to another address or leave the cluster.

Found by reading: the list of nodes had no version. A node that was cut off from its operator overwrote newer
addresses in clients, no entry ever left, and clients dialed dead addresses for ever.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.client import router as routing
from hawser.cluster.client.router import Router
from hawser.cluster.node.server import Node
from hawser.cluster.operator.catalog import store_nodes
from hawser.cluster.operator.service import OperatorService
from hawser.cluster.shard_map import ShardMap
from hawser.cluster.stores import open_store
from tests.support.cluster import RunningCluster
from tests.support.processes import until


def nodes_map(version: int, **addresses: str) -> wire.Map:
    nodes = {name: wire.NodeEntry(address, True) for name, address in addresses.items()}
    return wire.Map("c", nodes, {}, {}, version)


def test_an_older_list_of_nodes_changes_nothing() -> None:
    known = ShardMap()
    for told in (nodes_map(3, n1="a:1", n2="b:1", n3="c:1"), nodes_map(5, n1="a:1", n2="b:2")):
        known.merge(told)
    known.merge(nodes_map(3, n1="a:1", n2="b:1", n3="c:1"))
    known.merge(nodes_map(0))
    assert {name: entry.address for name, entry in known.nodes.items()} == {"n1": "a:1", "n2": "b:2"}
    assert known.extract(None).nodes_version == known.extract("t").nodes_version == 5


def test_the_list_of_an_operator_gets_a_version_when_it_differs(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}")
    first = store_nodes(store, {"n1": "a:1", "n2": "b:1"})
    assert store_nodes(store, {"n2": "b:1", "n1": "a:1"}) == first
    second = store_nodes(store, {"n1": "a:1"})
    assert second > first
    assert store_nodes(store, {"n1": "a:1"}) == second
    assert store_nodes(store, {"n1": "a:1", "n2": "b:1"}) > second
    store.close()


async def _restart_operator(cluster: RunningCluster, directory: Path, addresses: Mapping[str, str]) -> None:
    embedded = cluster._cluster
    assert embedded.operator is not None
    await embedded.operator.stop()
    store = open_store(f"sqlite:{directory / 'metadata.sqlite'}")
    embedded.operator = OperatorService("another", store, addresses)
    await embedded.operator.start()


async def _start_elsewhere(cluster: RunningCluster, directory: Path, name: str) -> None:
    node = Node(name, directory / name)
    await node.start("127.0.0.1:0")
    cluster._nodes[name], cluster._addresses[name] = node, node.address


async def _addresses(router: Router) -> tuple[set[str], set[str]]:
    """Those that a client dials, and those of the nodes in its map."""
    return set(router._dialers), {entry.address for entry in router.map.nodes.values()}


def test_clients_and_nodes_forget_an_address_that_nobody_has_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_NODES_SECONDS", 0.2)
    with RunningCluster(tmp_path) as cluster:
        bus: Any = cluster.connect()
        topic = bus.topic("moving")
        router: Router = bus._client.router
        stale = {name: cluster._nodes[name].map.extract(None) for name in ("n1", "n2")}
        old = cluster._addresses["n3"]
        cluster.stop("n3")
        cluster.run(_start_elsewhere(cluster, tmp_path, "n3"))
        cluster.run(_restart_operator(cluster, tmp_path, dict(cluster._addresses)))
        wanted = set(cluster._addresses.values())

        def follows() -> bool:
            return bool(bus._thread.call(_addresses(router)) == (wanted, wanted))

        until(follows, "the client follows", lambda: bus._thread.call(_addresses(router)))
        for name in ("n1", "n2"):
            node = cluster._nodes[name]
            dialed = {each.address for each in node._dialers.values()}
            assert old not in dialed

        # One node is cut off from its operator, and has the old list.
        async def answer_as_before() -> None:
            node = cluster._nodes["n1"]
            node.map = ShardMap()
            node.map.merge(stale["n1"])
            monkeypatch.setattr(node, "_learn", lambda pushed: None)

        cluster.run(answer_as_before())
        for _ in range(3):
            assert bus._thread.call(router.refresh(None))
            assert bus._thread.call(_addresses(router)) == (wanted, wanted)
        with topic.publisher() as publisher:
            publisher.publish(b"there")


def test_a_node_that_left_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_NODES_SECONDS", 0.2)
    with RunningCluster(tmp_path, nodes=4) as cluster:
        bus: Any = cluster.connect()
        router: Router = bus._client.router
        addresses = {name: address for name, address in cluster._addresses.items() if name != "n4"}
        cluster.stop("n4")
        cluster.run(_restart_operator(cluster, tmp_path, addresses))
        wanted = set(addresses.values())

        def follows() -> bool:
            return bool(bus._thread.call(_addresses(router)) == (wanted, wanted))

        until(follows, "the client follows", lambda: bus._thread.call(_addresses(router)))
        until(lambda: all("n4" not in node._dialers for node in cluster._nodes.values()), "the nodes follow")
        assert set(cluster.ask(wire.GetMap()).nodes) == addresses.keys()


def test_seeds_are_dialed_again_when_no_node_of_the_list_answers(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        bus: Any = cluster.connect()
        router: Router = bus._client.router
        seed = cluster._addresses["n1"]

        async def forget() -> None:
            await asyncio.gather(*(each.close() for each in router._dialers.values()))
            router._dialers.clear()

        bus._thread.call(forget())
        until(lambda: bus._thread.call(router.refresh(None)), "an answer")
        assert seed in router._dialers
