"""Nodes and operators that do not hear each other, both ways or one way only, under load."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.transport import AskTimeout, Identity, PeerRole, dial
from hawser.log.entry import Kind
from hawser.log.queue.claims import NO_TOKEN
from hawser.log.state.results import Reason, Rejected
from hawser.transaction.identity import LANE_FORMAT, TransactionId, Xid
from tests.cluster.attack import judged, leader_of, under_load
from tests.cluster.transaction_wire import RawTransactions
from tests.support.hosts import Hosts
from tests.support.processes import ClusterProcesses, NodeProcess, OperatorProcess, until
from tests.support.transactions import entry

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


@pytest.mark.soak
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


def test_a_leader_cut_off_lends_to_transactions_and_to_nobody_else(tmp_path: Path) -> None:
    """What it lends somebody else has accepted meanwhile; no transaction can have it."""
    with network(tmp_path) as (hosts, cluster), cluster.connect("tester") as bus:
        queue: Any = bus.queue("jobs", replication=3)
        queue.put_many([b"first", b"second"])
        raw = RawTransactions(bus)
        shard = raw.shard("jobs")
        old = raw.leader(shard)
        address = cluster.nodes[old].address
        hosts.part([old], [*(name for name in NODES if name != old), "o1"])
        until(lambda: raw.leader(shard) != old, "another leader")
        with queue.get(timeout=60) as message:
            assert bytes(message) == b"first"
        assert isinstance(_get(address, shard, for_transactions=False), wire.Failed)
        lent = _get(address, shard, for_transactions=True)
        assert isinstance(lent, wire.Delivered), lent
        ((delivery_batch,),) = (lent.delivery_batches,)
        assert b"first" in bytes(delivery_batch.batch)
        transaction = TransactionId(Xid(LANE_FORMAT, b"of the test", b""), 1)
        token = delivery_batch.token
        lock = wire.QueueLock(0, _SESSION, ((token.epoch, token.number, 1),))
        accept = entry(Kind.QUEUE_SETTLE, wire.encode(lock), raw.label(transaction, 1))
        assert raw.transact(shard, accept) == [Rejected(Reason.NOT_HELD)]
        hosts.heal()
        with queue.get(timeout=60) as message:
            assert bytes(message) == b"second"
        assert queue.info().ready == queue.info().claimed == 0


def test_a_home_cut_off_does_not_say_what_is_prepared(tmp_path: Path) -> None:
    """Whoever recovers would miss what was prepared without it, and roll that back."""
    with network(tmp_path) as (hosts, cluster), cluster.connect("tester") as bus:
        orders: Any = bus.topic("orders", replication=3)
        raw, xid = RawTransactions(bus), Xid(7, b"transfer", b"")
        bus.xa.start(xid).publish(orders, b"half of it")
        bus.xa.end(xid)
        coordinator = raw.coordinator(xid)
        old = raw.leader(coordinator)
        look = wire.TransactionLook(coordinator)
        assert isinstance(_ask(cluster.nodes[old].address, look), wire.TransactionsSeen)
        hosts.part([old], [*(name for name in NODES if name != old), "o1"])
        until(lambda: raw.leader(coordinator) != old, "another leader")
        assert bus.xa.prepare(xid) == "ok"
        assert bus.xa.recover() == [xid]
        # It waits for a majority that would know.
        with pytest.raises(AskTimeout):
            _ask(cluster.nodes[old].address, look, 3.0)
        hosts.heal()
        bus.xa.commit(xid)


_SESSION = "of the test"


def _get(address: str, shard: str, for_transactions: bool) -> wire.Answer:
    """What this node has for a session."""
    get = wire.QueueGet(
        shard, 0, _SESSION, 1, NO_TOKEN, 1, 1000, 10.0, 1.0, for_transactions=for_transactions
    )
    return _ask(address, get)


def _ask(address: str, request: wire.Request, timeout_seconds: float = 10.0) -> wire.Answer:
    """What this very node says."""

    async def ask() -> wire.Answer:
        link = await dial(address, Identity(role=PeerRole.CLIENT, name="tester", run="of the test"))
        try:
            return wire.decode_answer(await link.ask(wire.encode(request), timeout_seconds))
        finally:
            await link.close()

    return asyncio.run(ask())


def _linger(random: Random) -> None:
    """Let the cut be felt: shorter and longer than the operator's patience."""
    time.sleep(random.uniform(0.2, 3))
