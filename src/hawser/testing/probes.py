"""Probes: counters of rare paths, which show whether the simulated runs reach them.

They observe from outside the messages and states of members and the metadata store; the protocol has no
probes in its code.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hawser.log.epochs import Epochs
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Event, Reason, Receive, Refuse, Report, Send
from hawser.log.protocol.messages import ChangeKind, Member, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status
from hawser.log.protocol.tables import CursorState
from hawser.log.replica import Output, Replica
from hawser.testing.checks import Watch

__all__ = ["EVERY_MARK", "Probes"]

EVERY_MARK: Final = (
    "truncation",
    "truncation in several rounds",
    "snapshot for a swap",
    "snapshot for an expansion",
    "snapshot for a follower left behind",
    "snapshot begun again",
    "change given up",
    "change given up for want of room",
    "contraction not safe yet",
    "change rolled forward",
    "contraction rolled back",
    "change dropped by an election",
    "swapped",
    "expanded",
    "contracted",
    "leader deposed",
    "leader restarted in its epoch",
    "unsynced tail lost",
    "power lost within a step",
    "power lost at the start",
    "damaged disk found",
    "halted by damage",
    "halted by a failed sync",
    "disk replaced",
    "refused for a full disk",
    "full leader went on",
    "write lost to another operator",
    "handed over",
    "retired",
    "stale acknowledgement",
    "late follower",
    "follower met by a heartbeat",
    "follower met after a change of epoch",
    "repeated batch",
    "batch of a producer that was replaced",
    "read refused",
    "read at a follower",
    "read at a node that was behind",
    "read where nobody had known of it",
    "old messages came again",
    "write refused while handing over",
    "outcome unknown",
    "committed alone",
    "epoch entered by following",
    "order not carried out",
    "queue full",
    "queue led by another one",
    "redelivered",
    "maybe redelivered",
    "settlement repeated",
    "session lost with messages",
    "lease over",
    "lent again to who asked again",
    "lent in vain",
    "dead letter",
    "dead letter of who never answered",
    "dead letter moved back",
    "letter went to another queue",
    "letter was there already",
    "no room for a letter",
    "consumer died with messages",
    "came back too late",
    "lie refused",
    "committed on one shard",
    "committed on several shards",
    "committed before everything was staged",
    "committed by the last operation",
    "committed with deliveries",
    "rolled back: a part was lost",
    "rolled back: no room",
    "rolled back: not in time",
    "operation refused",
    "outcome asked for by a rollback",
    "client died in a transaction",
    "led by another one, with open branches",
    "led by another one, with prepared branches",
    "home led by another one",
    "others told by another leader",
    "home asked by a branch",
    "branch ended by asking home",
    "decision asked for after the lane went on",
    "branch disowned by home",
    "staged batch carried forward",
    "coordinator crashed",
    "coordinator crashed with a prepared branch",
    "prepared branch recovered",
    "xid found to have been used before",
    "branch of an outsider committed",
    "decided by a person",
    "told of a decision by a person",
    "batch decided",
    "batch refused",
    "application restarted",
)


class Before(NamedTuple):
    """The state of a member before a step."""

    role: Role
    epoch: int
    commit: int
    epochs: Epochs
    head: int
    unknown: int
    pulling: Member | None


class Probes:
    """Counters by name; only names in `EVERY_MARK` are permitted."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(EVERY_MARK, 0)
        self._asked_to_truncate: dict[tuple[int, Member], m.Message] = {}
        self._received: dict[type, Callable[[Before, Replica, Any], None]] = {
            m.AddEntriesResponse: self._acknowledged,
            m.AddFollowerRequest: self._late_follower,
            m.AddEntriesRequest: self._followed,
            m.HeartbeatRequest: self._followed,
            m.HeartbeatResponse: self._beaten,
            m.ReadSnapshotResponse: self._piece,
        }

    def count(self, name: str, is_so: bool = True) -> None:
        if is_so:
            self.counts[name] += 1

    @staticmethod
    def before(replica: Replica) -> Before:
        """The state before a step, for `stepped`."""
        node = replica.node
        leading = node.leadership
        unknown = 0
        if leading is not None:
            for cursor in leading.cursors.values():
                unknown += cursor.state is CursorState.UNKNOWN
        return Before(
            node.role,
            node.promise.epoch,
            node.commit,
            node.epochs,
            node.epochs.head.index,
            unknown,
            node.pulling,
        )

    def stepped(self, before: Before, replica: Replica, event: Event, outputs: list[Output]) -> None:
        """Count the paths of a member's step."""
        node = replica.node
        if before.role is Role.LEADER and node.role is not Role.LEADER:
            self.counts["leader deposed"] += 1
        if node.epochs.head.index < before.head and node.epochs is before.epochs:
            self.counts["truncation"] += 1
        leading = node.leadership
        if leading is not None and node.commit > before.commit and len(leading.members) == 1:
            self.counts["committed alone"] += 1
        if isinstance(event, Receive):
            look = self._received.get(type(event.message))
            if look is not None:
                look(before, replica, event.message)
        for output in outputs:
            if isinstance(output, Send):
                self._sent(output)
            elif isinstance(output, Refuse):
                self._refused(replica, output)

    def _acknowledged(self, before: Before, replica: Replica, message: m.AddEntriesResponse) -> None:
        stale = (
            before.role is Role.LEADER and message.epoch < before.epoch and message.current <= before.epoch
        )
        self.count("stale acknowledgement", stale)

    def _late_follower(self, before: Before, replica: Replica, message: m.AddFollowerRequest) -> None:
        self._met("late follower", before, replica)

    def _met(self, how: str, before: Before, replica: Replica) -> None:
        leading = replica.node.leadership
        if before.unknown and leading is not None and before.unknown > self.before(replica).unknown:
            self.counts[how] += 1
            self.count("follower met after a change of epoch", leading.since < replica.node.epoch)

    def _followed(self, before: Before, replica: Replica, message: m.Message) -> None:
        entered = replica.node.promise.epoch > before.epoch > 0
        self.count("epoch entered by following", entered)

    def _beaten(self, before: Before, replica: Replica, message: m.HeartbeatResponse) -> None:
        self._met("follower met by a heartbeat", before, replica)

    def _piece(self, before: Before, replica: Replica, message: m.ReadSnapshotResponse) -> None:
        node = replica.node
        if before.pulling is not None and message.snapshot == 0 and message.epoch == node.epoch:
            self.counts["snapshot begun again"] += 1
        if node.epochs is not before.epochs and node.promise.installed != node.promise.epoch:
            self.counts["snapshot for a follower left behind"] += 1

    def _sent(self, output: Send) -> None:
        message = output.message
        if isinstance(message, m.TruncateRequest):
            key = (message.epoch, output.to)
            last = self._asked_to_truncate.get(key)
            self._asked_to_truncate[key] = message
            self.count("truncation in several rounds", last is not None and last.head > message.head)  # type: ignore[attr-defined]
        elif isinstance(message, m.CommitReconfigurationResponse):
            self.count("contraction not safe yet", not message.safe)
        elif isinstance(message, m.HandOverResponse):
            self.count("handed over", message.successor is not None)

    def _refused(self, replica: Replica, output: Refuse) -> None:
        is_read = isinstance(output.tag, tuple) and str(output.tag[0]).startswith("reader")
        self.count("read refused", is_read)
        if output.reason is Reason.FULL:
            self.counts["refused for a full disk"] += 1
        elif output.reason is Reason.UNKNOWN:
            self.counts["outcome unknown"] += 1
        elif output.reason is Reason.BUSY and replica.node.leadership is not None:
            self.count("write refused while handing over", replica.node.leadership.successor is not None)

    def started(self, replica: Replica, watch: Watch) -> None:
        """Count the paths of a process start; `watch` has the state of the last process."""
        self.count("unsynced tail lost", replica.journal.head.index < len(watch.epochs))
        self.count("leader restarted in its epoch", replica.journal.promise.led)

    def reported(self, report: Report) -> None:
        self.count("order not carried out", not report.done)

    def stored(self, old: Metadata, new: Metadata, gone: set[Member]) -> None:
        """Count the paths of a metadata write."""
        change = old.change
        if new.status is Status.ELECTION and change is not None and new.change is None:
            rolled_back = old.phase is Phase.COMMIT
            self.count("contraction rolled back" if rolled_back else "change dropped by an election")
        elif new.status is Status.STEADY and change is not None:
            self._changed(old, new, change, gone)
        elif new.phase is Phase.COMMIT and old.phase is Phase.PREPARE and change is not None:
            self.count("snapshot for a swap", change.kind is ChangeKind.SWAP)
            self.count("snapshot for an expansion", change.kind is ChangeKind.EXPAND)

    def _changed(self, old: Metadata, new: Metadata, change: m.Change, gone: set[Member]) -> None:
        done = {ChangeKind.SWAP: "swapped", ChangeKind.EXPAND: "expanded", ChangeKind.CONTRACT: "contracted"}
        if set(new.members) == set(old.members):
            self.counts["change given up"] += 1
            return
        self.counts[done[change.kind]] += 1
        self.count("change rolled forward", old.status is Status.ELECTION)
        self.count("disk replaced", change.old in gone)
