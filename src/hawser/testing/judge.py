"""The judge of a cluster: checks the sixteen statements after each step of a member.

Unlike any process of the cluster it sees all members and disks at once. It checks only the changes of a step,
which takes microseconds. The first commit of an entry defines the truth (`hawser.testing.truth`); entries
that a member commits, applies or serves later are compared with it.
"""

from bisect import bisect_left
from typing import Final

from hawser.log.entry import NO_ENTRY, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Send
from hawser.log.protocol.messages import Member, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status
from hawser.log.protocol.tables import CursorState
from hawser.log.replica import Replica
from hawser.testing import checks
from hawser.testing.checks import Violation, Watch
from hawser.testing.truth import Truth

__all__ = ["Judge"]

_ALL_BYTES: Final = 1 << 40
_SAYING: Final = (
    m.FenceResponse,
    m.TruncateResponse,
    m.SnapshotResponse,
    m.AddEntriesResponse,
    m.HeartbeatResponse,
)


class Judge:
    """Raises `Violation` at the first statement that does not hold."""

    def __init__(self, truth: Truth, metadata: Metadata) -> None:
        self.truth = truth
        self.watches: dict[Member, Watch] = {}
        self.leaders: dict[int, tuple[Member, int]] = {}
        self.known: checks.Known = {}
        self.looks = 0
        self._admitted: dict[int, set[frozenset[Member]]] = {}
        self._admit(metadata)
        # Parallel lists: commit indexes and their epochs.
        self._committed_epochs: list[int] = []
        self._committed_last: list[int] = []

    def watch(self, member: Member) -> Watch:
        """The watch of a member; that of a new member is empty."""
        watch = self.watches.get(member)
        if watch is None:
            watch = self.watches[member] = Watch(member)
        return watch

    def started(self, replica: Replica, incarnation: int, was_cutting: bool) -> None:
        """A process started for this member. It must have all entries on disk, unless the last process ended
        while it truncated or replaced its log, and committed entries in any case."""
        watch = self.watch(replica.member)
        floor = min(watch.commit, watch.synced) if was_cutting else watch.synced
        checks.disk_kept_its_word(watch, floor, replica.journal.epochs)
        watch.committed = min(watch.committed, replica.journal.head.index)
        watch.incarnation = incarnation
        watch.role = Role.NOT_MEMBER
        # The leader reports the commit index again; applied entries were committed.
        watch.commit = watch.applied = 0
        self.look(replica)

    def look(self, replica: Replica) -> None:
        """A member made a step."""
        self.looks += 1
        node, journal = replica.node, replica.journal
        watch = self.watches[replica.member]
        entered = False
        if node.promise.epoch != watch.epoch or node.role is not watch.role:
            checks.epoch_grows(watch, node.promise.epoch, journal.promise.epoch)
            entered = node.role is Role.LEADER
            watch.epoch, watch.role = node.promise.epoch, node.role
        if journal.head != watch.head:
            self._log_changed(replica, watch)
        watch.synced = journal.synced
        if entered:
            checks.one_leader(self.leaders, watch.epoch, watch.member, watch.incarnation)
            last = self._committed_before(watch.epoch)
            checks.leader_has_committed(watch.member, watch.epoch, last, journal.epochs)
        if node.commit != watch.commit or node.applied != watch.applied:
            self._indices_changed(replica, watch)
        if node.leadership is not None:
            for follower, cursor in node.leadership.cursors.items():
                if cursor.state is CursorState.ATTACHED and cursor.confirmed:
                    checks.cursor_is_true(self.watches[follower], watch, cursor.confirmed)

    def sent(self, replica: Replica, send: Send) -> None:
        """A member said something."""
        message = send.message
        checks.message_is_bounded(replica.member, message, replica.settings.limits.message_bytes)
        if isinstance(message, _SAYING) and message.head is not None:
            if isinstance(message, m.AddEntriesResponse) and message.current > message.epoch:
                return  # it tells a deposed leader so, and nothing about its log
            checks.said_is_on_disk(
                replica.member, message.head, replica.journal.synced, replica.journal.epochs, message
            )

    def stored(self, old: Metadata, new: Metadata, leader: Replica | None, gone: set[Member]) -> None:
        """The metadata was written. `leader` is its leader if that process runs; `gone` are the members
        without a disk."""
        checks.metadata_grows(old, new)
        checks.quorums_meet(new)
        last = self.truth.id_at(self.truth.last)
        if last.index:
            checks.committed_meets_voters(self.watches, new, gone, last)
        self._admit(new)
        if new.status is Status.STEADY and leader is not None and leader.node.epoch == new.epoch:
            leading = leader.node.leadership
            if leading is not None:
                checks.steady_ensemble_is_the_leaders(new, leader.member, leading.members)

    def _admit(self, metadata: Metadata) -> None:
        """The ensembles with which a leader may count majorities in this epoch."""
        admitted = self._admitted.setdefault(metadata.epoch, set())
        if metadata.status is Status.ELECTION:
            admitted.add(frozenset(metadata.final_ensemble))
        else:
            admitted.add(frozenset(metadata.members))
            if metadata.change is not None and metadata.phase is Phase.COMMIT:
                admitted.add(frozenset(metadata.change.applied_to(metadata.members)))

    def _log_changed(self, replica: Replica, watch: Watch) -> None:
        epochs, old = replica.journal.epochs, watch.epochs
        last = epochs.head.index
        kept = min(len(old), last)
        while kept and old[kept - 1] != epochs.epoch_of(kept):
            kept -= 1
        if kept < len(old):
            checks.truncation_is_harmless(watch, kept)
            del old[kept:]
        self._learn(replica, old, kept + 1, last)

    def _learn(self, replica: Replica, old: list[int], first: int, last: int) -> None:
        """Entries `first` to `last` are new to this member's log."""
        journal, member = replica.journal, replica.member
        previous_epoch = old[-1] if old else 0
        for index in range(first, min(journal.first, last + 1)):
            name = journal.epochs.id_at(index)
            checks.trimmed_entry_is_known(self.known, name, previous_epoch, member)
            previous_epoch = name.epoch
            old.append(previous_epoch)
        index = max(first, journal.first)
        while index <= last:
            for entry in journal.read(index, last, _ALL_BYTES):
                checks.log_is_dense(member, index, entry, previous_epoch, journal.epochs)
                checks.one_entry_per_name(self.known, entry, previous_epoch, member)
                previous_epoch = entry.epoch
                old.append(previous_epoch)
                index += 1

    def _indices_changed(self, replica: Replica, watch: Watch) -> None:
        node = replica.node
        checks.indices_are_ordered(watch, node.commit, node.applied, len(watch.epochs))
        if node.commit > watch.commit:
            self._committed(replica, watch)
        watch.commit = node.commit
        watch.committed = max(watch.committed, node.commit)
        if node.applied != watch.applied:
            watch.applied = node.applied
            self.truth.compare_state(watch.member, replica.machine.applied, replica.machine.hash)
            if replica.machine.applied != node.applied:
                raise Violation(8, f"{watch.member} applied {replica.machine.applied}, says {node.applied}")

    def _committed(self, replica: Replica, watch: Watch) -> None:
        leadership = replica.node.leadership
        commit = replica.node.commit
        if leadership is not None:
            entry = EntryId(watch.epochs[commit - 1], commit)
            checks.commit_has_majority(self.watches, watch, leadership.members, entry)
            checks.ensemble_is_admitted(self._admitted, watch.member, watch.epoch, leadership.members)
        for index in range(watch.commit + 1, commit + 1):
            epoch = watch.epochs[index - 1]
            if index > self.truth.last:
                self.truth.extend(self.known[epoch, index][1])
                self._note_committed(index, watch.epoch)
            elif self.truth.epochs[index - 1] != epoch:
                raise Violation(
                    10, f"{watch.member} committed {epoch}:{index}, before it was {self.truth.id_at(index)}"
                )

    def _note_committed(self, index: int, epoch: int) -> None:
        if self._committed_epochs and self._committed_epochs[-1] >= epoch:
            self._committed_last[-1] = index
        else:
            self._committed_epochs.append(epoch)
            self._committed_last.append(index)

    def _committed_before(self, epoch: int) -> EntryId:
        """The last entry that was committed in an earlier epoch."""
        place = bisect_left(self._committed_epochs, epoch)
        return self.truth.id_at(self._committed_last[place - 1]) if place else NO_ENTRY
