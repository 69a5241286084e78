"""Consumer groups: their members and positions.

A group's position is the offset it reads next. A member of the present generation moves it, by
compare-and-set and only forward, so a consumer that lost its place learns the position and cannot move it
back. Every change of members begins a new generation. A shard never reuses a generation, so a group that was
deleted and created again is not mistaken for the old one.

A group without members keeps its position, and holds retention back, until it is deleted.

A prepared transaction that moves a group locks its position: until the transaction ends, no other request
moves or deletes the group. Members may still join and leave.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import GroupCommit, GroupDelete, GroupJoin, GroupLeave, decoder
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.results import Committed, Deleted, Joined, Left, Reason, Rejected, Result
from hawser.log.state.terms import Terms

__all__ = ["Group", "Groups"]

_read_join = decoder(GroupJoin)
_read_leave = decoder(GroupLeave)
_read_commit = decoder(GroupCommit)
_read_delete = decoder(GroupDelete)


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The state of a group. Members are sorted; the first is the leader."""

    generation: int
    position: int
    members: tuple[str, ...]

    @property
    def leader(self) -> str | None:
        """The member that decides for the group; None without members."""
        return self.members[0] if self.members else None


class _State(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    groups: dict[str, Group]
    locked: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
_BAD = Rejected(Reason.BAD_PAYLOAD)
_NO_GROUP = Rejected(Reason.NO_GROUP)


class Groups(Part):
    """Every group of this shard."""

    name: ClassVar = "groups"
    kinds: ClassVar = {Kind.GROUP_JOIN: 1, Kind.GROUP_LEAVE: 1, Kind.GROUP_COMMIT: 1, Kind.GROUP_DELETE: 1}

    def __init__(self) -> None:
        # The number of changes of members and of deletions. Not saved.
        self.changes = 0
        self._groups: dict[str, Group] = {}
        self._generation = 0
        self._locked: set[str] = set()
        self._handlers: dict[int, Callable[[Entry, Context], Result]] = {
            Kind.GROUP_JOIN: self._join,
            Kind.GROUP_LEAVE: self._leave,
            Kind.GROUP_COMMIT: self._commit,
            Kind.GROUP_DELETE: self._delete,
        }

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[str, Group]]:
        return iter(self._groups.items())

    def get(self, name: str) -> Group | None:
        """The group of this name, or None."""
        return self._groups.get(name)

    def slowest(self) -> tuple[int, str] | None:
        """(position, name) of the group with the lowest position; None without groups."""
        return min(((group.position, name) for name, group in self._groups.items()), default=None)

    def apply(self, entry: Entry, context: Context) -> Result:
        return self._handlers[entry.kind](entry, context)

    def _join(self, entry: Entry, context: Context) -> Result:
        command = _read_join(entry)
        if command is None:
            return _BAD
        group = self._groups.get(command.group)
        if group is None:
            offsets = context.offsets
            group = Group(0, min(max(command.position, offsets.start), offsets.end), ())
        if command.member not in group.members:
            group = self._change(command.group, group, (*group.members, command.member))
        return Joined(group.generation, group.members[0], group.members, group.position)

    def _leave(self, entry: Entry, context: Context) -> Result:
        command = _read_leave(entry)
        if command is None:
            return _BAD
        group = self._groups.get(command.group)
        if group is None:
            return _NO_GROUP
        if command.member in group.members:
            rest = tuple(member for member in group.members if member != command.member)
            group = self._change(command.group, group, rest)
        return Left(group.generation, group.leader, group.members)

    def _change(self, name: str, group: Group, members: tuple[str, ...]) -> Group:
        self._generation += 1
        self.changes += 1
        changed = Group(self._generation, group.position, tuple(sorted(members)))
        self._groups[name] = changed
        return changed

    def _commit(self, entry: Entry, context: Context) -> Result:
        command = _read_commit(entry)
        if command is None:
            return _BAD
        verdict = self.judge(command, context)
        if verdict is not None:
            return verdict
        self.move(command)
        return Committed(command.after)

    def judge(self, command: GroupCommit, context: Context, before: int | None = None) -> Rejected | None:
        """The rejection of this move, or None. With `before`, as if the group were there already. Changes
        nothing."""
        group = self._groups.get(command.group)
        if group is None:
            return _NO_GROUP
        if command.group in self._locked:
            return Rejected(Reason.LOCKED)
        position = group.position if before is None else before
        if command.member not in group.members:
            return Rejected(Reason.NOT_MEMBER)
        if command.generation != group.generation:
            return Rejected(Reason.OTHER_GENERATION, group.generation, command.generation)
        if command.before != position:
            return Rejected(Reason.MOVED, position, command.before)
        if command.after < position:
            return Rejected(Reason.BACKWARD, position, command.after)
        end = context.offsets.end
        if command.after > end:
            return Rejected(Reason.BEYOND_END, end, command.after)
        term = context.part(Terms).runs.at(command.after - 1) if command.term else 0
        return Rejected(Reason.OTHER_LOG, position, command.after) if term not in (0, command.term) else None

    def move(self, command: GroupCommit) -> None:
        """Move the group; `judge` must have given None."""
        group = self._groups[command.group]
        self._groups[command.group] = Group(group.generation, command.after, group.members)

    def lock(self, name: str) -> None:
        """Lock the group's position for a prepared transaction."""
        assert name in self._groups and name not in self._locked
        self._locked.add(name)

    def unlock(self, name: str) -> None:
        self._locked.remove(name)

    def _delete(self, entry: Entry, context: Context) -> Result:
        command = _read_delete(entry)
        if command is None:
            return _BAD
        if command.group in self._locked:
            return Rejected(Reason.LOCKED)
        self.changes += 1
        return Deleted(self._groups.pop(command.group, None) is not None)

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def digest(self) -> bytes:
        return _encode(_State(self._generation, dict(sorted(self._groups.items())), sorted(self._locked)))

    def load(self, state: bytes) -> None:
        try:
            saved = _decode(state)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadState(f"the saved groups cannot be read: {error}") from error
        if any(group.generation > saved.generation for group in saved.groups.values()):
            raise BadState("a saved group has a generation that was never assigned")
        if not saved.groups.keys() >= set(saved.locked):
            raise BadState("a group that does not exist is saved as locked")
        self._groups, self._generation = saved.groups, saved.generation
        self._locked = set(saved.locked)
