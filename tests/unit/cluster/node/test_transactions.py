"""The parts of a node that look after transactions: who is there, who observes, and the figures."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from hawser.cluster import wire
from hawser.cluster.metrics import node_metrics
from hawser.cluster.node.server import NodeSettings
from hawser.cluster.node.transaction import participant, peer_client
from hawser.cluster.node.transaction.client_registry import ABSENT_SECONDS, UNSEEN_SECONDS, ClientRegistry
from hawser.cluster.node.transaction.coordinator import CoordinatorDriver
from hawser.cluster.node.transaction.observers import ObserverRegistry
from hawser.cluster.node.transaction.peer_client import GONE_SECONDS, PeerClient
from hawser.cluster.shard_map import ShardMap
from hawser.errors import Corrupt, UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import Run
from hawser.log.state.results import Outcome
from hawser.transaction.identity import MAX_TIMEOUT_SECONDS, TransactionId, owner_of
from hawser.transaction.participant.branches import Branches
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.transactions import Peer, batch_of, entry, lane

GUIDE = Path(__file__).parents[4] / "docs" / "howto" / "transactions.md"
HEARD: list[tuple[Any, ...]] = []


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self, transaction: TransactionId, shard: str) -> None:
        self._name = transaction.xid.global_id.decode()

    def publish(self, target: str, records: int, index: int) -> None:
        HEARD.append((self._name, "publish", target, records))

    def accept(self, queue: str, runs: Sequence[Run]) -> None: ...
    def commit_offsets(self, topic: str, group: str, before: int, after: int) -> None: ...

    def prepare(self) -> None:
        HEARD.append((self._name, "prepare"))

    def commit(self) -> None:
        HEARD.append((self._name, "commit"))

    def rollback(self, outcome: Outcome) -> None:
        HEARD.append((self._name, "rollback", outcome))


def broken(transaction: TransactionId, shard: str) -> Notes:
    raise RuntimeError("an observer that cannot be made")


# Presence.


def test_whoever_has_a_link_is_there_and_whoever_had_one_is_waited_for() -> None:
    clients, owner = ClientRegistry(), owner_of("run")
    clients.link_opened("run")
    clients.link_opened("run")
    clients.link_closed("run", 5.0)
    assert not clients.is_lost(owner, 1e9)
    clients.link_closed("run", 10.0)
    assert not clients.is_lost(owner, 10.0 + ABSENT_SECONDS - 0.1)
    assert clients.is_lost(owner, 10.0 + ABSENT_SECONDS)
    clients.link_opened("run")
    assert not clients.is_lost(owner, 1e9)


def test_a_client_that_was_never_here_is_left_to_its_time_outs() -> None:
    """As one that lives and has no link yet to a node that is new."""
    clients, owner = ClientRegistry(), owner_of("run")
    assert not clients.is_lost(owner, 100.0)
    assert not clients.is_lost(owner, 100.0 + MAX_TIMEOUT_SECONDS - 0.1)
    assert clients.is_lost(owner, 100.0 + UNSEEN_SECONDS)
    assert clients.is_lost(owner, 110.0, 10.0) and not clients.is_lost(owner, 109.9, 10.0)
    # From its first link on it is as any other.
    clients.link_opened("run")
    clients.link_closed("run", 5000.0)
    assert not clients.is_lost(owner, 5000.0 + ABSENT_SECONDS - 0.1)
    assert clients.is_lost(owner, 5000.0 + ABSENT_SECONDS)
    assert not clients.is_lost(0, 100.0) and not clients.is_lost(0, 1e9)


def test_those_who_left_are_forgotten_in_the_end() -> None:
    clients, last = ClientRegistry(), 100 * UNSEEN_SECONDS
    for number in range(1000):
        now = last / 1000 * number
        clients.link_opened(f"run {number}")
        clients.link_closed(f"run {number}", now)
        assert not clients.is_lost(owner_of(f"stranger {number}"), now)
    assert len(clients._absent) <= 21 and len(clients._unseen) <= 21
    assert clients.is_lost(owner_of("run 995"), last)


# Shards that are gone.


def test_a_shard_is_gone_when_the_map_lacks_it_for_long_and_was_told_since() -> None:
    shard_map = ShardMap()
    peers = PeerClient(shard_map, {}, None, None)  # type: ignore[arg-type]
    entry = wire.TopicEntry(1, "11111111", 1, {})
    shard_map.merge(wire.Map("cluster", {}, {"t": entry}, {}))
    (old,), (new,) = wire.shards_of("t", entry), wire.shards_of("t", replace(entry, uuid="22222222"))
    peers.learned(0.0)
    assert not peers.is_gone(old, 0.0) and not peers.is_gone(new, 0.0)
    # Nobody has told the map since: it may be on its way.
    assert not peers.is_gone(new, 10 * GONE_SECONDS)
    peers.learned(GONE_SECONDS - 1)
    assert not peers.is_gone(new, GONE_SECONDS - 1)
    # It is made, and then the other one is gone.
    shard_map.merge(wire.Map("cluster", {}, {"t": replace(entry, uuid="22222222", version=2)}, {}))
    peers.learned(2 * GONE_SECONDS)
    assert not peers.is_gone(new, 2 * GONE_SECONDS) and not peers.is_gone(old, 2 * GONE_SECONDS)
    peers.learned(3 * GONE_SECONDS)
    assert peers.is_gone(old, 3 * GONE_SECONDS) and not peers.is_gone(new, 3 * GONE_SECONDS)
    shard_map.merge(wire.Map("cluster", {}, {"t": replace(entry, version=3, deleted=True)}, {}))
    assert peers.is_gone(old, 3 * GONE_SECONDS)


# Shards that do not answer.


@pytest.mark.parametrize("leads", ["from the beginning", "after a moment"])
def test_a_leader_on_the_same_node_that_has_no_majority_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, leads: str
) -> None:
    monkeypatch.setattr(peer_client, "_ASK_SECONDS", 0.05)
    late: list[Callable[[wire.Answer], None]] = []
    heard: list[wire.Answer] = []
    asked = iter([None] if leads == "after a moment" else [])
    here = SimpleNamespace(
        led=lambda name: next(asked, "here"), transact=lambda role, message, answer: late.append(answer)
    )

    async def tell() -> None:
        tasks: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        peers = PeerClient(
            ShardMap(), {}, cast("Any", here), lambda work: tasks.append(loop.create_task(work))
        )
        peers.tell(wire.Transact("s", ()), heard.append)
        while not heard:
            await asyncio.sleep(0.01)
        # What it says then changes nothing: whoever wanted to know asks again.
        for answer in late:
            answer(wire.Transacted(()))
        await asyncio.gather(*tasks)

    asyncio.run(tell())
    (failed,) = heard
    assert isinstance(failed, wire.Failed) and failed.code is wire.Code.UNAVAILABLE and failed.retryable


# What cannot be read.


def test_a_staged_batch_that_is_damaged_keeps_no_other_from_being_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningCluster(tmp_path, 1) as cluster:
        peer = Peer(cluster, "client")
        peer.create("one", replication=1)
        name, damaged, sound = peer.shard("one"), lane("damaged"), lane("sound")
        for each in (damaged, sound):
            peer.transact(name, peer.publish(each, 1, b"x"))
        shard = next(iter(cluster._nodes.values())).shards[name]
        assert shard.transactions is not None
        register = shard.replica.machine.part(Branches).register
        first = {each: branch.operations[0] for each, branch in register}
        real = shard.replica.entry

        def read(index: int) -> Any:
            if index == first[damaged].index:  # type: ignore[union-attr]
                raise Corrupt("the entry is damaged")
            return real(index)

        monkeypatch.setattr(shard.replica, "entry", read)
        monkeypatch.setattr(participant, "carry_before", lambda replica: replica.machine.applied + 1)

        def carried() -> bool:
            return {each: branch.operations[0] for each, branch in register}[sound] != first[sound]

        until(carried, "the sound one is carried forward")
        monkeypatch.undo()
        peer.leave()
    assert [each.message for each in caplog.records].count(
        f"shard {name}: staged messages cannot be read: the entry is damaged"
    ) == 1


def test_votes_that_a_client_made_up_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = []
    real = CoordinatorDriver._hear

    def hear(self: CoordinatorDriver, *heard: Any) -> None:
        real(self, *heard)
        answers.append(heard)

    monkeypatch.setattr(CoordinatorDriver, "_hear", hear)
    with RunningCluster(tmp_path, 1) as cluster:
        peer = Peer(cluster, "client")
        for name in ("one", "two"):
            peer.create(name, replication=1)
        one, two, liar = peer.shard("one"), peer.shard("two"), lane("liar")
        peer.transact(two, peer.publish(liar, 1, b"x"))
        peer.begin(wire.Transact(one, (peer.publish(liar, 1, b"x"), peer.commit(liar, 1, two))))
        until(lambda: len(answers) >= 3, "the shard was told again and again")
        assert peer.look(one, liar).records and peer.look(two, liar).branches and not peer.values(two)
        assert figures(cluster, tmp_path)["hawser_transactions_unfinished", ""] == 1
        peer.leave()
    assert sum("this should never happen" in each.message for each in caplog.records) == 1


# Observers.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no colon", "module:factory"),
        ("no_such_module:factory", "cannot be imported"),
        ("tests.unit.cluster.node.test_transactions:nothing", "cannot be imported"),
        ("tests.unit.cluster.node.test_transactions:HEARD", "it must be a function or class"),
    ],
)
def test_an_observer_that_cannot_be_had_is_an_error_at_the_start(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ObserverRegistry((name,), ShardMap())


def test_observers_of_a_node_are_told_and_counted(tmp_path: Path) -> None:
    names = tuple(f"tests.unit.cluster.node.test_transactions:{each}" for each in ("Notes", "broken"))
    with RunningCluster(tmp_path, 1, NodeSettings(observers=names)) as cluster:
        peer = Peer(cluster, "client")
        peer.create("one", replication=1)
        shard = peer.shard("one")
        done, undone, left = lane("done"), lane("undone"), lane("left")
        peer.transact(shard, peer.publish(done, 1, b"x", b"y"), peer.commit(done, 1))
        peer.transact(shard, peer.publish(undone, 1, b"x"), peer.abort(undone))
        peer.transact(shard, peer.publish(left, 1, b"x"))
        assert [each for each in HEARD if each[0] != "left"] == [
            ("done", "publish", "one", 2),
            ("done", "commit"),
            ("undone", "publish", "one", 1),
            ("undone", "rollback", Outcome.ROLLED_BACK),
        ]
        found = figures(cluster, tmp_path)
        peer.leave()
    ended = "hawser_transaction_branches_ended_total"
    assert found["hawser_transaction_branches", "open"] == 1
    assert found["hawser_transaction_branches", "prepared"] == 0
    assert (found[ended, "committed"], found[ended, "rolled back"], found[ended, "timed out"]) == (1, 1, 0)
    records = "hawser_transaction_records_total"
    assert (found[records, "published"], found[records, "accepted"]) == (2, 0)
    assert found["hawser_transaction_observer_failures_total", ""] == 3
    assert found["hawser_transactions_in_doubt", ""] == found["hawser_transactions_unfinished", ""] == 0


def test_the_observer_of_the_guide_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows each topic and queue by its name, also a queue that lives with a topic."""
    (module,) = re.findall(r"```python\n(# audit.py.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "audit.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    caplog.set_level("INFO", "audit")
    with RunningCluster(tmp_path / "cluster", 1, NodeSettings(observers=("audit:Audit",))) as cluster:
        with cluster.connect("shop") as bus:
            orders = bus.topic("orders", replication=1)
            invoices = bus.topic("invoices", replication=1)
            jobs = bus.queue("jobs", colocate="orders")
            jobs.put_many([b"1", b"2", b"3"])
            orders.publish(b"an order")
            with orders.subscribe(group="billing", start="earliest") as subscription:
                subscription.take(timeout=30)
                with bus.transaction() as tx:
                    tx.accept(tx.get_many(jobs, 3, timeout=30))
                    tx.commit_offsets(subscription)
                    tx.publish_many(orders, [b"x", b"y"])
                    tx.publish(invoices, b"z")
        found = figures(cluster, tmp_path / "cluster")
    said = sorted(each.message.partition(" on ")[::2] for each in caplog.records if each.name == "audit")
    assert len({transaction for transaction, _ in said}) == 1
    assert [re.sub("@.*?/", "/", rest) for _, rest in said] == [
        "invoices/0: 1 to invoices",
        "orders/0: 3 of jobs from 1 on, billing at 2 of orders, 2 to orders",
    ]
    records = "hawser_transaction_records_total"
    assert (found[records, "published"], found[records, "accepted"]) == (3, 3)


# Figures.


def test_what_waits_for_a_decision_is_counted_with_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningCluster(tmp_path, 1) as cluster:
        peer = Peer(cluster, "client")
        for name in ("one", "two"):
            peer.create(name, replication=1)
        one, two, waits = peer.shard("one"), peer.shard("two"), lane("waits")
        label = peer.label(waits, 1)._replace(last=True, coordinator=two)
        peer.transact(one, entry(Kind.BATCH, batch_of(b"x"), label))
        until(lambda: all(waiting(cluster, tmp_path)[::2]), "it is prepared and has an age")
        monkeypatch.setattr(participant.Participant, "_now", property(lambda self: self._loop.time() + 20.0))
        prepared, in_doubt, oldest = waiting(cluster, tmp_path)
        assert (prepared, in_doubt) == (1, 1) and 20 < oldest < 1000
        assert peer.look(one, waits).branches[0].age_seconds > 20
        peer.transact(two, peer.publish(waits, 1, b"x"), peer.commit(waits, 1, one))
        until(lambda: waiting(cluster, tmp_path) == (0, 0, 0), "nothing waits any more")
        peer.leave()


def test_what_is_prepared_keeps_its_age_when_leaders_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningCluster(tmp_path, 3) as cluster:
        peer = Peer(cluster, "client")
        for name in ("one", "two"):
            peer.create(name, replication=3)
        one, two, waits, works = peer.shard("one"), peer.shard("two"), lane("waits"), lane("works")
        peer.transact(one, peer.publish(works, 1, b"x"))
        peer.transact(one, peer.publish(waits, 1, b"x"), peer.prepare(waits, 1, two))
        old = cluster.run(peer.leader(one))
        other = next(name for name in cluster.nodes if name != old)
        cluster.ask(wire.Admin(wire.AdminKind.TRANSFER, one, (other,)))
        until(lambda: cluster.run(peer.leader(one)) == other, "another leader")
        day = SimpleNamespace(time_ns=lambda: time.time_ns() + 86_400 * 10**9)
        monkeypatch.setattr(participant, "time", day)
        ages = {each: peer.look(one, each).branches[0].age_seconds for each in (waits, works)}
        assert ages[waits] > 86_400 > ages[works]
        led = cluster._nodes[other].shards[one].transactions
        assert led is not None
        assert led.participant.in_doubt_count == 1 and led.participant.oldest_age_seconds > 86_400
        peer.leave()


def waiting(cluster: RunningCluster, directory: Path) -> tuple[float, float, float]:
    """How many branches are prepared, how many of them are in doubt, and how old the oldest of all is."""
    found = figures(cluster, directory)
    return (
        found["hawser_transaction_branches", "prepared"],
        found["hawser_transactions_in_doubt", ""],
        found["hawser_transaction_oldest_age_seconds", ""],
    )


def figures(cluster: RunningCluster, directory: Path) -> dict[tuple[str, str], float]:
    (node,) = cluster._nodes.values()
    return {
        (metric.name, metric.labels[0][1] if metric.labels else ""): metric.value
        for metric in node_metrics(node, directory / node.name)
    }
