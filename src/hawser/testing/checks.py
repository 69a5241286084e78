"""The sixteen statements that must hold after every step of a cluster, with one or two functions each.

Each function checks the changes of one step and raises `Violation` if its statement does not hold. A `Watch`
holds the last seen state of a member; it survives the member's process and disk.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Final

from hawser.log.entry import NO_ENTRY, Entry, EntryId
from hawser.log.epochs import Epochs
from hawser.log.protocol.events import Event, Receive
from hawser.log.protocol.messages import (
    AddEntriesRequest,
    ChangeKind,
    Member,
    Message,
    ReadSnapshotRequest,
    Role,
    TruncateRequest,
)
from hawser.log.protocol.metadata import Metadata, Phase, majority

__all__ = ["STATEMENTS", "Violation", "Watch"]

STATEMENTS: Final = {
    1: "the epoch of a member never decreases, not even by a crash",
    2: "at most one member ever leads in an epoch, and never again in it after a restart",
    3: "version and epoch of the metadata only grow, and every write is a compare-and-set",
    4: "no two entries have the same epoch and index and different bytes",
    5: "a log has one entry at every index, and its epochs do not decrease",
    6: "logs that share an entry are the same up to it",
    7: "what a leader believes a follower to have is in the leader's log",
    8: "the commit index never goes back, is not above the head, and is not below what is applied",
    9: "a leader commits by an entry of its own epoch that a majority of the current members has on disk",
    10: "a leader has every entry that was committed before its epoch",
    11: "nothing committed or applied is truncated",
    12: "what a member says it has, it has on disk",
    13: "whatever can decide in one configuration shares a member with whatever can in the next",
    14: "who was removed or never admitted counts for nothing",
    15: "a repeated request changes nothing and gets the same answer",
    16: "the work of one step is bounded, whatever the size of the log and of what is proposed",
}


# Reads of one step that are not of entries, such as blocks of an index.
_OTHER_READS: Final = 8
# Reads that search a place in a segment, header by header: at most this many lie between two known places.
_SEARCHING: Final = (TruncateRequest, ReadSnapshotRequest)
_HEADERS_SEARCHED: Final = 512


class Violation(AssertionError):
    """A statement does not hold; 0 is a guarantee to clients."""

    def __init__(self, statement: int, what: str) -> None:
        self.statement = statement
        rule = f"statement {statement}: {STATEMENTS[statement]}\n" if statement else ""
        super().__init__(f"{rule}{what}")


class Watch:
    """The last seen state of a member. `epochs[i - 1]` is the epoch of entry i of its log. `committed` is its
    highest known commit index of entries that it still has, across restarts."""

    __slots__ = (
        "applied", "commit", "committed", "epoch", "epochs", "incarnation", "member", "role", "synced",
    )  # fmt: skip

    def __init__(self, member: Member) -> None:
        self.member = member
        self.incarnation = 0
        self.epoch = 0
        self.role = Role.NOT_MEMBER
        self.epochs: list[int] = []
        self.synced = 0
        self.commit = 0
        self.committed = 0
        self.applied = 0

    @property
    def head(self) -> EntryId:
        return EntryId(self.epochs[-1], len(self.epochs)) if self.epochs else NO_ENTRY

    def has_on_disk(self, entry: EntryId) -> bool:
        return entry.index <= self.synced and self.epochs[entry.index - 1] == entry.epoch


def epoch_grows(watch: Watch, epoch: int, durable: int) -> None:
    """1"""
    if epoch < watch.epoch:
        raise Violation(1, f"{watch.member} went from epoch {watch.epoch} to {epoch}")
    if durable != epoch:
        raise Violation(1, f"{watch.member} acts in epoch {epoch}, its disk knows {durable}")


def one_leader(leaders: dict[int, tuple[Member, int]], epoch: int, member: Member, incarnation: int) -> None:
    """2"""
    first = leaders.setdefault(epoch, (member, incarnation))
    if first != (member, incarnation):
        raise Violation(
            2,
            f"{first[0]} (incarnation {first[1]}) and {member} (incarnation {incarnation}) "
            f"both lead in epoch {epoch}",
        )


def metadata_grows(old: Metadata, new: Metadata) -> None:
    """3"""
    if new.version != old.version + 1 or new.epoch < old.epoch:
        raise Violation(3, f"metadata went from {old} to {new}")
    if new.leader is not None and new.leader not in new.members:
        raise Violation(3, f"the leader is not a member: {new}")


# Every entry of any member, by epoch and index, with the epoch of the entry before it.
Known = dict[tuple[int, int], tuple[int, Entry]]


def one_entry_per_name(known: Known, entry: Entry, previous_epoch: int, member: Member) -> None:
    """4 and 6: equal bytes and equal predecessors of an entry everywhere imply equal prefixes."""
    name = (entry.epoch, entry.index)
    first = known.get(name)
    if first is None:
        known[name] = (previous_epoch, entry)
        return
    if first[1].frame != entry.frame:
        raise Violation(4, f"entry {entry.id} of {member} differs from the one seen first")
    if first[0] != previous_epoch:
        raise Violation(
            6, f"before {entry.id} comes epoch {previous_epoch} at {member}, elsewhere epoch {first[0]}"
        )


def trimmed_entry_is_known(known: Known, entry: EntryId, previous_epoch: int, member: Member) -> None:
    """4 and 6, for an entry within a snapshot, of which only the id is known."""
    first = known.get(entry)
    if first is None:
        raise Violation(4, f"{member} claims to have had entry {entry}, which nobody ever wrote")
    if first[0] != previous_epoch:
        raise Violation(
            6, f"before {entry} comes epoch {previous_epoch} at {member}, elsewhere epoch {first[0]}"
        )


def log_is_dense(member: Member, index: int, entry: Entry, previous_epoch: int, epochs: Epochs) -> None:
    """5"""
    if entry.index != index or entry.epoch < previous_epoch or epochs.epoch_of(index) != entry.epoch:
        raise Violation(5, f"{member} has {entry.id} at {index} behind an entry of epoch {previous_epoch}")


def cursor_is_true(follower: Watch, leader: Watch, confirmed: int) -> None:
    """7: the follower also has the entry on disk, unless a higher epoch told it to truncate."""
    if confirmed > len(leader.epochs):
        raise Violation(
            7, f"{leader.member} believes {follower.member} to have {confirmed}, beyond its own head"
        )
    entry = EntryId(leader.epochs[confirmed - 1], confirmed)
    if follower.epoch <= leader.epoch and not follower.has_on_disk(entry):
        raise Violation(7, f"{leader.member} believes {follower.member} to have {entry}, which it has not")


def indices_are_ordered(watch: Watch, commit: int, applied: int, head: int) -> None:
    """8"""
    if commit < watch.commit or not applied <= commit <= head:
        raise Violation(
            8,
            f"{watch.member} had commit {watch.commit}, now applied {applied}, commit {commit}, head {head}",
        )


def commit_has_majority(
    watches: dict[Member, Watch], leader: Watch, members: Sequence[Member], entry: EntryId
) -> None:
    """9"""
    if entry.epoch != leader.epoch:
        raise Violation(9, f"{leader.member} in epoch {leader.epoch} committed by {entry}")
    have = [name for name in members if name in watches and watches[name].has_on_disk(entry)]
    if len(have) < majority(len(members)):
        raise Violation(9, f"{leader.member} committed {entry}, which only {have} of {members} have on disk")


def leader_has_committed(member: Member, epoch: int, last: EntryId, epochs: Epochs) -> None:
    """10: `last` is the last entry that was committed in an earlier epoch."""
    if last not in epochs:
        raise Violation(10, f"{member} leads in epoch {epoch} without the committed entry {last}")


def truncation_is_harmless(watch: Watch, kept: int) -> None:
    """11"""
    if kept < watch.committed:
        raise Violation(11, f"{watch.member} kept {kept}, although {watch.committed} was committed")


def said_is_on_disk(member: Member, head: EntryId, synced: int, epochs: Epochs, message: object) -> None:
    """12, when the member claims to have entries."""
    if head.index > synced or head not in epochs:
        raise Violation(12, f"{member} has {synced} entries on disk, head {epochs.head}, and says {message}")


def disk_kept_its_word(watch: Watch, floor: int, epochs: Epochs) -> None:
    """12, after a restart: entries on disk are still there."""
    entry = EntryId(watch.epochs[floor - 1], floor) if floor else NO_ENTRY
    if entry not in epochs:
        raise Violation(12, f"{watch.member} had {entry} on disk and has {epochs.head} after a restart")


def quorums_meet(metadata: Metadata) -> None:
    """13, by enumeration: each set that can commit shares a possible leader with each set that can elect."""
    change = metadata.change
    _quorums_meet(
        len(metadata.members),
        change.kind if change else None,
        metadata.phase,
        frozenset(metadata.fencing_ensemble) - frozenset(metadata.members) != frozenset(),
        frozenset(metadata.final_ensemble) == frozenset(metadata.members),
    )


@cache
def _quorums_meet(
    size: int, kind: ChangeKind | None, phase: Phase | None, fences_new: bool, keeps_members: bool
) -> None:
    members = frozenset(range(size))
    old = frozenset({0}) if kind in (ChangeKind.SWAP, ChangeKind.CONTRACT) else frozenset()
    new = frozenset({size}) if kind in (ChangeKind.SWAP, ChangeKind.EXPAND) else frozenset()
    fencing = members | new if fences_new else members
    final = members if keeps_members else (members - old) | new
    for holders in _holders(members, old, new, phase):
        for voters in combinations(sorted(fencing), majority(len(fencing))):
            if not holders & frozenset(voters) & final:
                raise Violation(13, f"{size} members, {kind} {phase}: {sorted(holders)} against {voters}")


def _holders(
    members: frozenset[int], old: frozenset[int], new: frozenset[int], phase: Phase | None
) -> Iterable[frozenset[int]]:
    """The minimal sets of members with a committed entry. In the phase COMMIT the new member's snapshot has
    the entries that were committed before the change, and the old member does not count."""
    settled = new if phase is Phase.COMMIT else frozenset()
    for some in combinations(sorted(members), majority(len(members))):
        yield frozenset(some) | settled
    if phase is Phase.COMMIT:
        changed = (members - old) | new
        for some in combinations(sorted(changed), majority(len(changed))):
            yield frozenset(some)
        for some in combinations(sorted(members - old), majority(len(members))):
            yield frozenset(some)


def committed_meets_voters(
    watches: dict[Member, Watch], metadata: Metadata, gone: set[Member], last: EntryId
) -> None:
    """13, for the current state: members without the committed entries cannot elect a leader. A member with
    the entries that cannot lead counts as one without them; a member without a disk has no vote."""
    voters = [member for member in metadata.fencing_ensemble if member not in gone]
    final = metadata.final_ensemble
    lacking = [
        member
        for member in voters
        if member not in final or member not in watches or not watches[member].has_on_disk(last)
    ]
    if len(lacking) >= majority(len(metadata.fencing_ensemble)):
        raise Violation(13, f"{last} is committed, and {lacking} could elect a leader without it: {metadata}")


def ensemble_is_admitted(
    admitted: dict[int, set[frozenset[Member]]], member: Member, epoch: int, members: Sequence[Member]
) -> None:
    """14, when a leader commits."""
    if frozenset(members) not in admitted.get(epoch, set()):
        raise Violation(14, f"{member} counts {members} in epoch {epoch}, which the metadata never allowed")


def steady_ensemble_is_the_leaders(metadata: Metadata, member: Member, members: Sequence[Member]) -> None:
    """14, when the metadata becomes steady."""
    if set(members) != set(metadata.members) or len(members) != len(metadata.members):
        raise Violation(14, f"{member} counts {members}, the metadata has {metadata.members}")


def message_is_bounded(member: Member, message: Message, most_bytes: int) -> None:
    """16: a message has several entries only within the byte limit."""
    if isinstance(message, AddEntriesRequest) and len(message.entries) > 1:
        size = sum(len(entry.frame) for entry in message.entries)
        if size > most_bytes:
            raise Violation(16, f"{member} sent {size} bytes of entries in one message")


def reads_are_bounded(member: Member, event: Event, reads: int, touched: int) -> None:
    """16: adjacent entries are read together. `touched` counts the files before the step and its outputs,
    each of which may need a read."""
    most = touched + _OTHER_READS
    if isinstance(event, Receive) and isinstance(event.message, _SEARCHING):
        most += _HEADERS_SEARCHED
    if reads > most:
        raise Violation(16, f"{member} read {reads} times from its disk, not {most} at most, on {event}")


def repeat_changes_nothing(member: Member, request: object, before: object, after: object) -> None:
    """15: `before` and `after` are the state and the answer of the member, the first and the second time."""
    if before != after:
        raise Violation(15, f"{member} got {request} again: {before} became {after}")
