"""Repairs that were interrupted are taken up again, and members that no metadata names are deleted.

An operator asked a node to make a member in place of one whose disk was lost, and the answer was lost. From
then on the node reported the new member, and the operator took the shard for a sound one: it stayed one copy
short for ever. A member that was made and never named in the metadata stayed on its disk for ever. An
operator that died after it had contracted a shard for a repair left the shard so, if the new member was lost.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hawser.cluster import wire
from hawser.cluster.operator.repair import Repairs
from hawser.cluster.shard_map import node_of
from hawser.cluster.transport import TransportError
from hawser.log.protocol import messages as m
from hawser.log.protocol.messages import ChangeKind
from hawser.log.protocol.metadata import Metadata, Status
from tests.support.cluster import RunningCluster
from tests.support.processes import until

SHARD = "t@1/0"
PATIENCE = 2


class Scene:
    """A shard of an operator, whose node n3 answers roll calls; `hosted` is what making a member brings."""

    def __init__(self, *members: str, copies: int = 3, done: bool = True) -> None:
        self.metadata: Any = Metadata(
            version=5, epoch=3, status=Status.STEADY, members=members, copies=copies, leader=members[0]
        )
        self.topics = {"t": wire.TopicEntry(1, "1", 1, {"replication": copies})}
        self.has_orders = False
        self.orders: list[Any] = []
        self.given: list[Any] = []
        self.sent: list[tuple[str, m.Message]] = []
        self.hosted: list[str | Exception] = []
        self.done = done
        self._work: list[Any] = []
        self.repairs = Repairs(self._host, self._send, self._work.append, PATIENCE)

    async def order(self, make: Callable[[object], Any]) -> wire.AdminDone:
        self.given.append(make(None))
        self.orders.append(self.given[-1].change)
        return wire.AdminDone(self.done, "")

    async def _host(self, node: str, shard: str) -> str:
        found = self.hosted.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def _send(self, shard: str, member: str, message: m.Message) -> None:
        self.sent.append((member, message))

    def roll(
        self,
        member: str | None,
        times: int = PATIENCE + 1,
        halted: str | None = None,
        nodes: tuple[str, ...] = ("n3",),
    ) -> None:
        reports = {} if member is None else {SHARD: wire.ShardReport(member, b"", halted)}
        drivers: Any = {SHARD: self} if self.metadata is not None else {}
        for _ in range(times):
            for node in nodes:
                self.repairs.rolled(node, reports, drivers, self.topics)
            while self._work:
                asyncio.run(self._work.pop())


def changes(scene: Scene) -> list[tuple[ChangeKind, str | None, str | None]]:
    return [(each.kind, each.old, each.new) for each in scene.orders]


def test_a_member_whose_making_was_not_answered_takes_the_place_of_the_lost_one() -> None:
    scene = Scene("n1.a", "n2.b", "n3.c")
    scene.hosted = [TransportError("the link was closed", was_sent=True), "n3.d"]
    scene.roll(None)
    assert scene.orders == []
    scene.roll("n3.d", PATIENCE)
    assert scene.orders == []
    scene.roll("n3.d", 1)
    assert changes(scene) == [(ChangeKind.SWAP, "n3.c", "n3.d")]


def test_a_repair_of_two_copies_is_taken_up_at_each_step() -> None:
    scene = Scene("n1.a", "n3.c", copies=2)
    scene.hosted = ["n3.d"]
    scene.roll(None)
    assert changes(scene) == [(ChangeKind.CONTRACT, "n3.c", None), (ChangeKind.EXPAND, None, "n3.d")]
    assert [each.is_repair for each in scene.given] == [True, True]
    # The next operator finds the ensemble contracted.
    scene = Scene("n1.a", copies=2)
    scene.roll("n3.d")
    assert changes(scene) == [(ChangeKind.EXPAND, None, "n3.d")] and scene.given[0].is_repair
    # A contraction that was not done is not followed by the expansion.
    scene = Scene("n1.a", "n3.c", copies=2, done=False)
    scene.hosted = ["n3.d"]
    scene.roll(None)
    assert changes(scene) == [(ChangeKind.CONTRACT, "n3.c", None)]


def test_a_shard_with_too_few_copies_gets_more() -> None:
    """No node has a member that could join."""
    scene = Scene("n1.a", copies=2)
    scene.hosted = [ValueError("node n2 cannot hold it"), "n3.d"]
    scene.roll(None, 10 * PATIENCE, nodes=("n2", "n3"))
    assert scene.orders == []
    scene.roll(None, 1, nodes=("n2", "n3"))
    assert changes(scene) == [(ChangeKind.EXPAND, None, "n3.d")] and scene.hosted == []
    assert scene.given[0].is_repair
    # It was contracted by an order.
    scene = Scene("n1.a", copies=1)
    scene.roll(None, 100, nodes=("n2", "n3"))
    assert scene.orders == []


def test_a_repair_that_failed_is_tried_again_as_late_as_the_first_time() -> None:
    """By whichever node reports the shard next."""
    scene, nodes = Scene("n1.a", copies=2), ("n2", "n3")
    scene.hosted = [ValueError("node n2 cannot hold it"), ValueError("node n3 cannot hold it"), "n3.d"]
    scene.roll(None, 10 * PATIENCE, nodes=nodes)
    scene.roll(None, 1, nodes=("n2",))
    assert scene.hosted == ["n3.d"]
    scene.roll(None, 1, nodes=("n3",))
    assert scene.hosted == ["n3.d"] and scene.orders == []
    scene.roll(None, 10 * PATIENCE, nodes=nodes)
    assert changes(scene) == [(ChangeKind.EXPAND, None, "n3.d")]


def test_a_member_that_nothing_names_is_deleted() -> None:
    scene = Scene("n1.a", "n2.b", "n4.e")
    scene.roll("n3.d", 10 * PATIENCE)
    assert scene.sent == []
    scene.roll("n3.d", 1)
    assert scene.sent == [("n3.d", m.RetireRequest(3))] and scene.orders == []
    orphan = Scene("n1.a")
    orphan.metadata = None
    orphan.roll("n3.d", 10 * PATIENCE + 1)
    # Its topic is there: its metadata is only not known.
    assert orphan.sent == []
    orphan.topics.clear()
    orphan.roll("n3.d", 10 * PATIENCE + 1)
    assert orphan.sent == [("n3.d", m.RetireRequest(0))]


def test_nothing_is_repaired_that_is_sound_or_at_work() -> None:
    sound = Scene("n1.a", "n2.b", "n3.c")
    sound.roll("n3.c", 100)
    sound.roll("n3.d", 100, halted="retired")
    # One that is missing now and then is not lost.
    for _ in range(20):
        sound.roll(None, PATIENCE)
        sound.roll("n3.c", 1)
    sound.has_orders = True
    sound.roll(None, 100)
    ordered = Scene("n1.a", "n2.b")
    ordered.has_orders = True
    ordered.roll("n3.d", 100)
    only = Scene("n3.c")
    only.roll(None, 100)
    for scene in (sound, ordered, only):
        assert scene.orders == [] and scene.sent == []


def test_lost_answers_leave_neither_a_missing_copy_nor_a_member_too_many(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, 4) as cluster:
        topic: Any = cluster.connect().topic("t", partitions=1, replication=3)
        topic.publish(b"before")
        operator: Any = cluster._cluster.operator
        ((shard, entry),) = cluster.ask(wire.GetMap("t")).shards.items()
        names = {name: tmp_path / name / "shards" / quote(shard, safe="") for name in cluster.nodes}
        (spare,) = names.keys() - {node_of(each) for each in entry.members}
        cluster.run(operator._host(spare, shard))
        assert names[spare].exists()
        host, asked = operator._repairs._host, []
        operator._repairs._patience = 4

        async def lose_first_answer(node: str, shard: str) -> str:
            member: str = await host(node, shard)
            asked.append(member)
            if len(asked) == 1:
                raise TransportError("the link was closed before the answer came", was_sent=True)
            return member

        operator._repairs._host = lose_first_answer
        lost = next(each for each in entry.members if each != entry.leader)
        cluster.stop(node_of(lost))
        shutil.rmtree(names[node_of(lost)])
        cluster.start(node_of(lost))

        def members() -> tuple[str, ...]:
            found: tuple[str, ...] = operator.drivers[shard].metadata.members
            return found

        until(lambda: lost not in members() and asked[0] in members(), "the lost copy to be replaced")
        assert len(members()) == 3
        until(lambda: not names[spare].exists(), "the member that nothing names to be deleted")
        topic.publish(b"after")
        assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"before", b"after"]
