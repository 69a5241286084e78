"""The process of a node in a simulated cluster, and the disk under it.

A process runs one member: the node together with its disk of the day. A process that is killed leaves behind
what it wrote; if the power goes, what was not synced is lost, kept or torn. A disk that is wiped or found to be
damaged is replaced by an empty one with a new number, which is another member.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from hawser.log.journal.failures import Damaged, NotFormatted
from hawser.log.journal.journal import Sync
from hawser.log.protocol import messages as m
from hawser.log.protocol.doors import Event, Halt, Propose, Read, Receive, Refuse, Send, Serve, Tick
from hawser.log.protocol.messages import Member, Message
from hawser.log.replica import Done, Output, Replica, Retired
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.testing.checks import Violation, repeat_changes_nothing
from hawser.testing.clients import Failure, Reply, Request, View
from hawser.testing.fuse import FusedDisk, PowerLost

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["SimNode"]

TICK: Final = 2_000
SHARD: Final = "shard"
_PIECE: Final = 1 << 20

# What an operator asks; a repeat gets the same answer at once.
_ANSWERED_AT_ONCE: Final = (
    m.FenceRequest,
    m.BecomeLeaderRequest,
    m.AddFollowerRequest,
    m.PrepareReconfigurationRequest,
    m.CommitReconfigurationRequest,
    m.AbortReconfigurationRequest,
    m.StatusRequest,
)
# A process may cut or replace its log on these; what it had on disk need not outlive that.
_CUTTING: Final = (m.TruncateRequest, m.ReadSnapshotResponse, m.RetireRequest)


class SimNode:
    """A host with a disk, on which a process runs, or not."""

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random
        self.incarnation = 0
        self.disk_number = 1
        self.disk = FusedDisk()
        self.replica: Replica | None = None
        self.paused = False
        self.sync_delay_most = cluster.swarm.sync_delay_most
        self._formatted = False
        self._most_values: dict[object, int] = {}
        # What the process was doing when the power went.
        self._interrupted: Event | None = None
        cluster.network.attach(name, self._receive)

    @property
    def member(self) -> Member:
        """The node with its disk of the day."""
        return f"{self.name}.d{self.disk_number}"

    def describe(self) -> str:
        """Role, epoch, and how far the log, the commit index and the state machine are."""
        if self.replica is None:
            return f"{self.member} down"
        node = self.replica.node
        mark = "!" if self.replica.halted else "~" if self.paused else " "
        return f"{mark}{node.role.upper()[:2]}{node.epoch} {node.head} {node.synced} {node.commit} {node.applied}"

    # Life and death.

    def start_if_down(self) -> None:
        if self.replica is None:
            self.start()

    def start(self) -> None:
        """Run a process on what the last one left; a disk that is no good is replaced first."""
        assert self.replica is None
        self.incarnation += 1
        self.paused = False
        self.disk.mend_fuse()
        if not self._formatted:
            self._format()
        try:
            self.replica = Replica.open(self.disk, self.incarnation, self.cluster.settings)
        except (Damaged, NotFormatted) as damage:
            self.cluster.marks.count("damaged disk found")
            self.cluster.note(f"{self.member}: {damage}")
            if self.member not in self.cluster.gone:
                raise Violation(12, f"{self.member} is damaged, and nobody damaged it: {damage}") from damage
            self.new_disk()
            self._format()
            self.replica = Replica.open(self.disk, self.incarnation, self.cluster.settings)
        self._started(self.replica)

    def _format(self) -> None:
        Replica.create(self.disk, SHARD, self.member, self.incarnation, self.cluster.settings)
        self._formatted = True

    def _started(self, replica: Replica) -> None:
        interrupted, self._interrupted = self._interrupted, None
        cutting = isinstance(interrupted, Receive) and isinstance(interrupted.message, _CUTTING)
        self.cluster.marks.started(replica, self.cluster.judge.watch(replica.member))
        self.cluster.judge.started(replica, self.incarnation, cutting)
        self.cluster.note(f"{self.name} started")
        self.cluster.clock.after(self.cluster.drift(TICK), self._tick, self.incarnation)

    def stop(self, power_loss: bool) -> None:
        """The process ends; without power, the disk is left with what it made of the unsynced writes."""
        self.replica = None
        self.paused = False
        self._most_values.clear()
        self.cluster.network.forget(self.name)
        if power_loss:
            self.disk.crash(self.random)
        self.cluster.note(f"{self.name} stopped")

    def pause(self) -> None:
        """The process stands still until it is resumed or killed."""
        self.paused = True
        self.cluster.network.pause(self.name)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.cluster.network.resume(self.name)

    # The disk.

    def new_disk(self) -> None:
        """An empty disk in place of the one there was, which is lost."""
        self.cluster.gone.add(self.member)
        self.disk_number += 1
        self.disk = FusedDisk()
        self._formatted = False

    def lose_disk(self) -> None:
        """The process ends, and its disk with it."""
        self.stop(power_loss=True)
        self.new_disk()
