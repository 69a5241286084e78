"""The leader's part of a node: replication, commit, reads, reconfigurations.

The leader keeps a cursor for each follower: the position in the log that it knows of it. `tables.py` has the
states of a cursor. Only attached followers count for a commit, up to the index that they have confirmed.

An entry is committed when it belongs to the current epoch and is on the disks of a majority of the members,
the leader included. Entries of earlier epochs are committed by later entries; so that this happens at once, a
leader writes an entry of its own when its epoch begins.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hawser.log.entry import Entry, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Answer, Command, Promise, Reason, Refuse, Serve, Tag
from hawser.log.protocol.messages import Change, ChangeKind, Member
from hawser.log.protocol.metadata import majority
from hawser.log.protocol.tables import CURSORS, CursorState

if TYPE_CHECKING:
    from hawser.log.protocol.node import Node

__all__ = ["Cursor", "Leadership"]

# The most ticks between two attempts to reach a silent follower.
_MOST_PATIENCE = 32


class Cursor:
    """The position of a follower. `head` is the head it was last asked about."""

    __slots__ = (
        *("beaten", "confirmed", "flight", "flight_bytes", "head", "informed", "patience", "probing"),
        *("pushed", "quiet", "rested", "state"),
    )

    def __init__(self) -> None:
        self.state = CursorState.UNKNOWN
        self.head = EntryId(0, 0)
        self.pushed = 0
        self.confirmed = 0
        # (last index, bytes) of each message in flight.
        self.flight: deque[tuple[int, int]] = deque()
        self.flight_bytes = 0
        # The index from which a single probing message is sent; None in normal operation.
        self.probing: int | None = None
        # Ticks without an acknowledgement, and the number after which everything is sent again.
        self.quiet = 0
        self.patience = 0
        self.beaten = 0
        # The commit index it last reported, and the ticks for which it has had everything.
        self.informed = 0
        self.rested = 0

    def become(self, state: CursorState) -> None:
        assert state is self.state or state in CURSORS[self.state], (self.state, state)
        self.state = state

    def sent(self, last: int, size: int) -> None:
        """Note a message in flight with the entries through `last`."""
        self.pushed = last
        self.flight.append((last, size))
        self.flight_bytes += size

    def acknowledged(self, index: int) -> None:
        """The log through `index` is on the follower's disk."""
        self.confirmed = index
        self.pushed = max(self.pushed, index)
        self.quiet = self.patience = 0
        while self.flight and self.flight[0][0] <= index:
            self.flight_bytes -= self.flight.popleft()[1]

    def go_back(self, index: int) -> None:
        """Send again from behind `index`, beginning with a single message: otherwise each answer to the
        messages in flight would trigger as many messages again."""
        self.pushed = index
        self.probing = index
        self.flight.clear()
        self.flight_bytes = 0
        self.quiet = 0


class Leadership:
    """The leader's state of a node, from its appointment to a higher epoch."""

    def __init__(self, node: "Node", members: tuple[Member, ...]) -> None:
        self._node = node
        self.since = node.epoch
        self.members = members
        self.cursors: dict[Member, Cursor] = {each: Cursor() for each in members if each != node.member}
        self.change: Change | None = None
        self.successor: Member | None = None
        self._changed: Change | None = None
        self._hand_over_to: str | None = None
        # Ticks since the last request to hand over; an operator repeats it at every tick.
        self._hand_over_quiet = 0
        # The first entry of this term; once it is applied, so is everything committed before.
        self._began_at = node.head.index + 1
        self._waiting: deque[tuple[int, Tag]] = deque()
        self._beat = 0
        self._reads: list[tuple[Tag, int]] = []
        self._reads_in_flight: list[tuple[Tag, int]] = []
        self._messages: dict[type, Callable[[str, Any], None]] = {
            m.AddEntriesResponse: self._added_entries,
            m.HeartbeatResponse: self._beaten,
            m.TruncateResponse: self._truncated,
            m.AddFollowerRequest: self._add_follower,
            m.PrepareReconfigurationRequest: self._prepare,
            m.CommitReconfigurationRequest: self._commit_change,
            m.AbortReconfigurationRequest: self._abort_change,
            m.HandOverRequest: self._hand_over,
        }

    def begin(self, heads: dict[Member, EntryId]) -> None:
        """Attach the known followers and write the first entry."""
        for follower, head in heads.items():
            self._meet(follower, head)
        self._append((self._node.nothing(),))

    def end(self) -> None:
        """End the term; uncommitted entries may or may not be committed later."""
        node = self._node
        for _, tag in self._waiting:
            node.answer(Refuse(tag, Reason.UNKNOWN))
        for tag, _ in (*self._reads_in_flight, *self._reads):
            node.answer(Refuse(tag, Reason.NOT_LEADER))

    def receive(self, sender: str, message: m.Message) -> None:
        handler = self._messages.get(type(message))
        if handler is not None:
            handler(sender, message)

    @property
    def ready(self) -> bool:
        """Whether everything committed before this epoch is applied here."""
        node = self._node
        return node.applied >= self._began_at and node.epochs.epoch_of(node.applied) == node.epoch

    @property
    def restless(self) -> bool:
        """Whether a tick may have to repeat a request."""
        node = self._node
        return bool(self._reads_in_flight or self.successor is not None) or any(
            cursor.state is not CursorState.ATTACHED
            or cursor.confirmed != node.head.index
            or cursor.informed != node.commit
            for cursor in self.cursors.values()
            if cursor.state is not CursorState.REMOVING
        )

    @property
    def reading(self) -> int:
        """The number of the heartbeat that reads wait for; 0 if none does."""
        return self._beat if self._reads_in_flight else 0

    def lag(self) -> dict[Member, int]:
        """The number of entries that each follower has not confirmed."""
        last = self._node.head.index
        return {member: last - cursor.confirmed for member, cursor in self.cursors.items()}

    # Entries go out.

    def propose(self, commands: tuple[Command, ...]) -> None:
        node = self._node
        first, epoch = node.head.index + 1, node.epoch
        if self.successor is not None or first + len(commands) - node.commit > node.limits.uncommitted:
            for command in commands:
                node.answer(Refuse(command.tag, Reason.BUSY))
            return
        entries = tuple(
            Entry.make(
                epoch, index, each.kind, each.payload, version=each.version, transaction=each.transaction
            )
            for index, each in enumerate(commands, first)
        )
        self._waiting.extend((index, each.tag) for index, each in enumerate(commands, first))
        self._append(entries)

    def _append(self, entries: tuple[Entry, ...]) -> None:
        """Write the entries and send them at once to each follower that has all earlier ones, up to its
        window. The rest follows the acknowledgements."""
        node = self._node
        previous = node.head
        node.append(entries)
        messages: list[tuple[m.AddEntriesRequest, int]] = []
        for member, cursor in self.cursors.items():
            if (
                cursor.state is CursorState.ATTACHED
                and cursor.pushed == previous.index
                and cursor.probing is None
                and cursor.pushed - cursor.confirmed < node.limits.window
            ):
                messages = messages or self._messages_with(previous, entries)
                for message, size in messages:
                    if cursor.flight_bytes >= node.limits.window_bytes:
                        break
                    cursor.sent(message.entries[-1].index, size)
                    node.send(member, message)

    def _messages_with(
        self, previous: EntryId, entries: tuple[Entry, ...]
    ) -> list[tuple[m.AddEntriesRequest, int]]:
        """The messages that carry these entries, with the bytes of each: at most `message_bytes`, or one
        entry that is larger."""
        node = self._node
        messages = []
        begin = size = 0
        for number, entry in enumerate(entries):
            if size and size + len(entry.frame) > node.limits.message_bytes:
                some = entries[begin:number]
                messages.append((m.AddEntriesRequest(node.epoch, previous, some, node.commit), size))
                previous, begin, size = some[-1].id, number, 0
            size += len(entry.frame)
        messages.append((m.AddEntriesRequest(node.epoch, previous, entries[begin:], node.commit), size))
        return messages

    def _push(self, member: Member, cursor: Cursor) -> None:
        """Send the entries that the follower lacks, up to its window."""
        node = self._node
        last = min(node.readable, cursor.confirmed + node.limits.window)
        if cursor.probing not in (None, cursor.pushed):
            return
        while cursor.pushed < last and cursor.flight_bytes < node.limits.window_bytes:
            if cursor.pushed + 1 < node.source.first:
                self._ask_for_snapshot(member, cursor, node.epochs.id_at(cursor.confirmed))
                return
            entries = tuple(node.source.read(cursor.pushed + 1, last, node.limits.message_bytes))
            assert entries and entries[0].index == cursor.pushed + 1
            previous = node.epochs.id_at(cursor.pushed)
            cursor.sent(entries[-1].index, sum(len(entry.frame) for entry in entries))
            node.send(member, m.AddEntriesRequest(node.epoch, previous, entries, node.commit))
            if cursor.probing is not None:
                return

    def tick(self) -> None:
        """Repeat requests without an answer since the last tick, and send heartbeats."""
        node = self._node
        self._hand_over_quiet += 1
        if self._hand_over_quiet >= node.limits.hand_over_ticks:
            # The operator died or lost its store, so the leader takes writes again.
            self.successor = None
        for member, cursor in self.cursors.items():
            if cursor.state is CursorState.REMOVING or self._rests(cursor):
                continue
            node.send(member, m.HeartbeatRequest(node.epoch, self._beat, node.commit))
            if cursor.state is CursorState.TRUNCATE:
                self._ask_to_truncate(member, cursor, cursor.head)
            elif cursor.state is CursorState.SNAPSHOT:
                self._ask_for_snapshot(member, cursor, cursor.head)
            elif cursor.state is CursorState.ATTACHED:
                cursor.quiet += 1
                if cursor.pushed > cursor.confirmed and cursor.quiet > cursor.patience:
                    # Messages are lost, or its disk is slow: repeat less and less often.
                    cursor.go_back(cursor.confirmed)
                    cursor.patience = min(2 * cursor.patience + 1, _MOST_PATIENCE)
                self._push(member, cursor)
                if cursor.pushed == cursor.confirmed and cursor.informed < node.commit:
                    # A follower that was restarted learns from this how far it has the leader's log.
                    previous = node.epochs.id_at(cursor.confirmed)
                    node.send(member, m.AddEntriesRequest(node.epoch, previous, (), node.commit))

    def _rests(self, cursor: Cursor) -> bool:
        """Whether the follower has everything, knows the commit index, and got a heartbeat lately."""
        node = self._node
        settled = cursor.state is CursorState.ATTACHED and cursor.confirmed == node.head.index
        if not settled or cursor.informed != node.commit or self._reads_in_flight:
            cursor.rested = 0
            return False
        cursor.rested += 1
        return cursor.rested % node.limits.idle_ticks != 0

    # Followers are met.

    def _meet(self, member: Member, head: EntryId) -> None:
        """Note that a follower's log ends at `head`, all of it on disk, as it said in an epoch of this
        term."""
        node = self._node
        cursor = self.cursors.get(member)
        if cursor is None or cursor.state is CursorState.REMOVING:
            return
        if head not in node.epochs:
            # An attached follower said this earlier.
            if cursor.state is not CursorState.ATTACHED:
                self._ask_to_truncate(member, cursor, head)
        elif cursor.state is CursorState.ATTACHED:
            self._confirm(cursor, head.index)
        elif head.index + 1 < node.source.first:
            self._ask_for_snapshot(member, cursor, head)
        else:
            cursor.become(CursorState.ATTACHED)
            cursor.confirmed = head.index
            cursor.go_back(head.index)
            cursor.probing = None
            self._push(member, cursor)
            self.advance()

    def _ask_to_truncate(self, member: Member, cursor: Cursor, head: EntryId) -> None:
        node = self._node
        cursor.become(CursorState.TRUNCATE)
        cursor.head = head
        target = node.epochs.highest_up_to(head.epoch)
        node.send(member, m.TruncateRequest(node.epoch, head, target))

    def _ask_for_snapshot(self, member: Member, cursor: Cursor, head: EntryId) -> None:
        cursor.become(CursorState.SNAPSHOT)
        cursor.head = head
        self._node.send(member, m.SnapshotNeeded(self._node.epoch, head))

    def _add_follower(self, sender: str, message: m.AddFollowerRequest) -> None:
        cursor = self.cursors.get(message.follower)
        if cursor is None or not self.since <= message.epoch <= self._node.epoch:
            return
        if cursor.state is CursorState.UNKNOWN:
            self._meet(message.follower, message.head)
        self._node.send(sender, m.AddFollowerResponse(message.epoch, message.follower))

    def _truncated(self, sender: str, message: m.TruncateResponse) -> None:
        if message.epoch == self._node.epoch:
            self._meet(sender, message.head)

    # Acknowledgements come back.

    def _deposed(self, current: int) -> bool:
        """Whether a member has seen a higher epoch, which ends this term."""
        if current > self._node.epoch:
            self._node.step_down()
            return True
        return False

    def _added_entries(self, sender: str, message: m.AddEntriesResponse) -> None:
        node = self._node
        if self._deposed(message.current) or message.epoch != node.epoch:
            return
        cursor = self.cursors.get(sender)
        if cursor is None:
            return
        if not message.accepted:
            if cursor.state is CursorState.ATTACHED and message.head in node.epochs:
                start = max(cursor.confirmed, message.head.index)
                if cursor.probing == start:
                    return
                cursor.go_back(start)
            self._meet(sender, message.head)
        elif cursor.state is CursorState.ATTACHED:
            cursor.probing = None
            self._confirm(cursor, message.head.index)
        if cursor.state is CursorState.ATTACHED:
            self._push(sender, cursor)
            self._hand_over_if_ready()

    def _confirm(self, cursor: Cursor, index: int) -> None:
        """The log through `index` is on the follower's disk."""
        if index > cursor.confirmed:
            cursor.acknowledged(index)
            self.advance()

    def advance(self) -> None:
        """Commit what is on a majority of the members. An entry of an earlier epoch is committed only with
        one of this epoch behind it."""
        node = self._node
        counts = [
            cursor.confirmed for cursor in self.cursors.values() if cursor.state is CursorState.ATTACHED
        ]
        counts.append(node.synced)
        needed = majority(len(self.members))
        if len(counts) >= needed:
            counts.sort(reverse=True)
            index = counts[needed - 1]
            if index > node.commit and node.epochs.epoch_of(index) == node.epoch:
                node.commit_through(index)

    def applied(self) -> None:
        """Answer the requests that the applied entries complete."""
        node = self._node
        while self._waiting and self._waiting[0][0] <= node.applied:
            index, tag = self._waiting.popleft()
            node.answer(Answer(tag, index))
        self._serve()

    # Reads.

    def read(self, tag: Tag) -> None:
        """Serve the read after a majority has answered a heartbeat sent later than now."""
        if len(self._reads) + len(self._reads_in_flight) >= self._node.limits.reads:
            self._node.answer(Refuse(tag, Reason.BUSY))
            return
        self._reads.append((tag, self._node.commit))
        if not self._reads_in_flight:
            self._ask_majority()

    def _ask_majority(self) -> None:
        """Send one heartbeat for all waiting reads."""
        node = self._node
        self._reads_in_flight, self._reads = self._reads, []
        self._beat += 1
        for member, cursor in self.cursors.items():
            if cursor.state is not CursorState.REMOVING:
                node.send(member, m.HeartbeatRequest(node.epoch, self._beat, node.commit))
        self._serve()

    def _beaten(self, sender: str, message: m.HeartbeatResponse) -> None:
        if self._deposed(message.current) or message.epoch != self._node.epoch:
            return
        cursor = self.cursors.get(sender)
        if cursor is None or cursor.state is CursorState.REMOVING:
            return
        cursor.beaten = max(cursor.beaten, message.number)
        cursor.informed = message.commit
        if message.head is not None and cursor.state is CursorState.UNKNOWN:
            self._meet(sender, message.head)
        self._serve()

    def _serve(self) -> None:
        """Serve the reads whose heartbeat a majority has answered and whose entries are applied."""
        if not self._reads_in_flight or self._node.applied < self._began_at:
            return
        beaten = 1 + sum(
            cursor.beaten >= self._beat and cursor.state is not CursorState.REMOVING
            for cursor in self.cursors.values()
        )
        if beaten < majority(len(self.members)):
            return
        if self._node.applied < max(commit for _, commit in self._reads_in_flight):
            return
        for tag, _ in self._reads_in_flight:
            self._node.answer(Serve(tag))
        self._reads_in_flight = []
        if self._reads:
            self._ask_majority()

    # Reconfigurations.

    def _prepare(self, sender: str, message: m.PrepareReconfigurationRequest) -> None:
        node, change = self._node, message.change
        if message.epoch == node.epoch and change in (self.change, self._changed):
            node.send(sender, m.PrepareReconfigurationResponse(node.epoch, change))
            return
        if message.epoch <= node.epoch or not self._possible(change):
            return
        self._forget_change()
        node.save_promise(Promise(message.epoch, True, node.promise.installed))
        self.change, self._changed = change, None
        self.successor = None
        if change.old is not None:
            self.cursors[change.old].become(CursorState.REMOVING)
        self._append((node.nothing(),))
        node.send(sender, m.PrepareReconfigurationResponse(node.epoch, change))

    def _possible(self, change: Change) -> bool:
        old_fits = (change.old is None) == (change.kind is ChangeKind.EXPAND)
        new_fits = (change.new is None) == (change.kind is ChangeKind.CONTRACT)
        if not old_fits or not new_fits or change.new in self.members:
            return False
        return change.old is None or change.old in self.cursors

    def _forget_change(self) -> None:
        """Drop a prepared change; its old member becomes a normal follower again."""
        if self.change is not None and self.change.old is not None:
            self.cursors[self.change.old] = Cursor()
        self.change = None

    def _commit_change(self, sender: str, message: m.CommitReconfigurationRequest) -> None:
        node, change = self._node, message.change
        if message.epoch != node.epoch:
            return
        if change == self.change:
            safe = change.kind is not ChangeKind.CONTRACT or self._can_lose_one()
            if safe:
                self._change_members(change, message.head)
            node.send(sender, m.CommitReconfigurationResponse(node.epoch, change, safe))
        elif change == self._changed:
            node.send(sender, m.CommitReconfigurationResponse(node.epoch, change, True))

    def _can_lose_one(self) -> bool:
        """Whether everything that may be committed is on a majority of the remaining members. Entries that
        earlier leaders committed come before the first entry of this term."""
        node = self._node
        through = max(node.commit, self._began_at)
        having = (node.synced >= through) + sum(
            cursor.state is CursorState.ATTACHED and cursor.confirmed >= through
            for cursor in self.cursors.values()
        )
        return having >= majority(len(self.members) - 1)

    def _change_members(self, change: Change, head: EntryId) -> None:
        self.members = change.applied_to(self.members)
        self.change, self._changed = None, change
        if change.old is not None:
            del self.cursors[change.old]
        if change.new is not None:
            self.cursors[change.new] = Cursor()
            self._meet(change.new, head)
        self.advance()

    def _abort_change(self, sender: str, message: m.AbortReconfigurationRequest) -> None:
        node = self._node
        if message.epoch != node.epoch or message.change == self._changed:
            return
        if message.change == self.change:
            self._forget_change()
        node.send(sender, m.AbortReconfigurationResponse(node.epoch, message.change))

    # Handing over.

    def _hand_over(self, sender: str, message: m.HandOverRequest) -> None:
        if message.epoch != self._node.epoch:
            return
        if message.successor is None:
            self.successor = None
            self._node.send(sender, m.HandOverResponse(message.epoch, None))
        elif message.successor in self.cursors:
            self.successor, self._hand_over_to = message.successor, sender
            self._hand_over_quiet = 0
            self._hand_over_if_ready()

    def _hand_over_if_ready(self) -> None:
        """Report that the successor has everything; it would win any election."""
        node, successor = self._node, self.successor
        if successor is None or self._hand_over_to is None:
            return
        cursor = self.cursors.get(successor)
        if (
            cursor is not None
            and cursor.state is CursorState.ATTACHED
            and cursor.confirmed == node.head.index
        ):
            node.send(self._hand_over_to, m.HandOverResponse(node.epoch, successor))
