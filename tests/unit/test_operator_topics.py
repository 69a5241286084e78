"""Topics that come and go at an operator, also at the same time."""

import asyncio
from pathlib import Path

import pytest

from hawser.cluster import wire
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.operator.placement import place
from hawser.cluster.transport import Identity, PeerRole, dial

ASK_SECONDS = 60.0


async def _administer(cluster: EmbeddedCluster, *requests: wire.Admin) -> list[wire.Answer]:
    link = await dial(cluster.nodes[0].address, Identity(role=PeerRole.CLIENT, name="admin", run="1"))
    bodies = await asyncio.gather(*(link.ask(wire.encode(each), ASK_SECONDS) for each in requests))
    return [wire.decode_answer(body) for body in bodies]


async def _run(directory: Path) -> None:
    cluster = EmbeddedCluster(directory)
    await cluster.start()
    try:
        create = wire.Admin(wire.AdminKind.CREATE, "orders", partitions=2)
        delete = wire.Admin(wire.AdminKind.DELETE, "orders")
        for _ in range(3):
            answers = await _administer(cluster, create, create)
            assert all(isinstance(each, wire.AdminDone) and each.done for each in answers), answers
            answers = await _administer(cluster, delete, create, delete, create)
            known = wire.AdminDone | wire.Failed
            assert all(isinstance(each, known) for each in answers), answers
        (last,) = await _administer(cluster, delete)
        assert isinstance(last, wire.AdminDone | wire.Failed)
        (created,) = await _administer(cluster, create)
        assert isinstance(created, wire.AdminDone) and created.done
        assert cluster.operator is not None
        steady = [desk.metadata for desk in cluster.operator.desks.values()]
        assert len(steady) == 2 and all(each is not None and each.leader for each in steady)
    finally:
        await cluster.stop()


def test_topics_created_and_deleted_at_the_same_time(tmp_path: Path) -> None:
    asyncio.run(_run(tmp_path))


def test_shards_are_spread() -> None:
    shards: dict[str, tuple[str, ...]] = {}
    for number in range(12):
        nodes = place(3, ["n1", "n2", "n3", "n4"], shards)
        shards[str(number)] = tuple(f"{node}.1" for node in nodes)
    held = [member for members in shards.values() for member in members]
    assert {held.count(f"n{number}.1") for number in range(1, 5)} == {9}
    first = [members[0] for members in shards.values()]
    assert max(map(first.count, first)) <= 4


def test_too_few_nodes_are_named() -> None:
    with pytest.raises(ValueError, match="3 replicas need 3 nodes, and 2 are alive"):
        place(3, ["n1", "n2"], {})
