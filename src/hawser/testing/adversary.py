"""The adversary: causes faults in a simulated cluster, and gives orders to its operators.

It causes only faults that the cluster must survive: it destroys a disk only while a majority of every
ensemble that may decide keeps its disks.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

from hawser.log.protocol.events import Contract, Elect, Expand, Order, Reconfigure, Swap, Transfer
from hawser.log.protocol.messages import ChangeKind, Member
from hawser.log.protocol.metadata import Metadata, Phase, majority
from hawser.testing.network import host_of
from hawser.testing.swarm import Swarm

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster
    from hawser.testing.node import SimNode
    from hawser.testing.operators import SimOperator

__all__ = ["Adversary"]

MOST_MEMBERS = 5
_REMEMBERED = 200


class Adversary:
    """Causes a fault at random times until it is stopped. `deeds` counts the faults by kind."""

    def __init__(self, cluster: "Cluster", swarm: Swarm, random: Random) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.random = random
        self.stopped = False
        self.deeds: dict[str, int] = {}
        cluster.network.remembered_most = _REMEMBERED if "old messages" in swarm.weights else 0
        self._names = list(swarm.weights)
        self._weights = list(swarm.weights.values())
        cluster.store.observers.append(self._stored)
        self._do: dict[str, Callable[[], bool]] = {
            "kill": lambda: self._stop_one(power_loss=False),
            "power": lambda: self._stop_one(power_loss=True),
            "power in a step": self._stop_within_a_step,
            "power everywhere": self._stop_everything,
            "leader restarts": self._restart_leader,
            "pause": self._pause,
            "partition": self._partition,
            "one way": self._cut_one_way,
            "leader alone": self._isolate_leader,
            "follower alone": self._isolate_follower,
            "each leader alone": self._isolate_each_leader,
            "clog": self._clog,
            "old messages": self._recall,
            "full disk": self._fill_disk,
            "full leader": self._fill_leader,
            "slow disk": self._slow_disk,
            "slow leader": self._slow_leader,
            "failing disk": self._fail_disk,
            "flip": self._flip,
            "wipe": self._wipe,
            "operator crash": self._crash_operator,
            "operator pause": self._pause_operator,
            "store out of reach": self._cut_store,
            "elect": lambda: self._order(Elect(self._tag())),
            "transfer": self._transfer,
            "swap": self._swap,
            "expand": self._expand,
            "contract": self._contract,
            "contract twice": self._contract_twice,
        }

    def start(self) -> None:
        if self._names:
            self._again()

    def _again(self) -> None:
        self.cluster.clock.after(1 + int(self.random.random() * self.swarm.interval), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        name = self.random.choices(self._names, self._weights)[0]
        if self._do[name]():
            self.deeds[name] = self.deeds.get(name, 0) + 1
            self.cluster.note(f"adversary: {name}")
        self._again()

    def _stored(self, old: Metadata, new: Metadata, writer: str) -> None:
        """React to a change of the ensemble that has begun: a good time for a fault."""
        decided = new.phase is Phase.COMMIT and old.phase is Phase.PREPARE
        if self.stopped or not decided or self.random.random() >= self.swarm.striking_share:
            return
        self.cluster.clock.after(int(self.random.random() * 1_500), self._strike, writer)

    def _strike(self, operator: str) -> None:
        drawn = self.random.random()
        if drawn < 0.4:
            self._isolate_leader()
        elif drawn < 0.7:
            self._restart_leader()
        elif self.cluster.operators[operator].operator is not None:
            self._crash(self.cluster.operators[operator])
        self.deeds["strike"] = self.deeds.get("strike", 0) + 1

    # Processes.

    def _while(self, most: int, end: Callable[[], None]) -> None:
        """Undo a fault after a delay."""
        self.cluster.clock.after(1 + int(self.random.random() * most), end)

    def _running(self) -> "list[SimNode]":
        return [node for node in self.cluster.nodes.values() if node.replica is not None]

    def _stop_one(self, power_loss: bool) -> bool:
        running = self._running()
        if not running:
            return False
        node = self.random.choice(running)
        node.stop(power_loss)
        self._while(30_000, node.start_if_down)
        return True

    def _restart_leader(self) -> bool:
        """Restart a node at once, while messages to the old process are in flight and often while an operator
        waits for its answer."""
        leading = [node for node in self._running() if node.is_leading]
        if not leading:
            return False
        node = self.random.choice(leading)
        node.stop(power_loss=self.random.random() < 0.5)
        self._while(500, node.start_if_down)
        return True

    def _stop_within_a_step(self) -> bool:
        running = self._running()
        if not running:
            return False
        node = self.random.choice(running)
        node.disk.power_lost_before = node.disk.operations + self.random.randint(0, 12)
        self._while(60_000, node.start_if_down)
        return True

    def _stop_everything(self) -> bool:
        for node in self._running():
            node.stop(power_loss=True)
            self._while(30_000, node.start_if_down)
        return True

    def _pause(self) -> bool:
        node = self.random.choice(self._running() or [None])
        if node is None or node.paused:
            return False
        node.pause()
        self._while(40_000, node.resume)
        return True

    # The network.

    def _hosts(self) -> list[str]:
        return [*self.cluster.nodes, *self.cluster.operators]

    def _partition(self) -> bool:
        hosts = self._hosts()
        inside = self.random.sample(hosts, self.random.randint(1, len(hosts) - 1))
        self.cluster.network.isolate(inside)
        self._while(40_000, self.cluster.network.heal)
        return True

    def _isolate_leader(self) -> bool:
        """Cut off a leader that clients still reach, so that it writes entries that too few members have.
        Sometimes an election follows at once."""
        leader = self.cluster.leader
        if leader is None:
            return False
        inside = {leader}
        if len(self.cluster.members) > 3 and self.random.random() < 0.5:
            inside.add(self.random.choice(self.cluster.node_names))
        self.cluster.network.isolate(sorted(inside), self._hosts())
        self._while(15_000, self.cluster.network.heal)
        if self.random.random() < 0.5:
            self._order(Elect(self._tag()))
        return True

    def _isolate_follower(self) -> bool:
        """Cut off a follower of a leader that stays, so that they reconnect in the same epoch."""
        followers = [node.name for node in self._running() if not node.is_leading]
        if not followers:
            return False
        self.cluster.network.isolate([self.random.choice(followers)])
        self._while(40_000, self.cluster.network.heal)
        return True

    def _isolate_each_leader(self) -> bool:
        """Cut off several leaders, each as soon as it leads, so that logs diverge at several entries."""
        self._isolate_next(self.random.randint(3, 8), None, self.cluster.clock.now + 60_000)
        return True

    def _isolate_next(self, rounds: int, last: str | None, until: int) -> None:
        cluster = self.cluster
        if not rounds or self.stopped or cluster.clock.now > until:
            cluster.network.heal()
            return
        leader = cluster.leader
        if leader not in (None, last):
            cluster.network.heal()
            cluster.network.isolate([leader], self._hosts())
            self._order(Elect(self._tag()))
            rounds, last = rounds - 1, leader
        cluster.clock.after(100, self._isolate_next, rounds, last, until)

    def _cut_one_way(self) -> bool:
        one, other = self.random.sample(self._hosts(), 2)
        self.cluster.network.cut_link(one, other)
        self._while(40_000, self.cluster.network.heal)
        return True

    def _clog(self) -> bool:
        one, other = self.random.sample(self._hosts(), 2)
        self.cluster.network.clog(one, other, int(self.random.random() * 30_000))
        return True

    def _recall(self) -> bool:
        """Deliver old messages again for a time, also to restarted processes."""
        network = self.cluster.network
        network.recalled_share = self.random.choice((0.05, 0.3))
        self._while(40_000, lambda: setattr(network, "recalled_share", 0.0))
        return True

    # Disks.

    def _fill_leader(self) -> bool:
        """Stop a node for so long that its log is trimmed meanwhile."""
        leader = self.cluster.leader
        if leader is None:
            return False
        node = self.cluster.nodes[leader]
        node.fill_disk()
        self._while(300_000, node.free_disk)
        return True

    def _fill_disk(self) -> bool:
        node = self.random.choice(list(self.cluster.nodes.values()))
        if node.replica is None:
            return False
        node.fill_disk()
        self._while(40_000, node.free_disk)
        return True

    def _slow_disk(self) -> bool:
        self._slow(self.random.choice(list(self.cluster.nodes.values())))
        return True

    def _slow_leader(self) -> bool:
        """Make the disk of a leader slow, so that it commits entries that are on every disk but its own."""
        leader = self.cluster.leader
        if leader is None:
            return False
        self._slow(self.cluster.nodes[leader])
        return True

    def _slow(self, node: "SimNode") -> None:
        node.sync_delay_most = 30_000
        self._while(60_000, lambda: setattr(node, "sync_delay_most", self.swarm.sync_delay_most))

    def _fail_disk(self) -> bool:
        """Let the syncs of a node fail until its process has noticed and restarted."""
        node = self.random.choice(list(self.cluster.nodes.values()))
        if node.replica is None:
            return False
        node.disk.fail_sync = True
        return True

    def _flip(self) -> bool:
        node = self._expendable()
        return node is not None and node.flip_bits()

    def _wipe(self) -> bool:
        node = self._expendable()
        if node is None:
            return False
        node.lose_disk()
        self._while(20_000, node.start_if_down)
        return True

    def _expendable(self) -> "SimNode | None":
        node = self.random.choice(list(self.cluster.nodes.values()))
        return node if self._may_lose(node.member) else None

    def _may_lose(self, member: Member) -> bool:
        gone = self.cluster.gone | {member}
        changes = [order.change for order in self._open_changes()]
        metadata = self.cluster.store.metadata
        if metadata.change is not None:
            changes.append(metadata.change)
        if any(change.kind is ChangeKind.CONTRACT for change in changes):
            return False
        ensembles = [metadata.members]
        for change in changes:
            ensembles.append(change.applied_to(metadata.members))
            if change.new is not None:
                ensembles.append((*metadata.members, change.new))
        return all(self._stands(ensemble, gone) for ensemble in ensembles)

    @staticmethod
    def _stands(ensemble: Iterable[Member], gone: set[Member]) -> bool:
        members = set(ensemble)
        return len(members - gone) >= majority(len(members))

    def _open_changes(self) -> list[Reconfigure]:
        return [
            order
            for operator in self.cluster.operators.values()
            for order in operator.orders.values()
            if isinstance(order, Reconfigure)
        ]

    # Operators.

    def _crash_operator(self) -> bool:
        running = [each for each in self.cluster.operators.values() if each.operator is not None]
        if not running:
            return False
        self._crash(self.random.choice(running))
        return True

    def _crash(self, operator: "SimOperator") -> None:
        operator.crash()
        self._while(30_000, operator.start_if_down)

    def _pause_operator(self) -> bool:
        operator = self.random.choice(list(self.cluster.operators.values()))
        if operator.operator is None or operator.paused:
            return False
        operator.pause()
        self._while(30_000, operator.resume)
        return True

    def _cut_store(self) -> bool:
        name = self.random.choice(list(self.cluster.operators))
        self.cluster.store.cut_off.add(name)
        self._while(30_000, lambda: self.cluster.store.cut_off.discard(name))
        return True

    def _tag(self) -> int:
        return self.cluster.next_tag()

    def _order(self, order: Order) -> bool:
        return self.cluster.order(order, self.random)

    def _transfer(self) -> bool:
        return self._order(Transfer(self.random.choice(self.cluster.store.metadata.members), self._tag()))

    def _spare(self) -> Member | None:
        """A possible new member, on a node without a member in the ensemble."""
        metadata = self.cluster.store.metadata
        taken = {host_of(member) for member in metadata.members}
        if metadata.change is not None and metadata.change.new is not None:
            taken.add(host_of(metadata.change.new))
        spares = [node for node in self.cluster.nodes.values() if node.name not in taken]
        return self.random.choice(spares).member if spares else None

    def _swap(self) -> bool:
        new = self._spare()
        if new is None or self._weakened():
            return False
        old = self.random.choice(self.cluster.store.metadata.members)
        return self._order(Swap(old, new, self._tag()))

    def _expand(self) -> bool:
        new = self._spare()
        if new is None or len(self.cluster.store.metadata.members) >= MOST_MEMBERS or self._weakened():
            return False
        return self._order(Expand(new, self._tag()))

    def _contract(self) -> bool:
        members = self.cluster.store.metadata.members
        if len(members) < 2 or self._weakened():
            return False
        return self._order(Contract(self.random.choice(members), self._tag()))

    def _contract_twice(self) -> bool:
        """Let a leader commit without two of its followers, and cut it off before other members learn of the
        commit. Then order the removal of the members that have the entries, while the others receive them
        slowly."""
        leader = self.cluster.leader
        replica = self.cluster.nodes[leader].replica if leader is not None else None
        followers = [each for each in self.cluster.members if host_of(each) != leader]
        if leader is None or replica is None or len(followers) < 4 or self._weakened():
            return False
        self.random.shuffle(followers)
        for member in followers[:2]:
            self.cluster.network.cut_link(leader, host_of(member))
        until = self.cluster.clock.now + 3_000
        self._contract_when_committed(replica.member, replica.node.head.index, followers, until)
        return True

    def _contract_when_committed(
        self, leader: Member, head: int, followers: list[Member], until: int
    ) -> None:
        cluster = self.cluster
        if cluster.truth.last <= head and cluster.clock.now < until and not self.stopped:
            cluster.clock.after(20, self._contract_when_committed, leader, head, followers, until)
            return
        cluster.network.heal()
        if cluster.truth.last > head and not self.stopped:
            cluster.network.isolate([host_of(leader)])
            self._while(15_000, cluster.network.heal)
            for member in followers[:2]:
                self._slow(cluster.nodes[host_of(member)])
            for order in (
                Elect(self._tag()),
                Contract(leader, self._tag()),
                Contract(followers[2], self._tag()),
            ):
                self._order(order)

    def _weakened(self) -> bool:
        """Whether a member of the ensemble lost its disk; it is replaced before other changes."""
        return bool(self.cluster.gone & set(self.cluster.store.metadata.members))
