"""The shards of transactions in a simulated run, and their clients.

The first shard is the cluster under test; the others are small and have faults of their own. All share one
clock. Each has a topic and a queue and is a coordinator shard, so the leader of the first one acts as a
participant and as a coordinator.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.state.queue import DEAD_LETTERS, MESSAGES
from hawser.log.state.results import Outcome
from hawser.testing.adversary import Adversary
from hawser.testing.checks import Violation
from hawser.testing.clients import Request
from hawser.testing.cluster import Cluster
from hawser.testing.network import NetworkFaults, host_of
from hawser.testing.probes import Probes
from hawser.testing.queue_clients import Drain, Putter
from hawser.testing.store import StoreFaults
from hawser.testing.swarm import Swarm
from hawser.testing.transaction_clients import Actor, Application, Mover, Outsider, Person
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import Xid, coordinator_number, owner_of

if TYPE_CHECKING:
    from hawser.testing.transaction_truth import Book

__all__ = ["Ring"]

_WEIGHTS: Final = {
    "leader restarts": 3.0,
    "kill": 1.0,
    "power": 1.0,
    "pause": 1.0,
    "slow leader": 1.0,
    "leader alone": 1.0,
    "elect": 1.0,
}
# The maximum time in microseconds until the end of a session is noticed.
_SESSION: Final = 20_000


class Ring:
    """`names` are the shards, `homes` those that decide; `shards` has both."""

    def __init__(self, main: Cluster, swarm: Swarm) -> None:
        self.main = main
        self.swarm = swarm
        self.probes: Probes = main.probes
        self.book: Book = main.truth.transactions.book
        self.unheard_share = swarm.unheard_share
        self.actors: list[Actor] = []
        self.lost_sessions: set[str] = set()
        self.lost_owners: set[int] = set()
        self.clusters: dict[str, Cluster] = {main.shard: main}
        for number in range(1, swarm.sides + 1):
            self._add_side(f"ring-{number}")
        self.names: list[str] = list(self.clusters)
        self.homes: list[str] = [f"__tx/{number}" for number in range(len(self.names))]
        self.shards: dict[str, Cluster] = self.clusters | dict(
            zip(self.homes, self.clusters.values(), strict=True)
        )
        self._home_names = dict(zip(self.names, self.homes, strict=True))
        self.adversaries = [self._attack(side) for side in self._sides]
        for cluster in self.clusters.values():
            cluster.ring = self
            for node in cluster.nodes.values():
                for other in self.clusters.values():
                    other.network.attach(node.transaction_service.address, node.transaction_service.receive)
        self._populate()

    @property
    def _sides(self) -> list[Cluster]:
        return [cluster for cluster in self.clusters.values() if cluster is not self.main]

    def _add_side(self, name: str) -> None:
        main, swarm = self.main, self.swarm
        make_up = Swarm(
            members=swarm.side_members,
            spares=0,
            interval=60_000,
            putting_pace=20_000,
            capacity_bytes=20_000,
            policy=swarm.policy,
            checkpoint_entries=swarm.checkpoint_entries,
            spare_entries=swarm.spare_entries,
            weights=_WEIGHTS,
        )
        trace = main.trace
        prefixed = None if trace is None else lambda line: trace(f"{name} {line}")
        side = Cluster(main.seed, make_up.members, swarm=make_up, trace=prefixed, shard=name, beside=main)
        side.network.faults = msgspec.structs.replace(swarm.network, straggling=0.0)
        self.clusters[name] = side

    def _attack(self, side: Cluster) -> Adversary:
        return Adversary(side, side.swarm, side.stream("adversary"))

    def _populate(self) -> None:
        for side in self._sides:
            Putter(side, f"{side.shard}putter", side.stream("putter")).begin()
        counts = (
            (Mover, self.swarm.movers),
            (Outsider, self.swarm.outsiders),
            (Application, self.swarm.applications),
            (Person, 1),
        )
        for kind, count in counts:
            for number in range(1, count + 1):
                name = f"{kind.__name__.lower()}{number}"
                kind(self, name, self.main.stream(name)).start()

    def start(self) -> None:
        for adversary in self.adversaries:
            adversary.start()

    # For the participants.

    def coordinator_of(self, xid: Xid) -> str:
        return self.homes[coordinator_number(xid, len(self.homes))]

    def home_on(self, cluster: Cluster) -> str:
        """The name of the home that this cluster is."""
        return self._home_names[cluster.shard]

    def send(self, shard: str, sender: str, request: Request, random: Random) -> None:
        """Send to a node: usually the leader in the map, sometimes any node."""
        cluster = self.shards[shard]
        leader = cluster.store.metadata.leader
        is_known = leader is not None and random.random() < 0.9
        to = host_of(leader) if is_known and leader else random.choice(cluster.node_names)
        cluster.network.send(sender, to, request)

    def lose(self, session: str) -> None:
        """End a session; the cluster notices it later."""

        def noticed() -> None:
            self.lost_sessions.add(session)
            self.lost_owners.add(owner_of(session))

        self.main.clock.after(_SESSION, noticed)

    def count(self, outcome: Outcome, shards: int) -> None:
        """Note an answer to a client."""
        committed = outcome is Outcome.COMMITTED
        self.probes.count("committed on one shard", committed and shards == 1)
        self.probes.count("committed on several shards", committed and shards > 1)
        self.probes.count("rolled back: a part was lost", outcome is Outcome.INCOMPLETE)
        self.probes.count("rolled back: no room", outcome is Outcome.NO_ROOM)
        self.probes.count("rolled back: not in time", outcome is Outcome.TIMED_OUT)

    # The end.

    def heal(self) -> None:
        """Stop the faults of the other shards and all new transactions."""
        self.unheard_share = 0.0
        for adversary in self.adversaries:
            adversary.stopped = True
        for actor in self.actors:
            actor.stopped = True
        for side in self._sides:
            for client in side.clients:
                client.stopped = True
            side.network.faults = NetworkFaults()
            side.network.heal()
            side.store.faults = StoreFaults()
            for node in side.nodes.values():
                node.resume()
                node.disk.power_lost_before = None
                node.sync_delay_most = 1_000
                node.start_if_down()
            for operator in side.operators.values():
                operator.resume()
                operator.start_if_down()
            for subqueue in (MESSAGES, DEAD_LETTERS):
                Drain(side, f"drain{subqueue}", side.stream(f"drain{subqueue}"), subqueue).begin()

    def unsettled(self) -> str:
        """The unfinished parts of transactions; empty if there are none."""
        busy = [f"{actor.name}: {actor.describe()}" for actor in self.actors if not actor.idle]
        if busy:
            return f"transactions are not over: {busy}"
        for cluster in self.clusters.values():
            open_branches = list(cluster.truth.transactions.branches)
            records = list(cluster.truth.machine.part(Decisions).ledger.register)
            if open_branches or records:
                return f"{cluster.shard} has open branches {open_branches}, and at home {records}"
        return next(filter(None, (side.unsettled() for side in self._sides)), "")

    def compare(self) -> None:
        """Check that each value of a producer was accepted once."""
        self.book.audit()
        brought: Counter[bytes] = Counter()
        taken: Counter[bytes] = Counter()
        for cluster in self.clusters.values():
            brought += cluster.truth.queue.brought
            taken += cluster.truth.queue.taken
            if cluster is not self.main:
                cluster.compare()
        if brought != taken:
            raise Violation(0, f"lost: {brought - taken}, more than there were: {taken - brought}")
