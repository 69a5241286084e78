"""What a member did in one step, as facts: the difference between two glances at it."""

from collections.abc import Iterator
from typing import NamedTuple

from hawser.log.entry import EntryId
from hawser.log.protocol.messages import Member, Role
from hawser.log.protocol.tables import CursorState
from hawser.log.replica import Replica

from .words import log_words

__all__ = ["Glance", "differences", "glance"]


class Glance(NamedTuple):
    """All of a member that a script can see."""

    role: Role
    epoch: int
    head: EntryId
    synced: int
    commit: int
    applied: int
    members: tuple[Member, ...]
    cursors: dict[Member, tuple[CursorState, int]]
    pulling: Member | None
    installed: int
    handing_over: bool


def glance(replica: Replica) -> Glance:
    node = replica.node
    leading = node.leadership
    return Glance(
        node.role,
        node.epoch,
        node.head,
        node.synced,
        node.commit,
        node.applied,
        leading.members if leading else (),
        {name: (each.state, each.confirmed) for name, each in leading.cursors.items()} if leading else {},
        node.pulling,
        node.promise.installed,
        leading is not None and leading.successor is not None,
    )


def differences(replica: Replica, before: Glance) -> Iterator[str]:
    """One line a fact, each beginning with the member's name."""
    after = glance(replica)
    name = replica.member
    yield from (f"{name} {fact}" for fact in _standing(before, after))
    if after.pulling and after.pulling != before.pulling:
        yield f"{name} pulls a snapshot from {after.pulling}"
    if before.pulling and not after.pulling and after.head != before.head:
        yield f"{name} installs the snapshot, head {after.head}"
    elif after.head < before.head:
        yield f"{name} cuts its log from {before.head} to {after.head}"
    elif after.head != before.head and (after.role is Role.LEADER or after.synced < after.head.index):
        first = max(before.head.index + 1, replica.journal.first)
        written = log_words(replica.journal.read(first, after.head.index, 1 << 20))
        yield f"{name} writes {written}" + ("" if after.synced == after.head.index else ", not on disk yet")
    yield from (f"{name} {fact}" for fact in _cursors(before, after, replica))
    yield from (f"{name} {fact}" for fact in _progress(before, after))


def _standing(before: Glance, after: Glance) -> Iterator[str]:
    """Role, epoch and members."""
    if after.role is Role.LEADER:
        if before.role is not Role.LEADER:
            yield f"leads {', '.join(after.members)} in epoch {after.epoch}"
        elif after.epoch != before.epoch:
            yield f"goes on leading in epoch {after.epoch}"
        elif after.members != before.members:
            yield f"now leads {', '.join(after.members)}"
        if after.handing_over != before.handing_over:
            yield "takes no more writes" if after.handing_over else "takes writes again"
    elif (after.role, after.epoch) != (before.role, before.epoch):
        if after.role is Role.FOLLOWER:
            yield f"follows in epoch {after.epoch}, head {after.head}"
        elif after.epoch == before.epoch:
            yield f"steps down, head {after.head}"
        else:
            yield f"is fenced in epoch {after.epoch}, head {after.head}"


def _cursors(before: Glance, after: Glance, replica: Replica) -> Iterator[str]:
    for member, (state, confirmed) in after.cursors.items():
        old = before.cursors.get(member, (CursorState.UNKNOWN, 0))[0]
        if state is CursorState.ATTACHED and old is not state:
            yield f"attaches {member} at {replica.node.epochs.id_at(confirmed)}"
        elif state is CursorState.REMOVING and old is not state:
            yield f"sends nothing more to {member}"
        elif old is CursorState.REMOVING and state is not old:
            yield f"takes {member} back"


def _progress(before: Glance, after: Glance) -> Iterator[str]:
    if after.commit > before.commit:
        behind = "" if after.applied == after.commit else f", has applied {after.applied}"
        yield f"commits {after.commit}{behind}"
    elif after.commit < before.commit:
        yield f"TAKES BACK its commit of {before.commit} to {after.commit}"
    elif after.applied > before.applied:
        yield f"applies {after.applied}"
