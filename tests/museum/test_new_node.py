"""A live client whose work a node rolled back that the client had never heard of.

A client dials every node that its map names, and a leader takes a client without a link for lost. A client
that has nothing to ask for learned of no node that was added after it had connected; so a shard that moved
there lost the client's open work, of a transaction and of XA, after ten seconds.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.client import router
from hawser.cluster.node.server import Node
from hawser.cluster.node.transaction import client_registry
from hawser.cluster.operator.service import OperatorService
from hawser.cluster.shard_map import node_of
from hawser.cluster.stores import open_store
from hawser.transaction.identity import coordinator_number, owner_of
from hawser.xa import Xid
from tests.support.cluster import RunningCluster
from tests.support.processes import until

NEW = "n4"


async def _add_node(cluster: RunningCluster, directory: Path) -> Node:
    """Start a node, and another operator, which knows it."""
    node = Node(NEW, directory / NEW)
    await node.start("127.0.0.1:0")
    embedded = cluster._cluster
    assert embedded.operator is not None
    await embedded.operator.stop()
    embedded.nodes.append(node)
    addresses = {each.name: each.address for each in embedded.nodes}
    store = open_store(f"sqlite:{directory / 'metadata.sqlite'}")
    embedded.operator = OperatorService("another", store, addresses)
    await embedded.operator.start()
    cluster._nodes[NEW] = node
    cluster._addresses[NEW] = node.address
    return node


def _move(cluster: RunningCluster, shard: str) -> None:
    """Let the new node have a replica of the shard, and lead it."""

    def ask(kind: wire.AdminKind, *nodes: str) -> None:
        def is_done() -> bool:
            answer = cluster.ask(wire.Admin(kind, shard, nodes))
            assert not isinstance(answer, wire.Failed) or answer.retryable, answer
            return isinstance(answer, wire.AdminDone) and answer.done

        until(is_done, f"{kind} of {shard}")

    until(lambda: cluster.ask(wire.GetMap()).shards[shard].leader is not None, "a leader")
    entry = cluster.ask(wire.GetMap()).shards[shard]
    spare = next(each for each in map(node_of, entry.members) if each != node_of(entry.leader))
    ask(wire.AdminKind.SWAP, spare, NEW)
    ask(wire.AdminKind.TRANSFER, NEW)


def _coordinator(cluster: RunningCluster, xid: Xid) -> str:
    """The coordinator shard."""
    homes = cluster.ask(wire.GetMap()).topics[wire.HOMES]
    return wire.shards_of(wire.HOMES, homes)[coordinator_number(xid, homes.partitions)]


def _is_led(node: Node, shard: str) -> bool:
    return node.shards[shard].transactions is not None


def test_a_client_is_there_for_a_node_that_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_registry, "ABSENT_SECONDS", 0.5)
    monkeypatch.setattr(router, "_NODES_SECONDS", 0.1)
    with RunningCluster(tmp_path) as cluster:
        bus: Any = cluster.connect("client")
        topic = bus.topic("t", partitions=1)
        open_work, xid = bus.transaction(timeout=600), Xid(7, b"xa", b"")
        open_work.publish(topic, b"open")
        branch = bus.xa.start(xid)
        branch.publish(topic, b"started")
        node = cluster.run(_add_node(cluster, tmp_path))
        for shard in (topic._topic.shard(0), _coordinator(cluster, xid)):
            _move(cluster, shard)
            until(partial(_is_led, node, shard), f"{NEW} to lead {shard}")
        owner = owner_of(bus._client.router.run)
        until(lambda: owner in node._clients._links, f"a link of the client to {NEW}")
        open_work.commit()
        branch.publish(topic, b"and went on")
        bus.xa.end(xid)
        bus.xa.commit(xid, one_phase=True)
        found = [bytes(each) for each in topic.read_oldest(9).samples]
        assert sorted(found) == [b"and went on", b"open", b"started"]
