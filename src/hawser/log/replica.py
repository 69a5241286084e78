"""A replica: one member of a shard, with its protocol node, journal and state machine.

Deterministic: the same events on the same storage give the same outputs. The caller brings messages, time and
completed syncs, and carries out the outputs. A member halts if its disk fails, its journal is damaged or an
invariant is broken; it then answers no more requests and can only be retired.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from hawser.errors import Corrupt
from hawser.log.entry import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_TRANSACTION_BYTES,
    NOTHING_PAYLOAD_BYTES,
    Entry,
    Kind,
)
from hawser.log.journal.errors import BadSnapshot, Damaged
from hawser.log.journal.journal import Journal, Sync
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.journal.reader import SequentialReader
from hawser.log.journal.storage import Storage, StorageFailed, StorageFull, StorageRefused
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Abandoned,
    Answer,
    Append,
    Apply,
    Command,
    Effect,
    Event,
    Halt,
    Installed,
    Persist,
    Propose,
    Pull,
    Read,
    Reason,
    Receive,
    Refuse,
    Retire,
    Send,
    Serve,
    Synced,
    Tag,
    Tick,
    Truncate,
)
from hawser.log.protocol.node import Limits, Node, asks_to_retire
from hawser.log.snapshot_transfer import Pulling, Serving
from hawser.log.state.machine import Machine, shard_parts
from hawser.log.state.part import BadState, Part, Unsupported
from hawser.log.state.results import OutOfRange, Result
from hawser.log.state.topic import PAGE_PLACES, Topic

__all__ = ["Done", "Output", "Replica", "Retired", "Settings"]

# Room for the entry that a leader writes at the start of its epoch.
_NOTHING_BYTES = HEADER_BYTES + NOTHING_PAYLOAD_BYTES
# Entries that free room directly or indirectly; a part of the last segment is reserved for them.
_FREEING = frozenset(
    {
        *(Kind.NOTHING, Kind.TRIM, Kind.EXPIRE_PRODUCERS, Kind.ADVANCE_TIME),
        *(Kind.GROUP_COMMIT, Kind.GROUP_LEAVE, Kind.GROUP_DELETE, Kind.QUEUE_SETTLE),
        # The last one precedes the deletion of a topic.
        *(Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT, Kind.BRANCH_FORGET, Kind.BRANCH_LIMIT),
        *(Kind.HOME_VOTES, Kind.HOME_DECIDE, Kind.HOME_TOLD, Kind.HOME_SESSION_LOST, Kind.HOME_FORGET),
    }
)
_SPARE_BYTES = 64 << 10
# Messages that make the node store a promise, a snapshot or a truncation, also within an epoch.
_WAITING = frozenset(
    {
        *(m.BecomeLeaderRequest, m.PrepareReconfigurationRequest, m.TruncateRequest),
        *(m.ReadSnapshotResponse, m.RetireRequest),
    }
)
# The most entries of one read of batches: some 20 ms of work.
_MOST_READ = 4096
# A larger BRANCH_COMMIT has messages to deliver, which free nothing.
_MOST_OF_A_COMMIT_BYTES = 1 << 10
# A checkpoint for the sake of bytes is made only if the log that it frees, or the log since the last one, is
# this many times larger than the state.
_LOG_TO_STATE = 4


class Settings(msgspec.Struct, frozen=True):
    """Settings of a member."""

    journal: JournalSettings = JournalSettings()
    limits: Limits = Limits()
    # A checkpoint is made after `checkpoint_entries` applied entries; also when it would free
    # `checkpoint_bytes` of the log, or when as many bytes were written since the last one, which is checked
    # once in `checkpoint_ticks` ticks. Bytes are counted in whole segments.
    checkpoint_entries: int = 10_000
    checkpoint_bytes: int = 8 << 20
    checkpoint_ticks: int = 10
    # Entries kept beyond those that the state needs, so that a follower that was away can continue from its
    # position: `spare_entries`, but at most the newest segments with `spare_bytes`, and none on a full disk.
    spare_entries: int = 10_000
    spare_bytes: int = 8 << 20
    # Makes the parts of the state machine, given the number of batches in a page of an index.
    parts: Callable[[int], Sequence[Part]] = shard_parts
    index_places: int = PAGE_PLACES
    # The bytes of one piece of a snapshot.
    piece_bytes: int = 1 << 20
    # Ticks for which an unread snapshot holds retention back.
    snapshot_ticks: int = 50


class Done(msgspec.Struct, frozen=True):
    """A command was committed and applied; it is durable on a majority."""

    tag: Tag
    index: int
    result: Result


class Retired(msgspec.Struct, frozen=True):
    """The member is deleted with its files."""


Output = Send | Done | Serve | Refuse | Halt | Retired


class Replica:
    """One member of one shard, driven by `step`; `begin_sync` and `finish_sync` drive its disk."""

    def __init__(self, journal: Journal, incarnation: int, settings: Settings) -> None:
        self.journal = journal
        self.settings = settings
        self.machine = self._load_machine()
        self.node = Node(
            journal.member,
            incarnation,
            journal.promise,
            journal.epochs.copy(),
            self.machine.applied,
            journal,
            settings.limits,
        )
        self.halted: str | None = None
        # An unexpected exception, with its traceback.
        self.failure: Exception | None = None
        self._syncing = False
        self._head_at_tick = self._settled = journal.head
        self._wants_settling = False
        self._ticks = 0
        self._has_ballast = journal.hold_ballast()
        # Whether an entry was refused on a full disk since space was last freed.
        self.was_full = self._others_are_full = False
        self._spare_bytes = min(_SPARE_BYTES, settings.journal.segment_bytes // 8)
        self._pulling: Pulling | None = None
        # Ticks until the next pull after a snapshot found no room.
        self._no_room_ticks = 0
        # The reader of `entry`; dropped at each tick and when entries are replaced.
        self._reader: SequentialReader | None = None
        self._serving = Serving(journal, settings.piece_bytes, settings.snapshot_ticks)
        self._outputs: list[Output] = []
        # Effects not carried out yet; a member that halts still gives the answers among them.
        self._left: Iterator[Effect] = iter(())
        self._results: dict[int, Result] = {}
        self._do: dict[type, Callable[[Any], None]] = {
            Persist: self._persist,
            Append: self._append,
            Truncate: self._truncate,
            Apply: self._apply,
            Answer: self._answer,
            Pull: self._pull,
            Retire: self._retire,
            Halt: self._halt,
        }

    @classmethod
    def create(
        cls,
        storage: Storage,
        shard: str,
        member: str,
        incarnation: int,
        settings: Settings = Settings(),  # noqa: B008
    ) -> Self:
        """Create a new member on an empty disk."""
        return cls(Journal.format(storage, shard, member, settings.journal), incarnation, settings)

    @classmethod
    def open(cls, storage: Storage, incarnation: int, settings: Settings = Settings()) -> Self:  # noqa: B008
        """Open an existing member. After Damaged it needs a new disk, by a swap."""
        return cls(Journal.open(storage, settings.journal), incarnation, settings)

    @property
    def member(self) -> str:
        return self.journal.member

    def step(self, event: Event) -> list[Output]:
        """The outputs of `event`, in order."""
        self._outputs = []
        if self.halted is None or asks_to_retire(event):
            self._guard(self._handle, event)
        else:
            self._turn_away(event)
        return self._outputs

    def waits_for_disk(self, event: Event) -> bool:
        """Whether a step with `event` may wait for a sync, not only for writes."""
        if type(event) is Receive:
            message = event.message
            if type(message) in _WAITING or message.epoch > self.node.epoch:
                return True
            if type(message) is m.AddEntriesRequest:
                size = sum(len(entry.frame) for entry in message.entries)
                return bool(size) and size + self._spare_bytes > self.journal.room_bytes
            return type(message) is m.ReadSnapshotRequest and message.snapshot == 0
        if type(event) is Propose:
            size = sum(len(each.payload) + len(each.transaction) for each in event.commands)
            return size + len(event.commands) * HEADER_BYTES + self._spare_bytes > self.journal.room_bytes
        return type(event) is Tick and self._is_shortening_due(self._ticks + 1)

    def _turn_away(self, event: Event) -> None:
        """Refuse the requests of an event that is not carried out."""
        if isinstance(event, Propose):
            self._outputs.extend(Refuse(each.tag, Reason.NOT_LEADER) for each in event.commands)
        elif isinstance(event, Read):
            self._outputs.append(Refuse(event.tag, Reason.NOT_LEADER))

    def _handle(self, event: Event) -> None:
        try:
            admitted = self._admit(event)
        except Exception:
            self._turn_away(event)
            raise
        if admitted:
            self._run(self.node.step(event))
        if type(event) is Tick:
            self._tick()

    def _guard(self, call: Callable[[Any], None], argument: object) -> None:
        """Call, and halt on any error: memory and disk may differ after it."""
        try:
            call(argument)
        except (StorageRefused, Unsupported, BadState) as reason:
            # The data on disk is valid for the next start.
            self._halt(Halt(str(reason)))
        except (StorageFailed, Damaged) as reason:
            self._halt(Halt(str(reason), disk_lost=True))
        except Exception as reason:
            self.failure = reason
            self._halt(Halt(f"this should never happen, please report it: {reason!r}"))

    # The disk.

    @property
    def sync_wanted(self) -> bool:
        """Whether something waits for the disk and no sync is running."""
        if self.halted is not None or self._syncing:
            return False
        return self._wants_settling or self.journal.synced < self.journal.head.index

    def begin_sync(self) -> Sync:
        """Begin a sync. The caller runs it in any thread and then calls `finish_sync`."""
        assert self.sync_wanted
        self._syncing = True
        settling, self._wants_settling = self._wants_settling, False
        return self.journal.begin_sync(settling)

    def finish_sync(self, sync: Sync) -> list[Output]:
        """Note that the sync has run; gives the outputs."""
        self._syncing = False
        self._outputs = []
        if self.halted is None:
            self._guard(self._synced, sync)
        return self._outputs

    def _synced(self, sync: Sync) -> None:
        self._run(self.node.step(Synced(self.journal.end_sync(sync))))

    def sync_failed(self, reason: str, disk_lost: bool = True) -> list[Output]:
        """Halt after a failed sync, because the state of written data is unknown. If the sync did not begin,
        the disk is not at fault and the next start finds the synced data."""
        self._outputs = []
        self._halt(Halt(f"the disk did not sync: {reason}", disk_lost))
        return self._outputs

    def read(
        self, offset: int, max_bytes: int, most_entries: int = _MOST_READ
    ) -> list[tuple[int, Entry]] | OutOfRange:
        """Batches with the committed records from `offset` on, each with the offset of its first record, as
        far as they fit, at least one if there are any. Reads at most `most_entries` entries."""
        topic, reader = self.machine.part(Topic), SequentialReader(self.journal.read)
        batches: list[tuple[int, Entry]] = []
        while max_bytes > 0 and not (offset == topic.end and offset >= topic.start):
            place = topic.locate(offset)
            if isinstance(place, OutOfRange):
                return place
            left = most_entries - reader.count
            if batches and left <= 0 and not reader.holds(place.index):
                break
            entry = reader.entry(place.index, min(self.machine.applied, place.index + max(0, left - 1)))
            if batches and len(entry.frame) > max_bytes:
                break
            batches.append((place.first_offset, entry))
            max_bytes -= len(entry.frame)
            offset = place.first_offset + place.count
        return batches

    def make_room(self) -> None:
        """Note that another shard found the disk full: the next tick removes the entries kept only for
        followers."""
        self._others_are_full = True

    def entry(self, index: int) -> Entry:
        """The entry at this index, which must be kept; Corrupt if it cannot be read."""
        if self._reader is None:
            self._reader = SequentialReader(self.journal.read)
        try:
            return self._reader.entry(index, max(index, self.machine.applied))
        except StorageFailed as error:
            self._reader = None
            raise Corrupt(str(error)) from error

    # Events.

    def _admit(self, event: Event) -> bool:
        """Whether there is room for the writes of `event`; handles messages about snapshots itself."""
        if type(event) is Propose:
            return self._admit_commands(event.commands)
        if type(event) is not Receive:
            return True
        message = event.message
        kind = type(message)
        if kind is m.AddEntriesRequest:
            # A follower without room does not answer and is asked again; entries that it has need no room.
            head = self.node.head.index
            new = [entry for entry in message.entries if entry.index > head]  # type: ignore[attr-defined]
            size = sum(len(entry.frame) for entry in new)
            return not size or self._reserve(size, all(_frees(entry.kind, len(entry.frame)) for entry in new))
        if kind is m.BecomeLeaderRequest:
            return self.node.leadership is not None or self.journal.reserve(_NOTHING_BYTES)
        if kind is m.PrepareReconfigurationRequest:
            return message.epoch <= self.node.epoch or self.journal.reserve(_NOTHING_BYTES)
        if kind is m.ReadSnapshotRequest:
            self._serve_snapshot(event.sender, message)  # type: ignore[arg-type]
            return False
        if kind is m.ReadSnapshotResponse:
            self._pulled(event.sender, message)  # type: ignore[arg-type]
            return False
        return True

    def _admit_commands(self, commands: tuple[Command, ...]) -> bool:
        sizes = [HEADER_BYTES + len(each.payload) + len(each.transaction) for each in commands]
        is_long = any(len(each.transaction) > MAX_TRANSACTION_BYTES for each in commands)
        reason = Reason.FULL
        if is_long or max(sizes, default=0) > HEADER_BYTES + MAX_BODY_BYTES:
            reason = Reason.TOO_LARGE
        elif not all(self.machine.knows(each.kind, each.version, each.transaction) for each in commands):
            # Once in the log it would halt every member.
            reason = Reason.UNSUPPORTED
        else:
            freeing = all(_frees(each.kind, size) for each, size in zip(commands, sizes, strict=True))
            if self.node.leadership is None or self._reserve(sum(sizes), freeing):
                return True
        self._outputs.extend(Refuse(command.tag, reason) for command in commands)
        return False

    def _reserve(self, size: int, freeing: bool) -> bool:
        """Reserve room; a part stays reserved for entries that free room, or a full disk would stay full."""
        if freeing:
            found = self.journal.reserve(size)
        else:
            found = self._has_ballast and self.journal.reserve(size + self._spare_bytes)
        self.was_full = self.was_full or not found
        return found

    # Effects of the protocol.

    def _run(self, effects: list[Effect]) -> None:
        outer = self._left
        self._left = iter(effects)
        for effect in self._left:
            do = self._do.get(type(effect))
            if do is not None:
                do(effect)
            else:
                self._outputs.append(effect)  # type: ignore[arg-type]
        self._left = outer
        self._results.clear()

    def _persist(self, effect: Persist) -> None:
        self.journal.save_promise(effect.promise)

    def _append(self, effect: Append) -> None:
        self.journal.append(effect.entries)

    def _truncate(self, effect: Truncate) -> None:
        assert effect.to.index >= self.machine.applied
        self._reader = None
        self.journal.truncate(effect.to.index)
        assert self.journal.head == effect.to

    def _apply(self, effect: Apply) -> None:
        machine = self.machine
        while machine.applied < effect.index:
            for entry in self.journal.read(machine.applied + 1, effect.index, 1 << 20):
                self._results[entry.index] = machine.apply(entry)

    def _answer(self, effect: Answer) -> None:
        self._outputs.append(Done(effect.tag, effect.index, self._results[effect.index]))

    def _retire(self, _: Retire) -> None:
        self.journal.destroy()
        self.halted = "retired"
        self._outputs.append(Retired())

    def _halt(self, effect: Halt) -> None:
        self.halted = effect.reason
        self._outputs.append(effect)
        for left in (*self._left, *self.node.abandon()):
            if isinstance(left, Answer):
                self._outputs.append(Refuse(left.tag, Reason.UNKNOWN))
            elif isinstance(left, Serve):
                self._outputs.append(Refuse(left.tag, Reason.NOT_LEADER))
            elif isinstance(left, Refuse):
                self._outputs.append(left)

    # Checkpoints and retention.

    def _tick(self) -> None:
        self._reader = None
        if self._pulling is not None:
            self._outputs.append(self._pulling.request())
        self._serving.tick()
        self._no_room_ticks = max(0, self._no_room_ticks - 1)
        self._ticks += 1
        if not self._serving.in_use and self._is_shortening_due(self._ticks):
            self._shorten()
        if not self._has_ballast and self.halted is None:
            self._has_ballast = self.journal.hold_ballast()
        self._settle_if_idle()

    def _shorten(self) -> None:
        """Make a checkpoint if one is due, and remove unneeded entries."""
        no_room = self._has_no_room
        # Other shards may report it again while the checkpoint is synced.
        self._others_are_full = False
        self.was_full = self._is_checkpoint_due(no_room, self._ticks) and not self._checkpoint()
        kept = self._saved_needs if no_room else min(self._saved_needs, self._first_spare)
        self.journal.retain(max(1, kept))

    @property
    def _has_no_room(self) -> bool:
        return self.was_full or self._others_are_full

    def _is_shortening_due(self, ticks: int) -> bool:
        """Whether to shorten the log at the tick with this number; not while a snapshot is read."""
        return self.halted is None and (self._has_no_room or self._is_checkpoint_due(False, ticks))

    def _is_checkpoint_due(self, no_room: bool, ticks: int) -> bool:
        settings, journal, machine = self.settings, self.journal, self.machine
        new = machine.applied - self._checkpointed
        if new <= 0 or new >= settings.checkpoint_entries:
            return new > 0
        if no_room:
            return journal.bytes_before(machine.needed) > 0
        if ticks % settings.checkpoint_ticks:
            return False
        state_bytes = len(journal.checkpoint.state) if journal.checkpoint else 0
        enough = max(settings.checkpoint_bytes, _LOG_TO_STATE * state_bytes)
        if journal.bytes_behind(self._checkpointed) >= enough:
            return True
        return journal.bytes_before(min(machine.needed, self._first_spare)) >= enough

    @property
    def _first_spare(self) -> int:
        """The first entry that is kept for followers."""
        newest = self.machine.applied + 1 - self.settings.spare_entries
        return max(newest, self.journal.first_of_newest(self.settings.spare_bytes))

    def _settle_if_idle(self) -> None:
        """Sync a mark one tick after the last entry was synced."""
        head = self.journal.head
        idle = head == self._head_at_tick and head.index == self.journal.synced and not self._syncing
        if idle and head != self._settled:
            self.journal.mark()
            self._wants_settling = True
            self._settled = head
        self._head_at_tick = head

    @property
    def _checkpointed(self) -> int:
        return self.journal.checkpoint.index if self.journal.checkpoint else 0

    def _checkpoint(self) -> bool:
        """Save the state, on a full disk in the reserved room; False if there is no room."""
        assert self.machine.applied <= self.journal.synced
        while True:
            try:
                saved = self.machine.save()
                self.journal.save_checkpoint(self.machine.applied, saved.state, saved.blocks)
            except StorageFull:
                if not self._has_ballast:
                    return False
                self.journal.drop_ballast()
                self._has_ballast = False
            else:
                self._saved_needs = self.machine.needed
                return True

    def _load_machine(self) -> Machine:
        machine = Machine(_Blocks(self.journal), self.settings.parts(self.settings.index_places))
        if self.journal.checkpoint is not None:
            machine.load(self.journal.checkpoint.state)
        # The first entry that the last checkpoint needs; a restart begins with it.
        self._saved_needs = machine.needed
        return machine

    # Snapshots.

    def _serve_snapshot(self, sender: str, message: m.ReadSnapshotRequest) -> None:
        """Serve a piece to a follower. A follower that was left behind gets the last checkpoint at once,
        because commits may depend on it. A new member gets a state with everything that the old ensemble
        committed, because it will vote for that."""
        leading = self.node.leadership
        if leading is None or message.epoch != self.node.epoch:
            return
        if sender not in leading.members and (leading.change is None or sender != leading.change.new):
            return
        if sender not in leading.members or not self._checkpointed:
            if not leading.ready:
                return
            fresh = self.node.epochs.epoch_of(self._checkpointed) == self.node.epoch
            if message.snapshot == 0 and not fresh and not self._checkpoint():
                return
        self._outputs.append(Send(sender, self._serving.piece(message)))

    def _pull(self, effect: Pull) -> None:
        if self._pulling is not None:
            self._pulling.drop()
            self._pulling = None
        if effect.leader is not None and self._no_room_ticks:
            self._run(self.node.step(Abandoned()))
        elif effect.leader is not None:
            self._pulling = Pulling(self.journal, effect.leader, effect.promise, effect.above)
            self._outputs.append(self._pulling.request())

    def _pulled(self, sender: str, message: m.ReadSnapshotResponse) -> None:
        pulling = self._pulling
        if pulling is None or sender != pulling.leader or message.epoch != self.node.epoch:
            return
        try:
            if not pulling.take(message):
                return
            if pulling.is_complete:
                pulling.finish()
        except (StorageFull, BadSnapshot):
            pulling.drop()
            self._pulling = None
            # Longer than the leader holds its retention back for a pull.
            self._no_room_ticks = 2 * self.settings.snapshot_ticks
            self._run(self.node.step(Abandoned()))
            return
        self.node.pulled = pulling.received
        if pulling.is_complete:
            self._pulling = self._reader = None
            self.machine = self._load_machine()
            self._run(self.node.step(Installed(pulling.promise, self.journal.epochs.copy())))
        else:
            self._outputs.append(pulling.request())


def _frees(kind: int, size: int) -> bool:
    """Whether an entry of this kind and size frees room, directly or indirectly."""
    return kind in _FREEING and (kind != Kind.BRANCH_COMMIT or size <= _MOST_OF_A_COMMIT_BYTES)


class _Blocks:
    """The journal's blocks for the state machine."""

    def __init__(self, journal: Journal) -> None:
        self.write = journal.write_block
        self.read = journal.read_block
