"""A member that is told what to do: each guard, each answer given twice, each stale message let go."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hawser.log.entry import NO_ENTRY, Entry, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Abandoned,
    Append,
    Apply,
    Effect,
    Halt,
    Installed,
    Persist,
    Promise,
    Propose,
    Pull,
    Read,
    Reason,
    Refuse,
    Retire,
    Send,
    Tick,
    Truncate,
)
from hawser.log.protocol.messages import Role
from tests.scripts.bare import Bare, epochs_of, log_of


def only(effects: list[Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


# Epochs and vows.


def test_a_new_member_is_no_member() -> None:
    assert Bare().node.role is Role.NOT_MEMBER
    assert Bare(promise=Promise(3)).node.role is Role.FENCED


def test_fence_persists_the_epoch_before_it_answers() -> None:
    bare = Bare()
    effects = bare.hear("o", m.FenceRequest(1))
    assert effects == [Persist(Promise(1)), Send("o", m.FenceResponse(1, NO_ENTRY))]
    assert bare.node.role is Role.FENCED


def test_fence_twice_is_answered_twice_and_a_lower_one_not_at_all() -> None:
    bare = Bare(entries=log_of(1, 1))
    assert bare.told("o", m.FenceRequest(3)) == [m.FenceResponse(3, EntryId(1, 2))]
    assert bare.hear("o", m.FenceRequest(3)) == [Send("o", m.FenceResponse(3, EntryId(1, 2)))]
    assert bare.told("p", m.FenceRequest(3)) == [m.FenceResponse(3, EntryId(1, 2))]
    assert bare.hear("o", m.FenceRequest(2)) == []
    assert bare.persisted == Promise(3)


def test_fence_waits_for_the_disk() -> None:
    """A head that is not on disk would be counted on and could be lost."""
    bare = Bare(promise=Promise(1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, tuple(log_of(1)), 0))
    assert only(bare.hear("o", m.FenceRequest(2)), Send) == []
    assert only(bare.hear("p", m.FenceRequest(2)), Send) == []
    answer = m.FenceResponse(2, EntryId(1, 1))
    assert only(bare.sync(), Send) == [Send("o", answer), Send("p", answer)]


@given(some.lists(some.integers(1, 6), max_size=30))
def test_the_epoch_never_goes_back(epochs: list[int]) -> None:
    """Statement 1: whatever comes in whatever order, and across restarts."""
    bare = Bare()
    highest = 0
    for number, epoch in enumerate(epochs):
        message: m.Message = m.FenceRequest(epoch) if number % 2 else m.HeartbeatRequest(epoch, 1, 0)
        bare.hear("x", message)
        highest = max(highest, epoch)
        assert bare.node.epoch == bare.persisted.epoch == highest
        if number % 5 == 4:
            bare = Bare(promise=bare.persisted)


# Leading begins once.


def test_leads_only_in_the_epoch_it_was_fenced_for() -> None:
    bare = Bare()
    lead = m.BecomeLeaderRequest(2, ("n1",), {})
    assert bare.hear("o", lead) == []
    bare.hear("o", m.FenceRequest(1))
    assert bare.hear("o", lead) == []
    bare.hear("o", m.FenceRequest(3))
    assert bare.hear("o", lead) == []
    assert bare.node.role is Role.FENCED


def test_leads_only_as_a_member() -> None:
    bare = Bare()
    bare.hear("o", m.FenceRequest(1))
    assert bare.hear("o", m.BecomeLeaderRequest(1, ("n2", "n3"), {})) == []


def test_told_twice_it_begins_once() -> None:
    bare = Bare()
    bare.hear("o", m.FenceRequest(1))
    lead = m.BecomeLeaderRequest(1, ("n1", "n2"), {"n2": NO_ENTRY})
    first = bare.hear("o", lead)
    assert first[0] == Persist(Promise(1, led=True))
    assert len(only(first, Append)) == 1
    assert bare.hear("o", lead) == [Send("o", m.BecomeLeaderResponse(1))]
    assert len(bare.log) == 1


def test_a_restarted_leader_never_leads_that_epoch_again() -> None:
    """Statement 2: it does not answer its fence either, so nobody chooses it."""
    bare = Bare()
    bare.lead(1, ("n1",), {})
    again = Bare(entries=bare.log, promise=bare.persisted)
    assert again.node.role is Role.FENCED
    assert again.hear("o", m.FenceRequest(1)) == []
    assert again.hear("o", m.BecomeLeaderRequest(1, ("n1",), {})) == []
    assert again.hear("n2", m.HeartbeatRequest(1, 1, 0)) == []
    assert again.told("o", m.FenceRequest(2)) == [m.FenceResponse(2, EntryId(1, 1))]


def test_a_follower_does_not_begin_to_lead() -> None:
    bare = Bare(promise=Promise(1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, (), 0))
    assert bare.node.role is Role.FOLLOWER
    assert bare.hear("o", m.BecomeLeaderRequest(1, ("n1", "n2"), {})) == []


def test_who_does_not_lead_refuses_clients() -> None:
    bare = Bare(promise=Promise(1))
    assert bare.propose("a", "b") == [Refuse("a", Reason.NOT_LEADER), Refuse("b", Reason.NOT_LEADER)]
    assert bare.step(Read("r")) == [Refuse("r", Reason.NOT_LEADER)]
    assert bare.step(Tick()) == []
    assert bare.step(Propose(())) == []


# Following.


def test_entries_are_acknowledged_when_they_are_on_disk() -> None:
    bare = Bare(promise=Promise(1))
    entries = tuple(log_of(1, 1))
    assert bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, entries, 0)) == [Append(entries)]
    assert bare.sync() == [Send("n2", m.AddEntriesResponse(1, EntryId(1, 2), True, 1))]


def test_entries_again_are_acknowledged_again_and_not_written() -> None:
    bare = Bare(promise=Promise(1))
    entries = tuple(log_of(1, 1))
    request = m.AddEntriesRequest(1, NO_ENTRY, entries, 0)
    bare.hear("n2", request)
    bare.sync()
    have = m.AddEntriesResponse(1, EntryId(1, 2), True, 1)
    assert bare.hear("n2", request) == [Send("n2", have)]
    older = m.AddEntriesRequest(1, NO_ENTRY, entries[:1], 0)
    assert bare.hear("n2", older) == [Send("n2", have)]


def test_an_overlap_writes_only_what_is_new() -> None:
    bare = Bare(promise=Promise(1))
    entries = tuple(log_of(1, 1, 1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, entries[:2], 0))
    effects = bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, entries, 0))
    assert only(effects, Append) == [Append(entries[2:])]


def test_a_gap_is_answered_with_the_head() -> None:
    bare = Bare(entries=log_of(1))
    entries = tuple(log_of(1, 1, 1)[2:])
    request = m.AddEntriesRequest(1, EntryId(1, 2), entries, 3)
    assert bare.told("n2", request) == [m.AddEntriesResponse(1, EntryId(1, 1), False, 1)]
    assert bare.node.commit == 0


def test_entries_of_a_higher_epoch_fence_first() -> None:
    bare = Bare(entries=log_of(1))
    entry = Entry.make(3, 2)
    effects = bare.hear("n3", m.AddEntriesRequest(3, EntryId(1, 1), (entry,), 0))
    assert effects == [Persist(Promise(3)), Append((entry,))]
    assert bare.node.role is Role.FOLLOWER


def test_entries_of_a_lower_epoch_are_told_so() -> None:
    bare = Bare(entries=log_of(1), promise=Promise(4))
    request = m.AddEntriesRequest(1, EntryId(1, 1), (Entry.make(1, 2),), 2)
    assert bare.told("n2", request) == [m.AddEntriesResponse(1, NO_ENTRY, False, 4)]
    assert bare.told("n2", m.HeartbeatRequest(1, 7, 2)) == [m.HeartbeatResponse(1, 7, None, 0, 4)]
    assert len(bare.log) == 1 and bare.node.commit == 0


def test_another_entry_of_the_same_name_halts() -> None:
    bare = Bare(entries=log_of(1, 1), promise=Promise(2))
    effects = bare.hear("n2", m.AddEntriesRequest(2, EntryId(1, 1), (Entry.make(2, 2),), 0))
    assert isinstance(effects[-1], Halt)
    assert "2:2" in effects[-1].reason
    assert bare.step(Tick()) == []


# The commit index.


def test_commit_is_bounded_by_what_matches_the_leader() -> None:
    """A tail of an earlier epoch may be about to be cut: it is not committed by a number."""
    bare = Bare(entries=log_of(1, 1, 1), promise=Promise(2))
    bare.hear("n2", m.HeartbeatRequest(2, 1, 3))
    assert bare.node.commit == 0
    bare.hear("n2", m.AddEntriesRequest(2, EntryId(1, 2), (), 3))
    assert bare.node.commit == 2


def test_apply_waits_for_the_own_disk() -> None:
    bare = Bare(promise=Promise(1))
    effects = bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, tuple(log_of(1, 1)), 2))
    assert bare.node.commit == 2 and only(effects, Apply) == []
    assert only(bare.sync(), Apply) == [Apply(2)]


@given(some.lists(some.integers(0, 12), max_size=20))
def test_the_commit_index_never_goes_back(commits: list[int]) -> None:
    """Statement 8; `Bare` checks it at each step, and that nothing beyond it is applied."""
    bare = Bare(promise=Promise(1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, tuple(log_of(*[1] * 8)), 0))
    bare.sync()
    highest = 0
    for number, commit in enumerate(commits):
        if number % 2:
            bare.hear("n2", m.HeartbeatRequest(1, number, commit))
        else:
            bare.hear("n2", m.AddEntriesRequest(1, EntryId(1, 8), (), commit))
        highest = max(highest, min(commit, 8))
        assert bare.node.commit == bare.node.applied == highest


# Truncation.


def test_truncates_the_head_it_was_asked_about() -> None:
    bare = Bare(entries=log_of(1, 1, 2, 2), promise=Promise(5))
    request = m.TruncateRequest(5, EntryId(2, 4), EntryId(1, 2))
    assert bare.hear("n2", request) == [
        Truncate(EntryId(1, 2)),
        Send("n2", m.TruncateResponse(5, EntryId(1, 2))),
    ]
    assert bare.hear("n2", request) == [Send("n2", m.TruncateResponse(5, EntryId(1, 2)))]


def test_a_late_truncation_cuts_nothing() -> None:
    bare = Bare(entries=log_of(1, 1), promise=Promise(5))
    request = m.TruncateRequest(5, EntryId(1, 2), EntryId(1, 1))
    bare.hear("n2", request)
    bare.hear("n2", m.AddEntriesRequest(5, EntryId(1, 1), (Entry.make(5, 2),), 0))
    bare.sync()
    assert bare.told("n2", request) == [m.TruncateResponse(5, EntryId(5, 2))]
    assert [entry.id for entry in bare.log] == [(1, 1), (5, 2)]


def test_a_target_that_is_not_in_this_log_cuts_below_it() -> None:
    """D1: what is left need not be the leader's, and the answer says where it ends."""
    bare = Bare(entries=log_of(1, 2, 4), promise=Promise(5))
    request = m.TruncateRequest(5, EntryId(4, 3), EntryId(3, 2))
    assert bare.told("n2", request) == [m.TruncateResponse(5, EntryId(2, 2))]


def test_a_truncation_of_a_lower_epoch_is_ignored() -> None:
    bare = Bare(entries=log_of(1, 1), promise=Promise(5))
    assert bare.hear("n2", m.TruncateRequest(4, EntryId(1, 2), EntryId(1, 1))) == []


@pytest.mark.parametrize("target", [0, 1, 2])
def test_what_is_committed_is_never_cut(target: int) -> None:
    """Statement 11."""
    bare = Bare(promise=Promise(1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, tuple(log_of(1, 1, 1, 1)), 3))
    bare.sync()
    effects = bare.hear("n3", m.TruncateRequest(2, EntryId(1, 4), EntryId(min(target, 1), target)))
    halts = only(effects, Halt)
    assert len(halts) == 1 and str(target) in halts[0].reason and "3" in halts[0].reason
    assert bare.node.halted and len(bare.log) == 4
    assert bare.hear("o", m.FenceRequest(9)) == []


# Snapshots.


def test_an_operator_makes_a_member_by_a_snapshot() -> None:
    bare = Bare("n4")
    request = m.SnapshotRequest(2, "n1")
    promise = Promise(2, False, installed=2)
    assert bare.hear("o", request) == [Persist(Promise(2)), Pull("n1", promise, -1)]
    assert bare.hear("o", request) == []
    bare.log = log_of(1, 1, 2)
    effects = bare.step(Installed(promise, epochs_of(bare.log)))
    assert effects == [Send("o", m.SnapshotResponse(2, EntryId(2, 3)))]
    assert bare.hear("o", request) == effects
    assert bare.node.commit == bare.node.applied == 3


def test_a_pull_that_ended_in_vain_begins_again() -> None:
    bare = Bare("n4")
    bare.hear("o", m.SnapshotRequest(2, "n1"))
    assert bare.step(Abandoned()) == []
    assert bare.hear("o", m.SnapshotRequest(2, "n1")) == [Pull("n1", Promise(2, False, installed=2), -1)]


def test_a_higher_epoch_ends_a_pull() -> None:
    bare = Bare("n4")
    bare.hear("o", m.SnapshotRequest(2, "n1"))
    effects = bare.hear("o", m.FenceRequest(3))
    assert effects[0] == Pull(None, Promise(2))
    assert bare.node.pulling is None
    assert bare.hear("o", m.SnapshotRequest(2, "n1")) == []


def test_one_that_pulls_follows_nobody() -> None:
    """A log that is about to be replaced is no log to follow with."""
    bare = Bare(entries=log_of(1), promise=Promise(2))
    bare.hear("n2", m.SnapshotNeeded(2, EntryId(1, 1)))
    assert bare.node.pulling == "n2"
    assert bare.hear("n2", m.AddEntriesRequest(2, EntryId(1, 1), (Entry.make(2, 2),), 0)) == []
    assert bare.told("n2", m.HeartbeatRequest(2, 1, 0)) == [m.HeartbeatResponse(2, 1, None, 0, 2)]


def test_a_snapshot_that_is_not_needed_any_more() -> None:
    bare = Bare(entries=log_of(1, 1), promise=Promise(2))
    assert bare.told("n2", m.SnapshotNeeded(2, EntryId(1, 1))) == [m.TruncateResponse(2, EntryId(1, 2))]
    assert bare.node.pulling is None


def test_a_snapshot_behind_what_is_committed_halts() -> None:
    bare = Bare(promise=Promise(1))
    bare.hear("n2", m.AddEntriesRequest(1, NO_ENTRY, tuple(log_of(1, 1, 1)), 3))
    bare.sync()
    bare.hear("n2", m.SnapshotNeeded(1, EntryId(1, 3)))
    effects = bare.node.step(Installed(Promise(1), epochs_of(log_of(1))))
    assert isinstance(effects[-1], Halt)


# Care.


def test_retires_unless_it_knows_better() -> None:
    bare = Bare(promise=Promise(3))
    assert bare.hear("o", m.RetireRequest(2)) == []
    assert bare.hear("o", m.RetireRequest(3)) == [Retire(), Send("o", m.RetireResponse(3))]
    assert bare.node.halted == "retired"
    assert bare.hear("o", m.RetireRequest(3)) == []


def test_a_leader_does_not_retire() -> None:
    bare = Bare()
    bare.lead(1, ("n1",), {})
    assert bare.hear("o", m.RetireRequest(1)) == []


def test_status_is_answered_in_any_role_and_changes_nothing() -> None:
    bare = Bare()
    before = bare.told("o", m.StatusRequest(9))
    assert bare.told("o", m.StatusRequest(9)) == before
    assert isinstance(before[0], m.StatusResponse) and before[0].role is Role.NOT_MEMBER
    bare.lead(1, ("n1", "n2"), {})
    status = bare.told("o", m.StatusRequest(9))[0]
    assert isinstance(status, m.StatusResponse)
    assert (status.epoch, status.role, status.led) == (1, Role.LEADER, True)
    assert status.members == ("n1", "n2") and status.lag == {"n2": 1}
