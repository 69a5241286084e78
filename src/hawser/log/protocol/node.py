"""A node's member of a shard: it follows a leader, and leads when the operator tells it to.

`tables.py` has its roles and their transitions.

Invariants:
- The epoch never goes back. The node ignores lower epochs, and stores an epoch before it answers in it.
- A member that led in an epoch never becomes leader in it again: its unsynced entries are gone, and another
  entry must not get the same name.
- An acknowledged entry is on the local disk, under the epoch that the answer echoes.
- The log is cut only at a head that the leader asked about, never at or below the commit index.
- The commit index never goes back and never passes the index up to which the log matches the leader's.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from hawser.log.entry import NO_ENTRY, NOTHING_PAYLOAD_BYTES, Entry, EntryId, Kind
from hawser.log.epochs import Epochs
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Abandoned,
    Append,
    Apply,
    Effect,
    Event,
    Halt,
    Installed,
    Persist,
    Promise,
    Propose,
    Pull,
    Read,
    Reason,
    Receive,
    Refuse,
    Retire,
    Send,
    Synced,
    Tick,
    Truncate,
)
from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.messages import Member, Role
from hawser.log.protocol.tables import ROLES

__all__ = ["Limits", "Node", "Source", "asks_to_retire"]


class Source(Protocol):
    """The log on disk, with the entries that earlier steps appended."""

    @property
    def first(self) -> int:
        """The first index that is kept."""

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Entries `first` to `last`, as many as fit in `max_bytes`, at least one."""


_RETIRED: Final = "retired"


class Limits(msgspec.Struct, frozen=True):
    """Limits of requests and entries in flight."""

    # The most entries and bytes in flight to a follower, plus or minus a message.
    window: int = 1024
    window_bytes: int = 8 << 20
    # The most bytes in one message to a follower.
    message_bytes: int = 1 << 20
    # The most uncommitted entries; a leader without a majority takes no more.
    uncommitted: int = 16384
    # The most reads that wait for a majority.
    reads: int = 16384
    # Ticks between heartbeats to an idle follower.
    idle_ticks: int = 20
    # After this many ticks without a repeated request to hand over, a leader takes writes again.
    hand_over_ticks: int = 20


class _Broken(Exception):
    """An invariant does not hold; the member halts."""


class Node:
    """One member of one shard, driven by `step` alone."""

    def __init__(
        self,
        member: Member,
        incarnation: int,
        promise: Promise,
        epochs: Epochs,
        applied: int,
        source: Source,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        assert applied <= epochs.head.index
        self.member: Final = member
        self.incarnation: Final = incarnation
        self.source: Final = source
        self.limits: Final = limits
        self.promise = promise
        self.epochs = epochs
        self.role = Role.FENCED if promise.epoch else Role.NOT_MEMBER
        self.synced = epochs.head.index
        self.commit = applied
        self.applied = applied
        self.halted: str | None = None
        self.leadership: Leadership | None = None
        # Up to this index the log is known to match that of this epoch's leader.
        self.matched = 0
        self._leader: Member | None = None
        self._owes_ack = False
        self._fenced_by: set[str] = set()
        self._pulling: tuple[Member, str | None] | None = None
        # The bytes pulled of the snapshot in progress, updated by the caller.
        self.pulled = 0
        # The entries that earlier steps appended; only these can be read from the source.
        self.readable = self.synced
        self.effects: list[Effect] = []
        self._answers: list[Effect] = []
        self._events: dict[type, Callable[[Any], None]] = {
            Receive: self._receive,
            Synced: self._synced,
            Propose: self._propose,
            Read: self._read,
            Tick: self._tick,
            Installed: self._installed,
            Abandoned: self._abandoned,
        }
        self._messages: dict[type, Callable[[str, Any], None]] = {
            m.FenceRequest: self._fence,
            m.BecomeLeaderRequest: self._become_leader,
            m.TruncateRequest: self._truncate,
            m.SnapshotNeeded: self._snapshot_needed,
            m.AddEntriesRequest: self._add_entries,
            m.HeartbeatRequest: self._heartbeat,
            m.SnapshotRequest: self._snapshot,
            m.RetireRequest: self._retire,
            m.StatusRequest: self._status,
        }

    @property
    def epoch(self) -> int:
        return self.promise.epoch

    @property
    def head(self) -> EntryId:
        return self.epochs.head

    @property
    def pulling(self) -> Member | None:
        """The leader from which a snapshot is being pulled."""
        return self._pulling[0] if self._pulling else None

    @property
    def restless(self) -> bool:
        """Whether a tick has more to do than heartbeats."""
        return self._pulling is not None or (self.leadership is not None and self.leadership.restless)

    def step(self, event: Event) -> list[Effect]:
        """The effects of `event`, in order. A halted member can only be retired, once."""
        if self.halted and (self.halted == _RETIRED or not asks_to_retire(event)):
            return []
        self.effects, self._answers = [], []
        self.readable = self.epochs.head.index
        try:
            self._events[type(event)](event)
        except _Broken as broken:
            self.halted = str(broken)
            return [Halt(self.halted)]
        return self.effects + self._answers if self._answers else self.effects

    def abandon(self) -> list[Effect]:
        """Answer all waiting requests and stop."""
        self.effects, self._answers = [], []
        self.step_down()
        return self._answers

    def _receive(self, event: Receive) -> None:
        handler = self._messages.get(type(event.message))
        if handler is not None:
            handler(event.sender, event.message)
        elif self.leadership is not None:
            self.leadership.receive(event.sender, event.message)

    # Used by the handlers here and in `leader.py`.

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def answer(self, effect: Effect) -> None:
        """Answer a client at the end of the step."""
        self._answers.append(effect)

    def send(self, to: str, message: m.Message) -> None:
        self.effects.append(Send(to, message))

    def save_promise(self, promise: Promise) -> None:
        """Store the promise before any other effect."""
        assert promise.epoch > self.promise.epoch or (
            promise.epoch == self.promise.epoch and promise.led >= self.promise.led
        )
        self.promise = promise
        self.emit(Persist(promise))

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Append entries; acknowledgements wait for the sync."""
        self.epochs.extend(entries)
        self.emit(Append(entries))

    def commit_through(self, index: int) -> None:
        """Move the commit index to `index`."""
        self.commit = max(self.commit, index)
        self._apply()

    def step_down(self) -> None:
        """End the leadership and answer waiting requests."""
        if self.leadership is not None:
            leadership, self.leadership = self.leadership, None
            self._become(Role.FENCED)
            leadership.end()

    def _become(self, role: Role) -> None:
        assert role is self.role or role in ROLES[self.role], (self.role, role)
        self.role = role

    def _apply(self) -> None:
        through = min(self.commit, self.synced)
        if through > self.applied:
            self.applied = through
            self.emit(Apply(through))
            if self.leadership is not None:
                self.leadership.applied()

    def _enter(self, epoch: int) -> None:
        """Enter a higher epoch: the member becomes fenced in any role."""
        assert epoch > self.epoch
        self.step_down()
        if self._pulling:
            self._pulling = None
            self.emit(Pull(None, self.promise))
        self.save_promise(Promise(epoch, False, self.promise.installed))
        self._become(Role.FENCED)
        self.matched = 0
        self._leader = None
        self._owes_ack = False
        self._fenced_by.clear()

    def _follow(self, epoch: int) -> bool:
        """Whether to obey the leader of `epoch`; enters a higher epoch."""
        if epoch > self.epoch:
            self._enter(epoch)
        return epoch == self.epoch and self.leadership is None and not self.promise.led

    # The log reaches the disk.

    def _synced(self, event: Synced) -> None:
        assert event.index <= self.epochs.head.index
        self.synced = max(self.synced, event.index)
        if self.leadership is not None:
            self.leadership.advance()
        elif self._owes_ack:
            self._acknowledge()
        self._apply()
        if self._fenced_by and self.synced == self.head.index:
            for operator in sorted(self._fenced_by):
                self.send(operator, m.FenceResponse(self.epoch, self.head))
            self._fenced_by.clear()

    def _acknowledge(self) -> None:
        """Acknowledge the part of the leader's log that is on this disk."""
        assert self._leader is not None
        through = min(self.synced, self.matched)
        self._owes_ack = through < self.matched
        head = self.epochs.id_at(through)
        self.send(self._leader, m.AddEntriesResponse(self.epoch, head, True, self.epoch))

    # Elections.

    def _fence(self, sender: str, message: m.FenceRequest) -> None:
        if message.epoch < self.epoch:
            return
        if message.epoch > self.epoch:
            self._enter(message.epoch)
        elif self.promise.led:
            return
        if self.synced == self.head.index:
            self.send(sender, m.FenceResponse(self.epoch, self.head))
        else:
            self._fenced_by.add(sender)

    def _become_leader(self, sender: str, message: m.BecomeLeaderRequest) -> None:
        if message.epoch != self.epoch:
            return
        if self.leadership is not None and self.leadership.since == message.epoch:
            self.send(sender, m.BecomeLeaderResponse(self.epoch))
        elif self.role is Role.FENCED and not self.promise.led and self.member in message.members:
            self.save_promise(Promise(self.epoch, True, self.promise.installed))
            self._become(Role.LEADER)
            self.leadership = Leadership(self, message.members)
            self.leadership.begin(message.followers)
            self.send(sender, m.BecomeLeaderResponse(self.epoch))

    def _propose(self, event: Propose) -> None:
        if self.leadership is not None:
            self.leadership.propose(event.commands)
        else:
            for command in event.commands:
                self.answer(Refuse(command.tag, Reason.NOT_LEADER))

    def _read(self, event: Read) -> None:
        if self.leadership is not None:
            self.leadership.read(event.tag)
        else:
            self.answer(Refuse(event.tag, Reason.NOT_LEADER))

    def _tick(self, _: Tick) -> None:
        if self.leadership is not None:
            self.leadership.tick()

    # Following.

    def _truncate(self, sender: str, message: m.TruncateRequest) -> None:
        if not self._follow(message.epoch):
            return
        if self.head == message.head and message.target < self.head:
            self._cut(message.target)
        if self.synced == self.head.index:
            self.send(sender, m.TruncateResponse(self.epoch, self.head))

    def _cut(self, target: EntryId) -> None:
        """Drop the entries above `target`, which need not be in this log."""
        index = min(target.index, self.epochs.highest_up_to(target.epoch).index)
        if index < self.commit:
            raise _Broken(f"told to cut the log to {index}, but {self.commit} is committed")
        self.epochs.cut(index)
        self.synced = min(self.synced, index)
        self.emit(Truncate(self.head))

    def _add_entries(self, sender: str, message: m.AddEntriesRequest) -> None:
        if not self._follow(message.epoch):
            if message.epoch < self.epoch:
                self.send(sender, m.AddEntriesResponse(message.epoch, NO_ENTRY, False, self.epoch))
            return
        previous = message.previous
        if not _in_order(message):
            return
        if self._pulling or previous not in self.epochs:
            if self.synced == self.head.index and not self._pulling:
                self.send(sender, m.AddEntriesResponse(self.epoch, self.head, False, self.epoch))
            return
        self._become(Role.FOLLOWER)
        self._leader = sender
        new = message.entries
        if new:
            known = self.head.index - previous.index
            if known:
                self._check_known(new[:known])
                new = new[known:]
            if new:
                self.append(new)
        self.matched = max(self.matched, previous.index + len(message.entries))
        self._owes_ack = True
        if self.synced >= self.matched:
            self._acknowledge()
        self.commit_through(min(message.commit, self.matched))

    def _check_known(self, entries: tuple[Entry, ...]) -> None:
        """Check that a repeated entry is the one in this log: the leader attaches only where the logs
        agree."""
        for entry in entries:
            if self.epochs.epoch_of(entry.index) != entry.epoch:
                raise _Broken(f"the leader sent {entry.id} where this log has another entry")

    def _heartbeat(self, sender: str, message: m.HeartbeatRequest) -> None:
        if self._follow(message.epoch):
            head = self.head if self.synced == self.head.index and not self._pulling else None
            self.commit_through(min(message.commit, self.matched))
            self.send(sender, m.HeartbeatResponse(self.epoch, message.number, head, self.commit, self.epoch))
        elif message.epoch < self.epoch:
            self.send(sender, m.HeartbeatResponse(message.epoch, message.number, None, 0, self.epoch))

    # Snapshots.

    def _snapshot_needed(self, sender: str, message: m.SnapshotNeeded) -> None:
        """Pull a snapshot: the leader has removed the next entry."""
        if not self._follow(message.epoch) or self._pulling or self.synced != self.head.index:
            return
        if self.head == message.head:
            self._pull(sender, None, self.promise, self.head.index)
        else:
            self.send(sender, m.TruncateResponse(self.epoch, self.head))

    def _snapshot(self, sender: str, message: m.SnapshotRequest) -> None:
        """Pull a snapshot to become a member, for an operator."""
        if message.epoch < self.epoch or (self.promise.led and message.epoch == self.epoch):
            return
        if message.epoch > self.epoch:
            self._enter(message.epoch)
        if self.promise.installed == self.epoch:
            if self.synced == self.head.index:
                self.send(sender, m.SnapshotResponse(self.epoch, self.head))
        elif self._pulling is None:
            self._pull(message.leader, sender, Promise(self.epoch, False, self.epoch), self.commit - 1)

    def _pull(self, leader: Member, operator: str | None, promise: Promise, above: int) -> None:
        self._pulling = (leader, operator)
        self.pulled = 0
        self.emit(Pull(leader, promise, above))

    def _abandoned(self, _: Abandoned) -> None:
        self._pulling = None

    def _installed(self, event: Installed) -> None:
        assert self._pulling is not None and event.promise.epoch == self.epoch
        leader, operator = self._pulling
        self._pulling = None
        if event.epochs.head.index < self.commit:
            raise _Broken(f"a snapshot ends at {event.epochs.head}, but {self.commit} is committed")
        self.promise = event.promise
        self.epochs = event.epochs
        self.matched = self.synced = self.readable = self.commit = self.applied = self.head.index
        if operator is not None:
            self.send(operator, m.SnapshotResponse(self.epoch, self.head))
        else:
            self.send(leader, m.TruncateResponse(self.epoch, self.head))

    # Care.

    def _retire(self, sender: str, message: m.RetireRequest) -> None:
        if message.epoch < self.epoch or (self.leadership is not None and message.epoch == self.epoch):
            return
        self.step_down()
        self.halted = _RETIRED
        self.emit(Retire())
        self.send(sender, m.RetireResponse(message.epoch))

    def _status(self, sender: str, _: m.StatusRequest) -> None:
        self.send(sender, self.status())

    def status(self) -> m.StatusResponse:
        """The status of this member."""
        leading = self.leadership
        return m.StatusResponse(
            self.epoch,
            self.incarnation,
            self.role,
            self.promise.led,
            leading is not None and leading.successor is not None,
            self.head,
            self.commit,
            self.applied,
            self.pulled,
            leading.reading if leading else 0,
            leading.members if leading else (),
            leading.change if leading else None,
            leading.lag() if leading else {},
        )

    def nothing(self) -> Entry:
        """The entry that a leader writes when each epoch begins; its commit also commits all earlier entries.
        The incarnation tells this term from one of the same epoch in a log that was restored since."""
        payload = self.incarnation.to_bytes(NOTHING_PAYLOAD_BYTES, "little")
        return Entry.make(self.epoch, self.head.index + 1, Kind.NOTHING, payload)


def asks_to_retire(event: Event) -> bool:
    """Whether the event tells the member to retire, which even a halted member obeys."""
    return isinstance(event, Receive) and isinstance(event.message, m.RetireRequest)


def _in_order(message: m.AddEntriesRequest) -> bool:
    """Whether the entries can follow `previous`; a correct leader sends no others."""
    epoch, index = message.previous
    for entry in message.entries:
        if entry.index != index + 1 or not epoch <= entry.epoch <= message.epoch:
            return False
        epoch, index = entry.epoch, entry.index
    return True
