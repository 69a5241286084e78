"""Defects to plant into the protocol, the operator, the replica and the disk: each must be found.

D1 to D8 are those of the protocol as it was first written down (`docs/seeds.md`); the others are what a
hurried hand would do.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.entry import NO_ENTRY, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Promise, Serve
from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.messages import Change, Member, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status, majority
from hawser.log.protocol.node import Node
from hawser.log.protocol.operator import Operator
from hawser.log.protocol.tables import Activity, CursorState
from hawser.log.replica import Replica
from hawser.log.snapshot_transfer import Pulling
from hawser.log.state.producers import Producers
from hawser.testing.disk import SimDisk
from hawser.testing.store import SimStore

__all__ = ["DEFECTS", "Plant"]

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledged_before_synced(patch: pytest.MonkeyPatch) -> None:
    original = Node.append

    def append(self: Node, entries: Any) -> None:
        original(self, entries)
        self.synced = self.head.index

    patch.setattr(Node, "append", append)


def sync_that_lies(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SimDisk, name: str) -> None:
        self.size(name)

    patch.setattr(SimDisk, "sync", sync)


def epoch_not_durable(patch: pytest.MonkeyPatch) -> None:
    original = Replica._persist

    def persist(self: Replica, effect: Any) -> None:
        if effect.promise.epoch % 2:
            original(self, effect)

    patch.setattr(Replica, "_persist", persist)


def _commit_majority(leadership: Leadership, needed: int, own_epoch_only: bool) -> None:
    node = leadership._node
    attached = [each for each in leadership.cursors.values() if each.state is CursorState.ATTACHED]
    counts = sorted([node.synced, *(cursor.confirmed for cursor in attached)], reverse=True)
    if len(counts) < needed:
        return
    index = counts[needed - 1]
    if index > node.commit and (not own_epoch_only or node.epochs.epoch_of(index) == node.epoch):
        node.commit_through(index)


def prior_epochs_counted(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Leadership) -> None:
        _commit_majority(self, majority(len(self.members)), own_epoch_only=False)

    patch.setattr(Leadership, "advance", advance)


def removed_member_counted(patch: pytest.MonkeyPatch) -> None:
    """Its vote is still needed, or given by its stead-in, after it went."""

    def advance(self: Leadership) -> None:
        fewer = self.change is not None and self.change.old is not None
        _commit_majority(self, max(1, majority(len(self.members)) - fewer), own_epoch_only=True)

    patch.setattr(Leadership, "advance", advance)


def never_admitted_member_counted(patch: pytest.MonkeyPatch) -> None:
    original = Leadership._prepare

    def prepare(self: Leadership, sender: str, message: m.PrepareReconfigurationRequest) -> None:
        original(self, sender, message)
        if self.change == message.change and message.change.new is not None:
            self._change_members(message.change, NO_ENTRY)

    patch.setattr(Leadership, "_prepare", prepare)


def one_round_of_truncation(patch: pytest.MonkeyPatch) -> None:
    """D1"""

    def truncated(self: Leadership, sender: str, message: m.TruncateResponse) -> None:
        cursor = self.cursors.get(sender)
        if message.epoch == self._node.epoch and cursor is not None:
            if cursor.state is CursorState.TRUNCATE:
                cursor.become(CursorState.ATTACHED)
                cursor.confirmed = cursor.pushed = min(message.head.index, self._node.head.index)
                self.advance()
            else:
                self._meet(sender, message.head)

    patch.setattr(Leadership, "_truncated", truncated)


def count_in_place_of_members(patch: pytest.MonkeyPatch) -> None:
    """D2: the replication factor a leader was born with."""
    original = Leadership.__init__
    born: dict[int, int] = {}

    def begin(self: Leadership, node: Node, members: tuple[Member, ...]) -> None:
        original(self, node, members)
        born[id(self)] = len(members)

    def advance(self: Leadership) -> None:
        _commit_majority(self, majority(born[id(self)]), own_epoch_only=True)

    patch.setattr(Leadership, "__init__", begin)
    patch.setattr(Leadership, "advance", advance)


def completion_without_compare(patch: pytest.MonkeyPatch) -> None:
    """D3"""
    original = SimStore._write

    def write(self: SimStore, operator: str, metadata: Metadata, answer: Any) -> None:
        old = self.metadata
        if metadata.status is Status.STEADY and metadata.version != old.version + 1 and metadata != old:
            self.metadata = metadata
            for observe in self.observers:
                observe(old, metadata, operator)
        original(self, operator, metadata, answer)

    patch.setattr(SimStore, "_write", write)


def commit_goes_back(patch: pytest.MonkeyPatch) -> None:
    """D4: recomputed when the members change, from entries of this epoch only."""
    original = Leadership._change_members

    def change_members(self: Leadership, change: Change, head: EntryId) -> None:
        node = self._node
        if node.epochs.epoch_of(node.commit) != node.epoch:
            node.commit = 0
        original(self, change, head)

    patch.setattr(Leadership, "_change_members", change_members)


def contraction_unguarded(patch: pytest.MonkeyPatch) -> None:
    """D5"""
    patch.setattr(Leadership, "_can_lose_one", lambda self: True)


def acknowledgements_of_a_new_epoch_ignored(patch: pytest.MonkeyPatch) -> None:
    """D6: after a change of the epoch nothing counts any more."""
    original = Leadership._added_entries

    def added_entries(self: Leadership, sender: str, message: m.AddEntriesResponse) -> None:
        if self._node.epoch == self.since:
            original(self, sender, message)

    patch.setattr(Leadership, "_added_entries", added_entries)


def old_ensemble_fenced(patch: pytest.MonkeyPatch) -> None:
    """D7"""
    patch.setattr(Metadata, "fencing_ensemble", property(lambda self: self.members))


def late_follower_forgotten(patch: pytest.MonkeyPatch) -> None:
    """D8a: who was not there at the election stays outside until the next one."""
    original = Leadership._meet

    def meet(self: Leadership, member: Member, head: EntryId) -> None:
        cursor = self.cursors.get(member)
        if (
            cursor is not None
            and cursor.state is CursorState.UNKNOWN
            and self._node.head.index > self._began_at
        ):
            return
        original(self, member, head)

    patch.setattr(Leadership, "_meet", meet)


def repeated_fence_unanswered(patch: pytest.MonkeyPatch) -> None:
    """D8b"""
    original = Node._fence

    def fence(self: Node, sender: str, message: m.FenceRequest) -> None:
        if message.epoch > self.epoch:
            original(self, sender, message)

    patch.setattr(Node, "_fence", fence)


def no_entry_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """D8c: an idle shard does not commit its past."""

    def begin(self: Leadership, heads: dict[Member, EntryId]) -> None:
        for follower, head in heads.items():
            self._meet(follower, head)

    patch.setattr(Leadership, "begin", begin)


def contraction_rolled_forward(patch: pytest.MonkeyPatch) -> None:
    """The seed, taken by its letter."""

    def decided_change(self: Metadata) -> Change | None:
        return self.change if self.phase is Phase.COMMIT else None

    patch.setattr(Metadata, "decided_change", property(decided_change))


def leader_resumes_its_epoch(patch: pytest.MonkeyPatch) -> None:
    original = Node._become_leader

    def become_leader(self: Node, sender: str, message: m.BecomeLeaderRequest) -> None:
        if self.role is Role.FENCED and self.promise.led:
            self.promise = Promise(self.promise.epoch, False, self.promise.installed)
        original(self, sender, message)

    patch.setattr(Node, "_become_leader", become_leader)


def truncation_without_comparing(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: Node, sender: str, message: m.TruncateRequest) -> None:
        if not self._follow(message.epoch):
            return
        if message.target < self.head:
            self._cut(message.target)
        if self.synced == self.head.index:
            self.send(sender, m.TruncateResponse(self.epoch, self.head))

    patch.setattr(Node, "_truncate", truncate)


def read_without_majority(patch: pytest.MonkeyPatch) -> None:
    def read(self: Leadership, tag: Any) -> None:
        self._node.emit(Serve(tag))

    patch.setattr(Leadership, "read", read)


def longest_log_leads(patch: pytest.MonkeyPatch) -> None:
    """The leader is chosen by index; the epoch of the last entry is not looked at."""
    original = Operator._choose

    def choose(self: Operator) -> None:
        fencing = self.activity is Activity.FENCING
        original(self)
        if fencing and self.activity is Activity.APPOINTING:
            assert self.metadata is not None
            candidates = [member for member in self.metadata.final_ensemble if member in self._heads]
            self._chosen = max(candidates, key=lambda member: self._heads[member].index)
            self._effects.clear()
            self._ask()

    patch.setattr(Operator, "_choose", choose)


def operators_that_sign_alike(patch: pytest.MonkeyPatch) -> None:
    original = Operator.__init__

    def begin(self: Operator, name: str, patience: int) -> None:
        original(self, "operator", patience)

    patch.setattr(Operator, "__init__", begin)


def commit_beyond_what_matches(patch: pytest.MonkeyPatch) -> None:
    original = Node._heartbeat

    def heartbeat(self: Node, sender: str, message: m.HeartbeatRequest) -> None:
        original(self, sender, message)
        if message.epoch == self.epoch and self.leadership is None:
            self.commit_through(min(message.commit, self.head.index))

    patch.setattr(Node, "_heartbeat", heartbeat)


def new_member_without_the_past(patch: pytest.MonkeyPatch) -> None:
    """A snapshot for a new member before an entry of the change's epoch is applied (decision 0028)."""
    patch.setattr(Leadership, "ready", property(lambda self: True))


def repeated_batch_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "judge", lambda self, name, incarnation, sequence: None)


def _reword(patch: pytest.MonkeyPatch, owner: type, name: str, old: str, new: str) -> None:
    """The same method with a few words of it replaced."""
    method = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(method))
    assert source.count(old) == 1, f"{owner.__name__}.{name} has not once: {old}"
    made: dict[str, Any] = {}
    exec(source.replace(old, new), vars(sys.modules[owner.__module__]), made)
    patch.setattr(owner, name, made[name])


def acknowledgements_of_another_epoch_counted(patch: pytest.MonkeyPatch) -> None:
    _reword(patch, Leadership, "_added_entries", " or message.epoch != node.epoch", "")


def read_before_it_is_applied(patch: pytest.MonkeyPatch) -> None:
    """The leader's own disk is behind what it committed, and followers have shown it already."""
    old = "if self._node.applied < max(commit for _, commit in self._reads_in_flight):"
    _reword(patch, Leadership, "_serve", old, "if False:")


def second_request_pulls_again(patch: pytest.MonkeyPatch) -> None:
    _reword(patch, Node, "_snapshot", "if self.promise.installed == self.epoch:", "if False:")


def snapshot_over_newer_entries(patch: pytest.MonkeyPatch) -> None:
    _reword(patch, Pulling, "__init__", "self._above = above", "self._above = -1")


def contraction_guarded_by_commit_only(patch: pytest.MonkeyPatch) -> None:
    """What earlier leaders committed is not asked for."""
    _reword(patch, Leadership, "_can_lose_one", "max(node.commit, self._began_at)", "node.commit")


def dropped_member_not_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Operator, "_without_new", lambda self: self.metadata.removed)


def halted_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "abandon", lambda self: [])


DEFECTS: dict[str, Plant] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        acknowledged_before_synced,
        sync_that_lies,
        epoch_not_durable,
        prior_epochs_counted,
        removed_member_counted,
        never_admitted_member_counted,
        one_round_of_truncation,
        count_in_place_of_members,
        completion_without_compare,
        commit_goes_back,
        contraction_unguarded,
        acknowledgements_of_a_new_epoch_ignored,
        old_ensemble_fenced,
        late_follower_forgotten,
        repeated_fence_unanswered,
        no_entry_of_its_own,
        contraction_rolled_forward,
        leader_resumes_its_epoch,
        truncation_without_comparing,
        read_without_majority,
        longest_log_leads,
        operators_that_sign_alike,
        commit_beyond_what_matches,
        new_member_without_the_past,
        repeated_batch_taken,
        acknowledgements_of_another_epoch_counted,
        read_before_it_is_applied,
        second_request_pulls_again,
        snapshot_over_newer_entries,
        contraction_guarded_by_commit_only,
        dropped_member_not_retired,
        halted_without_a_word,
    )
}
