"""A simulated cluster in one thread, from one seed: nodes with disks, operators, a metadata store, a network.

    cluster = Cluster(seed=7)
    cluster.publish(b"hello")
    cluster.crash(cluster.leader)
    cluster.run_until(lambda: cluster.leader is not None)
    assert cluster.read().values == (b"hello",)

Events happen only in `run*` and in methods that wait. After each event the statements of
`hawser.testing.checks` are checked; the first that does not hold raises `Violation`. The same seed and the
same calls give the identical run.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.protocol.events import Contract, Elect, Expand, Order, Reconfigure, Report, Swap, Transfer
from hawser.log.protocol.messages import Member, Role
from hawser.log.protocol.metadata import Metadata, Status
from hawser.log.replica import Replica
from hawser.log.state.results import Place
from hawser.testing.clients import Client, View
from hawser.testing.clock import SimClock
from hawser.testing.elsewhere import Elsewhere
from hawser.testing.judge import Judge
from hawser.testing.network import SimNetwork, host_of
from hawser.testing.node import SimNode
from hawser.testing.operators import SimOperator
from hawser.testing.probes import Probes
from hawser.testing.store import SimStore
from hawser.testing.swarm import Swarm
from hawser.testing.truth import Truth, shard_parts
from hawser.testing.workload import Hand

if TYPE_CHECKING:
    from hawser.testing.transaction_ring import Ring

__all__ = ["FIRST_SHARD", "Cluster", "Stuck"]

FIRST_SHARD: Final = "ring-0"
_MENDING_INTERVAL: Final = 10_000
_MOST_EVENTS: Final = 100_000


class Stuck(AssertionError):
    """A condition did not hold within the number of events; the text describes the cluster."""


class Cluster:
    """One shard on `nodes` nodes named n1, n2, ...; the first `members` of them are its first ensemble."""

    def __init__(
        self,
        seed: int = 0,
        nodes: int = 3,
        *,
        members: int | None = None,
        operators: int = 1,
        swarm: Swarm | None = None,
        trace: Callable[[str], None] | None = None,
        shard: str = FIRST_SHARD,
        beside: "Cluster | None" = None,
    ) -> None:
        """Create the cluster alone, or as another shard beside one, with the same clock and transactions."""
        self.seed = seed
        self.shard = shard
        self.swarm = swarm or Swarm()
        self.trace = trace
        self.clock: SimClock = beside.clock if beside is not None else SimClock()
        self.ring: Ring | None = None
        self.random = self.stream("cluster")
        self.network: SimNetwork = SimNetwork(
            self.clock, self.stream("network"), encoded_share=self.swarm.encoded_share
        )
        self.probes = Probes()
        self.truth: Truth = Truth(shard, beside.truth.transactions.book if beside is not None else None)
        self.gone: set[Member] = set()
        self.clients: list[Client] = []
        self.reports: dict[object, Report] = {}
        self.settings = msgspec.structs.replace(self.swarm.settings(), parts=shard_parts)
        self._tags = 0
        self.node_names = _names("n", nodes)
        self.nodes = {
            name: SimNode(self, name, self.stream(name), self.swarm.spare_room_bytes if is_spare else None)
            for name, is_spare in zip(self.node_names, self._are_spare(members or nodes), strict=True)
        }
        first = tuple(node.member for node in list(self.nodes.values())[: members or nodes])
        metadata = Metadata.initial(first)
        self.store: SimStore = SimStore(self.clock, self.stream("store"), metadata)
        self.store.observers.append(self._stored)
        self.judge = Judge(self.truth, metadata)
        self.operators = {
            name: SimOperator(self, name, self.swarm.patience + 2 * number)
            for number, name in enumerate(_names("o", operators))
        }
        self.elsewhere = Elsewhere(self) if self.swarm.forwards else None
        if self.elsewhere is not None:
            self.truth.queue.elsewhere = self.elsewhere.values
        self._hand = Hand(self, "hand", self.stream("hand"))
        for node in self.nodes.values():
            node.start()
        for operator in self.operators.values():
            operator.start()
        self.clock.after(_MENDING_INTERVAL, self._mend)

    def _are_spare(self, members: int) -> list[bool]:
        return [number >= members for number in range(len(self.node_names))]

    def stream(self, name: str) -> Random:
        """A random generator for one part of the cluster, independent of other parts."""
        return Random(
            f"{self.seed}/{name}" if self.shard == FIRST_SHARD else f"{self.seed}/{self.shard}/{name}"
        )

    # Running.

    def run(self, events: int) -> None:
        """Run this many events."""
        step = self.clock.step
        for _ in range(events):
            step()

    def run_for(self, duration: int) -> None:
        """Run for this many microseconds."""
        until = self.clock.now + duration
        while self.clock.next_time <= until:
            self.clock.step()

    def run_until(
        self, condition: Callable[[], bool], most_events: int = _MOST_EVENTS, what: str = "the condition"
    ) -> None:
        """Run until `condition()` holds; `Stuck` after `most_events` events."""
        for _ in range(most_events):
            if condition():
                return
            self.clock.step()
        raise Stuck(f"{what} did not come within {most_events} events\n{self.describe()}")

    # Using it.

    @property
    def leader(self) -> str | None:
        """The running node that leads in the newest epoch; None if there is none."""
        leading = [
            (node.replica.node.epoch, name)
            for name, node in self.nodes.items()
            if node.replica is not None and node.replica.node.role is Role.LEADER
        ]
        epoch, name = max(leading, default=(-1, None))
        return name if epoch == self.store.metadata.epoch else None

    @property
    def members(self) -> tuple[Member, ...]:
        """The ensemble in the metadata."""
        return self.store.metadata.members

    def publish(self, *values: bytes, most_events: int = _MOST_EVENTS) -> Place:
        """Publish one batch, wait for its acknowledgement, and return the place of its records. `Stuck` if
        that takes more events; the request may still succeed."""
        return self._hand.publish(values, most_events)

    def read(self) -> View:
        """Read the newest state, linearizably; the values are all untrimmed records."""
        return self._hand.read()

    def trim(self, offset: int) -> int:
        """Trim every record before `offset`, and return the new first offset."""
        return self._hand.trim(offset)

    # Faults.

    def crash(self, name: str, *, power_loss: bool = True) -> None:
        """End the node's process; in a power failure unsynced operations are lost, kept or torn."""
        self.nodes[name].stop(power_loss)

    def restart(self, name: str) -> None:
        """Start the node's process again."""
        self.nodes[name].start_if_down()

    def wipe(self, name: str) -> None:
        """Replace the node's disk with an empty one. The operators later add the node as a new member."""
        self.nodes[name].lose_disk()
        self.nodes[name].start_if_down()

    def pause(self, name: str) -> None:
        """Pause the process, as SIGSTOP does."""
        self.nodes[name].pause()

    def resume(self, name: str) -> None:
        self.nodes[name].resume()

    def partition(self, hosts: Iterable[str]) -> None:
        """Cut the links between these nodes and operators and all others."""
        self.network.isolate(hosts)

    def heal(self) -> None:
        """End every partition."""
        self.network.heal()

    # Orders to the operators.

    def elect(self) -> Report:
        return self._wait_for(Elect(self.next_tag()))

    def transfer(self, to: str) -> Report:
        """Transfer leadership to this node."""
        return self._wait_for(Transfer(self.nodes[to].member, self.next_tag()))

    def swap(self, old: Member, new: str) -> Report:
        """Replace a member by a node that is not a member."""
        return self._wait_for(Swap(old, self.nodes[new].member, self.next_tag()))

    def expand(self, new: str) -> Report:
        return self._wait_for(Expand(self.nodes[new].member, self.next_tag()))

    def contract(self, old: Member) -> Report:
        return self._wait_for(Contract(old, self.next_tag()))

    def order(self, order: Order, random: Random) -> bool:
        """Give an order to a running operator; False if none runs."""
        running = [each for each in self.operators.values() if each.operator is not None and not each.paused]
        if not running:
            return False
        random.choice(running).take(order)
        return True

    def _wait_for(self, order: Order) -> Report:
        self.run_until(lambda: self.order(order, self.random), what="an operator")
        self.run_until(lambda: order.tag in self.reports, what=f"the report on {order}")
        return self.reports.pop(order.tag)

    # For the parts of the cluster.

    def next_tag(self) -> int:
        self._tags += 1
        return self._tags

    def drift(self, duration: int) -> int:
        """A duration as measured by a slightly slow or fast clock."""
        return int(duration * (0.9 + 0.2 * self.random.random()))

    def note(self, text: str) -> None:
        """Add a line to the trace; frequent callers check `trace` first."""
        if self.trace is not None:
            columns = " ".join(f"{node.describe():<26}" for node in self.nodes.values())
            self.trace(f"{self.clock.now:>9} {columns} {text}")

    def reported(self, report: Report) -> None:
        """Note the result of an order."""
        self.reports[report.tag] = report
        self.probes.reported(report)
        self.note(f"order {report.tag}: {'done' if report.done else 'not done'}, {report.text}")

    def replica_of(self, member: Member | None) -> Replica | None:
        """The process of a member; None if it does not run."""
        node = self.nodes.get(host_of(member)) if member else None
        return node.replica if node is not None and node.member == member else None

    def _stored(self, old: Metadata, new: Metadata, writer: str) -> None:
        self.judge.stored(old, new, self.replica_of(new.leader), self.gone)
        self.probes.stored(old, new, self.gone)
        self.probes.count("change given up for want of room", self._had_no_room(old, new))
        self.note(f"{writer} stored {new}")

    def _had_no_room(self, old: Metadata, new: Metadata) -> bool:
        """Whether a change ended without its new member because that member's disk is full."""
        wanted = old.change.new if old.change is not None else None
        if wanted is None or new.status is not Status.STEADY or wanted in new.members:
            return False
        node = self.nodes[host_of(wanted)]
        return node.member == wanted and node.disk.refusals > 0

    def _mend(self) -> None:
        """Replace the members whose disks are gone, as the placement does."""
        self.clock.after(_MENDING_INTERVAL, self._mend)
        metadata = self.store.metadata
        if metadata.status is not Status.STEADY:
            return
        asked = {
            order.change.old
            for operator in self.operators.values()
            for order in operator.orders.values()
            if isinstance(order, Reconfigure)
        }
        for member in metadata.members:
            node = self.nodes[host_of(member)]
            is_back = node.replica is not None and node.member not in self.gone
            if member in self.gone and member not in asked and is_back:
                self.order(Swap(member, node.member, self.next_tag()), self.random)

    # Inspection.

    def unsettled(self) -> str:
        """The reason why the cluster is not settled, with all requests done and all members equal; empty if
        it is."""
        metadata = self.store.metadata
        if metadata.status is not Status.STEADY:
            return f"the shard is not steady: {metadata}"
        waiting = [client.name for client in self.clients if not client.idle]
        if waiting:
            return f"clients still wait: {', '.join(waiting)}"
        gone = self.gone & set(metadata.members)
        if gone:
            return f"members without a disk are still in the ensemble: {', '.join(sorted(gone))}"
        if metadata.removed:
            return f"removed members are not retired: {', '.join(metadata.removed)}"
        return self._left_over(metadata.members) or self._differences(metadata.members)

    def _left_over(self, members: Sequence[Member]) -> str:
        """Activity or data of a node that should have ended."""
        for node in self.nodes.values():
            if node.unanswered:
                return f"{node.member} has not answered {node.unanswered}"
            replica = node.replica
            if replica is None or node.member in members:
                continue
            if replica.node.pulling is not None:
                return f"{node.member} is no member and pulls a snapshot from {replica.node.pulling}"
            if replica.journal.head.index:
                return f"{node.member} is no member and holds entries up to {replica.journal.head}"
        return ""

    def _differences(self, members: Sequence[Member]) -> str:
        states = {}
        for member in members:
            replica = self.replica_of(member)
            if replica is None:
                return f"{member} does not run"
            node = replica.node
            state = (node.epoch, node.head, node.commit, node.applied, replica.machine.hash)
            states[member] = state
            if node.head.index != node.commit or node.commit != node.applied:
                return (
                    f"{member} is not through: head {node.head}, commit {node.commit}, applied {node.applied}"
                )
        if len(set(states.values())) > 1:
            return f"members differ: {states}"
        return ""

    def compare(self) -> None:
        """Compare the records and the observable state of each member with the truth, once the cluster is
        settled."""
        for member in self.members:
            replica = self.replica_of(member)
            assert replica is not None, f"{member} does not run; settle first"
            self.truth.compare_whole(member, replica.machine, self.nodes[host_of(member)].view())
            self.truth.queue.compare(replica)

    def describe(self) -> str:
        """The state of the whole cluster, for diagnosis."""
        lines = [f"time {self.clock.now}, {self.clock.events} events", f"metadata {self.store.metadata}"]
        lines += [f"{node.member}: {node.describe()}" for node in self.nodes.values()]
        lines += [
            f"{name}: {each.operator.activity if each.operator else 'down'}, {list(each.orders.values())}"
            for name, each in self.operators.items()
        ]
        lines += [f"{client.name}: {client.describe()}" for client in self.clients]
        return "\n".join(lines)


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(1, count + 1)]
