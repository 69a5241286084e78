"""A node that has just started is told that a shard has another leader, and of nothing else yet; another one
does not hear of a new topic.

Found by reading, after a test had failed on a slow machine: the first one answered as if it knew the whole
cluster, and a client believed whoever answered first. So topics were taken for ones that do not exist.
"""

import asyncio
from pathlib import Path

import pytest

from hawser.cluster import wire
from hawser.cluster.client.client import Client
from hawser.cluster.client.router import Router
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.operator.service import OperatorSettings
from hawser.cluster.shard_map import ShardMap
from hawser.cluster.transport import Identity, Link, PeerRole, dial

ASK_SECONDS = 60.0


async def _ask(link: Link, request: wire.Request) -> wire.Answer:
    return wire.decode_answer(await link.ask(wire.encode(request), ASK_SECONDS))


async def _answered(directory: Path) -> wire.Answer:
    """What a node says of a topic while it knows of one shard only."""
    # What is told everywhere now and then does not come in between.
    cluster = EmbeddedCluster(directory, 1, operator_settings=OperatorSettings(look_ticks=1_000_000))
    await cluster.start()
    try:
        node, operator = cluster.nodes[0], cluster.operator
        assert operator is not None
        link = await dial(node.address, Identity(role=PeerRole.CLIENT, name="client", run="1"))
        await _ask(link, wire.Admin(wire.AdminKind.CREATE, "orders", settings={"replication": 1}))
        known = await _ask(link, wire.GetMap("orders"))
        assert isinstance(known, wire.Map) and known.cluster and "orders" in known.topics
        node.map = ShardMap()
        (shard,) = operator.drivers
        operator._push(shard)
        async with asyncio.timeout(ASK_SECONDS):
            while shard not in node.map.shards:
                await asyncio.sleep(0.001)
        return await _ask(link, wire.GetMap("orders"))
    finally:
        await cluster.stop()


def test_a_node_that_knows_one_shard_does_not_answer_for_the_cluster(tmp_path: Path) -> None:
    answer = asyncio.run(_answered(tmp_path))
    assert isinstance(answer, wire.Map)
    assert not answer.topics
    assert not answer.cluster


async def _opened(directory: Path, patch: pytest.MonkeyPatch) -> str:
    """Open a topic that one node has not heard of, and the others are slow to tell of."""
    cluster = EmbeddedCluster(directory, 2, operator_settings=OperatorSettings(look_ticks=1_000_000))
    await cluster.start()
    ignorant, _ = cluster.nodes
    settings = ClientSettings(timeout=ASK_SECONDS, connect_timeout=ASK_SECONDS)
    client = Client([node.address for node in cluster.nodes], "client", settings)
    ask = Router._map_of

    async def slowly(router: Router, link: Link, topic: str | None) -> bool:
        if link.address != ignorant.address:
            await asyncio.sleep(0.3)
        return await ask(router, link, topic)

    try:
        await client.start()
        await client.open("orders", {"replication": 2}, True, None)
        ignorant.map.topics.clear()
        client.router.map = ShardMap()
        patch.setattr(Router, "_map_of", slowly)
        return (await client.open("orders", {}, False, None)).name
    finally:
        await client.close()
        await cluster.stop()


def test_who_answers_first_does_not_decide_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(_opened(tmp_path, monkeypatch)) == "orders"
