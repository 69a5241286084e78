"""Topics that come and go at an operator, also at the same time."""

import asyncio
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hawser.cluster import shard_map, wire
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.operator.creation import place
from hawser.cluster.operator.deletion import Retiring, forget_retiring, keep_retiring, list_retiring
from hawser.cluster.operator.service import OperatorService, OperatorSettings
from hawser.cluster.operator.validation import check_creation, check_nodes
from hawser.cluster.shard_map import MAX_DELETED, ShardMap, node_of
from hawser.cluster.stores import open_store
from hawser.cluster.stores.store import Value
from hawser.cluster.transport import Identity, PeerRole, dial
from hawser.memory.names import check_topic_name
from tests.support.cluster import RunningCluster
from tests.support.processes import until

ASK_SECONDS = 60.0


async def _administer(cluster: EmbeddedCluster, *requests: wire.Admin) -> list[wire.Answer]:
    link = await dial(cluster.nodes[0].address, Identity(role=PeerRole.CLIENT, name="admin", run="1"))
    bodies = await asyncio.gather(*(link.ask(wire.encode(each), ASK_SECONDS) for each in requests))
    return [wire.decode_answer(body) for body in bodies]


def _deletion(cluster: EmbeddedCluster) -> wire.Admin:
    """Of what is called orders now."""
    assert cluster.operator is not None
    return wire.Admin(wire.AdminKind.DELETE, "orders", uuid=cluster.operator.topics["orders"].uuid)


async def _run(directory: Path) -> None:
    cluster = EmbeddedCluster(directory)
    await cluster.start()
    try:
        create = wire.Admin(wire.AdminKind.CREATE, "orders", partitions=2)
        for _ in range(3):
            answers = await _administer(cluster, create, create)
            assert all(isinstance(each, wire.AdminDone) and each.done for each in answers), answers
            delete = _deletion(cluster)
            answers = await _administer(cluster, delete, create, delete, create)
            known = wire.AdminDone | wire.Failed
            assert all(isinstance(each, known) for each in answers), answers
        (last,) = await _administer(cluster, _deletion(cluster))
        assert isinstance(last, wire.AdminDone | wire.Failed)
        (created,) = await _administer(cluster, create)
        assert isinstance(created, wire.AdminDone) and created.done
        assert cluster.operator is not None
        steady = [driver.metadata for driver in cluster.operator.drivers.values()]
        assert len(steady) == 2 and all(each is not None and each.leader for each in steady)
    finally:
        await cluster.stop()


def test_topics_created_and_deleted_at_the_same_time(tmp_path: Path) -> None:
    asyncio.run(_run(tmp_path))


def test_an_operator_that_has_just_begun_waits_for_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        cluster = EmbeddedCluster(tmp_path)
        await cluster.start()
        try:
            operator, loop = cluster.operator, asyncio.get_running_loop()
            assert operator is not None
            call_roll, late = operator._call_roll, loop.time() + 1

            async def call_late(node: str, link: Any) -> None:
                if node == "n1" or loop.time() > late:
                    await call_roll(node, link)

            # As if it had just begun, and reached one of them.
            while operator._rolling:
                await asyncio.sleep(0)
            monkeypatch.setattr(operator, "_call_roll", call_late)
            operator._settled_at = loop.time() + operator.settings.settling_seconds
            del operator.rolls["n2"], operator.rolls["n3"]
            create = wire.Admin(wire.AdminKind.CREATE, "orders", settings={"replication": 3})
            created = await operator._create(create)
            assert isinstance(created, wire.AdminDone) and created.done and loop.time() > late
            more = wire.Admin(wire.AdminKind.CREATE, "more", settings={"replication": 4})
            with pytest.raises(ValueError, match="4 replicas need 4 nodes, and 3 are alive"):
                await operator._create(more)
        finally:
            await cluster.stop()

    asyncio.run(run())


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


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a\n", "x/" * 200 + "y", "ä" * 40, "a" * 101])
def test_a_name_that_no_node_could_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_creation(wire.Admin(wire.AdminKind.CREATE, name))


@pytest.mark.parametrize("name", ["a", "camera/front", "ä" * 33, "a b~c", "a" * 100])
def test_names_are_judged_as_on_one_host(name: str) -> None:
    check_creation(wire.Admin(wire.AdminKind.CREATE, check_topic_name(name)))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "snappy"},
        {"compression": 3},
        {"replication": True},
        {"replication": 8},
        {"replication": None},
        {"retention_bytes": 0},
        {"retention_seconds": "1"},
        {"schema": 1},
        {"depth": 4},
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, wire.Setting]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        check_creation(wire.Admin(wire.AdminKind.CREATE, "orders", settings=settings))


@pytest.mark.parametrize(
    ("name", "dead_letters", "words"),
    [("q", "q", "its own"), ("q.dead", None, "dead letters"), ("q", "p.dead", "dead letters")],
)
def test_a_queue_and_its_dead_letters_have_names_of_their_own(
    name: str, dead_letters: str | None, words: str
) -> None:
    asked = wire.Admin(
        wire.AdminKind.CREATE, name, settings={"dead_letter": dead_letters}, topic_kind="queue"
    )
    with pytest.raises(ValueError, match=words):
        check_creation(asked)
    check_creation(wire.Admin(wire.AdminKind.CREATE, "q.dead"))


def test_orders_without_their_nodes_are_refused() -> None:
    for kind in (
        wire.AdminKind.TRANSFER,
        wire.AdminKind.CONTRACT,
        wire.AdminKind.EXPAND,
        wire.AdminKind.SWAP,
    ):
        with pytest.raises(ValueError, match=kind.value):
            check_nodes(wire.Admin(kind, "orders@00000000/0"))


def test_an_operator_refuses_what_is_wrong(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        good: dict[str, wire.Setting]
        good = {"replication": 1, "compression": "zstd", "schema": None, "retention_bytes": 1 << 20}
        assert cluster.ask(wire.Admin(wire.AdminKind.CREATE, "good", settings=good)).done
        odd = wire.Admin(wire.AdminKind.CREATE, "odd", settings={"replication": 1, "compression": "snappy"})
        long = wire.Admin(wire.AdminKind.CREATE, "x/" * 200 + "y", settings={"replication": 1})
        shard = next(iter(cluster.ask(wire.GetMap("good")).shards))
        for wrong in (odd, long, wire.Admin(wire.AdminKind.TRANSFER, shard)):
            answer = cluster.ask(wrong)
            assert isinstance(answer, wire.Failed), answer
            assert (answer.code, answer.retryable) == (wire.Code.REJECTED, False)
        assert cluster.connect().topics() == ["good"]


class _Hanging:
    """A store of which one list never ends; it counts them."""

    def __init__(self) -> None:
        self.lists = 0
        self.go_on = threading.Event()

    def list(self, prefix: str) -> dict[str, Value]:
        self.lists += 1
        if self.lists > 8:
            self.go_on.wait()
        return {}

    def get(self, key: str) -> Value:
        return Value(b"cluster", 1)

    def put(self, key: str, data: bytes, expected: int | None) -> Value:
        return Value(data, 2)

    def close(self) -> None:
        pass


def test_looks_at_a_store_that_hangs_do_not_pile_up() -> None:
    async def run() -> None:
        hanging = _Hanging()
        store: Any = hanging
        operator = OperatorService("o", store, {}, OperatorSettings(tick_seconds=0.001, look_ticks=1))
        await operator.start()
        try:
            while hanging.lists <= 8:
                await asyncio.sleep(0)
            looks = []
            for _ in range(50):
                await asyncio.sleep(operator.settings.tick_seconds)
                looks.append(len([each for each in asyncio.all_tasks() if "_look_again" in repr(each)]))
            assert max(looks) == 1
        finally:
            hanging.go_on.set()
            await operator.stop()

    asyncio.run(run())


def test_an_operator_that_stops_does_not_hold_up_its_loop() -> None:
    """It waits for the call of the store that is under way."""

    async def run() -> None:
        hanging = _Hanging()
        store: Any = hanging
        operator = OperatorService("o", store, {}, OperatorSettings(tick_seconds=0.001, look_ticks=1))
        await operator.start()
        while hanging.lists <= 8:
            await asyncio.sleep(0)
        # A loop that is held up goes on then, and has failed.
        rescue = threading.Timer(10.0, hanging.go_on.set)
        rescue.start()
        stopping = asyncio.create_task(operator.stop())
        for _ in range(20):
            await asyncio.sleep(0.001)
        is_served = not hanging.go_on.is_set()
        hanging.go_on.set()
        await stopping
        rescue.cancel()
        assert is_served

    asyncio.run(run())


def test_a_topic_is_deleted_and_made_anew_while_a_node_is_away(tmp_path: Path) -> None:
    """The node that was away deletes its part when it is back, and nothing is left to be told."""
    create = wire.Admin(wire.AdminKind.CREATE, "orders", settings={"replication": 3})
    with RunningCluster(tmp_path, 4) as cluster:
        assert cluster.ask(create).done
        ((shard, entry),) = cluster.ask(wire.GetMap("orders")).shards.items()
        away = node_of(entry.members[0])
        directory = tmp_path / away / "shards" / quote(shard, safe="")
        cluster.stop(away)
        assert directory.exists()
        deleted = cluster.delete("orders")
        assert isinstance(deleted, wire.AdminDone) and deleted.done, deleted
        created = cluster.ask(create)
        assert isinstance(created, wire.AdminDone) and created.done, created
        assert directory.exists()
        cluster.start(away)
        until(lambda: not directory.exists(), "the deletion on the node that was away")
        operator = cluster._cluster.operator
        assert operator is not None
        until(lambda: not list_retiring(operator._store), "the end of the deletion")
        assert list(cluster.ask(wire.GetMap("orders")).shards) != [shard]


def test_metadata_that_cannot_be_read_is_no_other_shards_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningCluster(tmp_path) as cluster:
        created = cluster.ask(wire.Admin(wire.AdminKind.CREATE, "spoiled"))
        assert isinstance(created, wire.AdminDone) and created.done, created
        operator = cluster._cluster.operator
        assert operator is not None
        (key,) = (f"shards/{shard}" for shard in cluster.ask(wire.GetMap("spoiled")).shards)
        good = operator._store.get(key)
        assert good is not None
        assert isinstance(operator._store.put(key, b"spoiled", good.version), Value)
        created = cluster.ask(wire.Admin(wire.AdminKind.CREATE, "orders"))
        assert isinstance(created, wire.AdminDone) and created.done, created
        deleted = cluster.delete("orders")
        assert isinstance(deleted, wire.AdminDone) and deleted.done, deleted
        # Nothing was written over what a person may still mend.
        spoiled = operator._store.get(key)
        assert spoiled is not None and spoiled.data == b"spoiled"
    said = [
        record.message for record in caplog.records if "put back what was under that key" in record.message
    ]
    assert said and "spoiled@" in said[0]


def test_nodes_that_are_none_of_the_clusters_any_more_are_not_waited_for(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        operator = cluster._cluster.operator
        assert operator is not None
        here = next(iter(operator._nodes))
        keep_retiring(operator._store, "orders@1/0", Retiring(3, frozenset({"n9.1", "n8.1"})))
        until(lambda: not list_retiring(operator._store), "those of unknown nodes to be forgotten")
        cluster.stop(here)
        keep_retiring(operator._store, "orders@2/0", Retiring(3, frozenset({"n9.1", f"{here}.1"})))
        until(lambda: "orders@2/0" in operator._retiring, "the operator to know of it")
        until(lambda: operator._retiring["orders@2/0"]._told > 2, "the operator to have told it in vain")
        assert list_retiring(operator._store).keys() == {"orders@2/0"}


def test_a_second_operator_adds_to_those_who_are_away(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}")
    keep_retiring(store, "orders@1/0", Retiring(3, frozenset({"n1.1"})))
    keep_retiring(store, "orders@1/0", Retiring(2, frozenset({"n2.1"})))
    both = frozenset({"n1.1", "n2.1"})
    assert list_retiring(store) == {"orders@1/0": Retiring(3, both)}
    forget_retiring(store, "orders@1/0", frozenset({"n1.1"}))
    assert list_retiring(store)
    forget_retiring(store, "orders@1/0", both)
    assert not list_retiring(store)
    store.close()


def _map(version: int, uuid: str, deleted: bool = False, topic: str = "orders") -> wire.Map:
    shards = {
        wire.shard_of(topic, uuid, number): wire.ShardEntry(1, 1, "steady", None, ()) for number in (0, 1)
    }
    return wire.Map("c", {}, {topic: wire.TopicEntry(version, uuid, 2, {}, deleted)}, shards)


def test_shards_of_deleted_topics_leave_the_map() -> None:
    first, gone, second = _map(1, "a" * 32), _map(2, "a" * 32, deleted=True), _map(3, "b" * 32)
    late = wire.Map("c", {}, {}, first.shards)
    for told, left in [
        ([first], first),
        ([first, gone], None),
        ([late, gone], None),
        ([first, gone, late], None),
        ([first, gone, second], second),
        # Whoever slept through the deletion.
        ([first, second], second),
    ]:
        shard_map = ShardMap()
        for each in told:
            shard_map.merge(each)
        assert shard_map.shards == ({} if left is None else left.shards)
        assert shard_map.topics["orders"].deleted is (left is None)


def test_only_the_newest_deleted_topics_are_kept() -> None:
    shard_map = ShardMap()
    shard_map.merge(_map(1, "a" * 32, topic="stays"))
    for number in range(MAX_DELETED + 50):
        shard_map.merge(_map(2 + number, "a" * 32, deleted=True, topic=f"t{number}"))
    assert sorted(shard_map.topics) == sorted(
        ["stays", *(f"t{number}" for number in range(50, 50 + MAX_DELETED))]
    )
    assert len(shard_map.shards) == 2


def test_an_operator_forgets_deleted_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_map, "MAX_DELETED", 2)
    with RunningCluster(tmp_path) as cluster:
        for number in range(4):
            name = f"t{number}"
            assert cluster.ask(wire.Admin(wire.AdminKind.CREATE, name, settings={"replication": 1})).done
            assert cluster.delete(name).done
        operator = cluster._cluster.operator
        assert operator is not None
        until(lambda: sorted(operator.topics) == ["t2", "t3"], "the operator to forget")
        until(lambda: sorted(cluster.ask(wire.GetMap(None)).topics) == ["t2", "t3"], "the nodes to forget")
        assert not cluster.ask(wire.GetMap(None)).shards


async def _halted(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One follower of a topic halts, with its disk in order; the topic can be deleted and made again."""
    create = wire.Admin(wire.AdminKind.CREATE, "orders", settings={"replication": 3})
    (created,) = await _administer(cluster, create)
    assert isinstance(created, wire.AdminDone) and created.done
    followers = [each for node in cluster.nodes for each in node.shards.values() if not each.leads]
    monkeypatch.setattr(followers[0].replica, "_tick", None)
    async with asyncio.timeout(ASK_SECONDS):
        while not followers[0].replica.halted:
            await asyncio.sleep(0.01)
    assert any(followers[0] in node.shards.values() for node in cluster.nodes)
    (deleted,) = await _administer(cluster, _deletion(cluster))
    assert isinstance(deleted, wire.AdminDone) and deleted.done
    (created,) = await _administer(cluster, create)
    assert isinstance(created, wire.AdminDone) and created.done
    assert not any(followers[0] in node.shards.values() for node in cluster.nodes)


def test_a_topic_with_a_halted_member_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = EmbeddedCluster(tmp_path)
        await cluster.start()
        try:
            await _halted(cluster, monkeypatch)
        finally:
            await cluster.stop()

    asyncio.run(run())
