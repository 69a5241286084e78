"""An order ends with its shard: a topic is deleted while one of its shards carries out an order.

The operator closed what drove the shard, and nobody was left to report on the order. The request for it, the
drain of a node or the repair it belonged to waited for ever.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.operator.shard_driver import ShardDriver
from hawser.cluster.shard_map import node_of
from hawser.log.protocol.events import Elect
from hawser.log.protocol.operator import Operator
from tests.support.cluster import RunningCluster, _asked
from tests.support.processes import LIMIT_SECONDS, until


def _ignore(*_: object) -> None:
    """No message arrives anywhere."""


def test_orders_end_when_their_shard_is_closed() -> None:
    async def run() -> None:
        store: Any = None
        in_thread: Any = None
        driver = ShardDriver("t@1/0", Operator("o"), store, in_thread, _ignore, _ignore)
        orders = [asyncio.ensure_future(driver.order(Elect)) for _ in range(3)]
        await asyncio.sleep(0)
        assert driver.has_orders
        orders[0].cancel()
        driver.close()
        answers = await asyncio.wait_for(asyncio.gather(*orders[1:], driver.order(Elect)), LIMIT_SECONDS)
        for answer in answers:
            assert not answer.done and "t@1/0" in answer.text
        assert not driver.has_orders

    asyncio.run(run())


@pytest.mark.parametrize("kind", [wire.AdminKind.TRANSFER, wire.AdminKind.DRAIN])
def test_an_order_in_a_topic_that_is_deleted_is_answered(tmp_path: Path, kind: wire.AdminKind) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.connect().topic("t", partitions=1).publish(b"x")
        ((shard, entry),) = cluster.ask(wire.GetMap("t")).shards.items()
        operator: Any = cluster._cluster.operator
        driver = operator.drivers[shard]
        driver._send = _ignore
        leader = node_of(entry.leader)
        other = next(node_of(each) for each in entry.members if each != entry.leader)
        if kind is wire.AdminKind.TRANSFER:
            order = wire.Admin(kind, shard, (other,))
        else:
            order = wire.Admin(kind, leader)
        answer = cluster.begin(_asked(cluster._addresses[other], order))
        until(lambda: driver.has_orders, "the order to begin")
        assert cluster.delete("t").done
        found = answer.result(LIMIT_SECONDS)
        assert isinstance(found, wire.AdminDone), found
        assert "0 of 1" in found.text if kind is wire.AdminKind.DRAIN else not found.done
