"""A leader: cursors, commit, reads, and its part in reconfigurations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hawser.log.entry import NO_ENTRY, Entry, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Answer,
    Apply,
    Effect,
    Persist,
    Promise,
    Read,
    Reason,
    Refuse,
    Send,
    Serve,
    Tick,
)
from hawser.log.protocol.messages import Change, ChangeKind, Role
from hawser.log.protocol.node import Limits
from hawser.log.protocol.tables import CursorState
from tests.scripts.bare import Bare, log_of

THREE = ("n1", "n2", "n3")
SWAP = Change(ChangeKind.SWAP, "n3", "n4")
EXPAND = Change(ChangeKind.EXPAND, None, "n4")
CONTRACT = Change(ChangeKind.CONTRACT, "n3", None)


def only(effects: list[Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[Effect], to: str) -> list[m.Message]:
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.to == to]


def cursor(bare: Bare, member: str) -> tuple[CursorState, int]:
    assert bare.node.leadership is not None
    found = bare.node.leadership.cursors[member]
    return found.state, found.confirmed


def have(epoch: int, index: int, of: int | None = None) -> m.AddEntriesResponse:
    return m.AddEntriesResponse(epoch, EntryId(of or epoch, index), True, epoch)


def settled(members: tuple[str, ...] = THREE, limits: Limits | None = None) -> Bare:
    """A leader of epoch 1 whose first entry is everywhere and committed."""
    bare = Bare(limits=limits)
    bare.lead(1, members, dict.fromkeys(members[1:], NO_ENTRY))
    bare.sync()
    for name in members[1:]:
        bare.hear(name, have(1, 1))
    assert bare.node.commit == 1
    return bare


# Commit.


def test_a_majority_of_disks_commits_and_the_own_one_is_one_of_them() -> None:
    bare = settled()
    bare.propose("a")
    assert bare.hear("n2", have(1, 2)) == []
    assert bare.sync() == [Apply(2), Answer("a", 2)]


def test_followers_alone_commit_and_the_leader_applies_later() -> None:
    bare = settled()
    bare.propose("a")
    bare.hear("n2", have(1, 2))
    assert bare.hear("n3", have(1, 2)) == []
    assert (bare.node.commit, bare.node.applied) == (2, 1)
    assert bare.sync() == [Apply(2), Answer("a", 2)]


def test_acknowledgements_are_cumulative_and_may_come_in_any_order() -> None:
    bare = settled()
    bare.propose("a", "b", "c")
    bare.sync()
    bare.hear("n2", have(1, 4))
    assert bare.node.commit == 4
    bare.hear("n2", have(1, 2))
    assert cursor(bare, "n2") == (CursorState.ATTACHED, 4)
    assert bare.node.commit == 4


def test_an_entry_of_an_earlier_epoch_does_not_commit_by_itself() -> None:
    bare = Bare(entries=log_of(1, 1))
    bare.lead(3, THREE, {"n2": EntryId(1, 2)})
    bare.sync()
    assert cursor(bare, "n2") == (CursorState.ATTACHED, 2)
    assert bare.node.commit == 0
    bare.hear("n2", have(3, 3))
    assert bare.node.commit == 3


def test_a_single_member_commits_by_its_own_sync() -> None:
    bare = Bare()
    bare.lead(1, ("n1",), {})
    assert bare.sync() == [Apply(1)]
    assert bare.propose("a")
    assert bare.sync() == [Apply(2), Answer("a", 2)]


def test_who_is_not_a_member_does_not_count() -> None:
    bare = settled()
    bare.propose("a")
    bare.sync()
    bare.hear("n9", have(1, 2))
    bare.hear("n9", m.TruncateResponse(1, EntryId(1, 2)))
    assert bare.node.commit == 1


@given(some.lists(some.tuples(some.sampled_from(["n2", "n3", "n4", "n5"]), some.integers(1, 9)), max_size=40))
def test_commit_is_what_a_majority_has(acknowledged: list[tuple[str, int]]) -> None:
    members = ("n1", "n2", "n3", "n4", "n5")
    bare = settled(members)
    bare.propose(*"abcdefgh")
    bare.sync()
    known = dict.fromkeys(members[1:], 1)
    for name, index in acknowledged:
        bare.hear(name, have(1, index))
        known[name] = max(known[name], index)
        assert bare.node.commit == sorted([9, *known.values()], reverse=True)[2]


# Sending.


def test_what_was_not_answered_is_sent_again_less_and_less_often() -> None:
    bare = settled()
    bare.propose("a")
    again = m.AddEntriesRequest(1, EntryId(1, 1), (bare.log[1],), 1)
    ticks = [number for number in range(1, 20) if again in sent(bare.step(Tick()), "n2")]
    assert ticks == [1, 3, 7, 15]


def test_the_bytes_under_way_are_bounded() -> None:
    bare = settled(limits=Limits(window_bytes=1, message_bytes=1))
    bare.propose("a")
    assert not sent(bare.propose("b"), "n2")
    effects = bare.hear("n2", have(1, 2))
    pushed = [entry.index for message in sent(effects, "n2") for entry in message.entries]  # type: ignore[attr-defined]
    assert pushed == [3]


def test_what_is_proposed_in_one_turn_goes_in_messages_of_bounded_size() -> None:
    """It went into one, whatever its size: above 65 MiB no link took that."""
    frame = len(Entry.make(1, 2, 1, b"a").frame)
    bare = settled(limits=Limits(message_bytes=2 * frame, window_bytes=3 * frame))
    names = "abcdefg"
    messages = [each for each in sent(bare.propose(*names), "n2") if isinstance(each, m.AddEntriesRequest)]
    assert [[entry.index for entry in each.entries] for each in messages] == [[2, 3], [4, 5]]
    assert [each.previous for each in messages] == [EntryId(1, 1), EntryId(1, 3)]
    # The rest goes out as the follower acknowledges.
    bare.sync()
    pushed: list[int] = []
    confirmed = 3
    while bare.node.leadership is not None and confirmed < len(bare.log):
        for each in sent(bare.hear("n2", have(1, confirmed)), "n2"):
            assert isinstance(each, m.AddEntriesRequest)
            assert sum(len(entry.frame) for entry in each.entries) <= 2 * frame
            pushed += [entry.index for entry in each.entries]
        confirmed = max(5, *pushed)
    assert pushed == [6, 7, 8]


def test_an_entry_that_is_larger_than_a_message_goes_alone() -> None:
    bare = settled(limits=Limits(message_bytes=1))
    messages = [each for each in sent(bare.propose("a", "b"), "n2") if isinstance(each, m.AddEntriesRequest)]
    assert [[entry.index for entry in each.entries] for each in messages] == [[2], [3]]


def test_reads_are_bounded() -> None:
    bare = settled(limits=Limits(reads=2))
    for name in "ab":
        assert not only(bare.step(Read(name)), Refuse)
    assert only(bare.step(Read("c")), Refuse) == [Refuse("c", Reason.BUSY)]


def test_the_window_bounds_what_is_under_way() -> None:
    bare = settled(limits=Limits(window=2))
    for name in "abcd":
        bare.propose(name)
    effects = bare.hear("n2", have(1, 2))
    pushed = [entry.index for message in sent(effects, "n2") for entry in message.entries]  # type: ignore[attr-defined]
    assert pushed == [4]


def test_a_leader_without_a_majority_takes_no_more() -> None:
    bare = settled(limits=Limits(uncommitted=2))
    bare.propose("a")
    assert only(bare.propose("b", "c"), Refuse) == [Refuse("b", Reason.BUSY), Refuse("c", Reason.BUSY)]
    assert len(bare.log) == 2


def test_a_rejected_push_goes_on_where_the_follower_is() -> None:
    bare = settled()
    bare.propose("a")
    bare.propose("b")
    effects = bare.hear("n2", m.AddEntriesResponse(1, EntryId(1, 1), False, 1))
    assert sent(effects, "n2") == [m.AddEntriesRequest(1, EntryId(1, 1), tuple(bare.log[1:]), 1)]


# Followers are met.


@pytest.mark.parametrize(
    ("head", "target"),
    [
        (EntryId(3, 9), EntryId(3, 4)),  # too long
        (EntryId(2, 2), EntryId(1, 2)),  # of an epoch that is not here
        (EntryId(1, 5), EntryId(1, 2)),  # of one that is, but went on
        (EntryId(4, 1), EntryId(3, 4)),  # of a later one than the log
    ],
)
def test_a_head_that_is_not_in_the_log_is_to_be_cut(head: EntryId, target: EntryId) -> None:
    bare = Bare(entries=log_of(1, 1, 3, 3))
    effects = bare.lead(5, THREE, {"n2": head})
    assert m.TruncateRequest(5, head, target) in sent(effects, "n2")
    assert cursor(bare, "n2")[0] is CursorState.TRUNCATE


@pytest.mark.parametrize("head", [NO_ENTRY, EntryId(1, 1), EntryId(1, 2), EntryId(3, 4)])
def test_a_head_that_is_in_the_log_is_attached(head: EntryId) -> None:
    bare = Bare(entries=log_of(1, 1, 3, 3))
    bare.lead(5, THREE, {"n2": head})
    assert cursor(bare, "n2") == (CursorState.ATTACHED, head.index)


@some.composite
def two_logs(draw: some.DrawFn) -> tuple[list[int], list[int]]:
    """The epochs of two logs as six leaders in turn may have left them: each writes to one of them, and the
    other one gets a part of that or nothing."""
    logs: list[list[int]] = [[], []]
    for epoch in range(1, 7):
        writer = draw(some.integers(0, 1))
        logs[writer] += [epoch] * draw(some.integers(0, 3))
        if draw(some.booleans()):
            logs[1 - writer] = logs[writer][: draw(some.integers(0, len(logs[writer])))]
    return logs[0], logs[1]


@given(two_logs())
def test_attached_only_where_the_logs_agree(logs: tuple[list[int], list[int]]) -> None:
    """Statement 7: in at most as many rounds as there are epochs, and without cutting what both have."""
    mine, theirs = logs
    shared = 0
    while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
        shared += 1
    leader, follower = Bare("n1", log_of(*mine), Promise(6)), Bare("n2", log_of(*theirs), Promise(6))
    effects = leader.lead(7, ("n1", "n2"), {"n2": follower.node.head})
    rounds = 0
    while cursor(leader, "n2")[0] is CursorState.TRUNCATE:
        rounds += 1
        assert rounds <= 6
        request = [each for each in sent(effects, "n2") if isinstance(each, m.TruncateRequest)][-1]
        effects = leader.hear("n2", follower.told("n1", request)[-1])
    assert cursor(leader, "n2") == (CursorState.ATTACHED, shared)
    assert [entry.epoch for entry in follower.log] == mine[:shared]


def test_what_one_said_before_it_was_attached_does_not_detach_it() -> None:
    bare = settled()
    bare.hear("n2", m.TruncateResponse(1, EntryId(0, 7)))
    assert cursor(bare, "n2") == (CursorState.ATTACHED, 1)


def test_a_follower_behind_the_first_entry_is_told_to_pull() -> None:
    bare = Bare(entries=log_of(1, 1, 1), first=3)
    effects = bare.lead(2, THREE, {"n2": EntryId(1, 1), "n3": EntryId(1, 2)})
    assert m.SnapshotNeeded(2, EntryId(1, 1)) in sent(effects, "n2")
    assert cursor(bare, "n2")[0] is CursorState.SNAPSHOT
    assert cursor(bare, "n3")[0] is CursorState.ATTACHED


def test_a_late_fence_response_is_added_once_and_answered_always() -> None:
    bare = Bare()
    bare.lead(1, THREE, {"n2": NO_ENTRY})
    request = m.AddFollowerRequest(1, "n3", NO_ENTRY)
    assert m.AddFollowerResponse(1, "n3") in bare.told("o", request)
    assert cursor(bare, "n3")[0] is CursorState.ATTACHED
    bare.sync()
    bare.hear("n3", have(1, 1))
    assert bare.told("o", request) == [m.AddFollowerResponse(1, "n3")]
    assert cursor(bare, "n3") == (CursorState.ATTACHED, 1)
    assert bare.told("o", m.AddFollowerRequest(1, "n9", NO_ENTRY)) == []
    assert bare.told("o", m.AddFollowerRequest(2, "n3", NO_ENTRY)) == []


def test_a_heartbeat_meets_who_is_not_known() -> None:
    bare = Bare()
    bare.lead(1, THREE, {})
    bare.hear("n3", m.HeartbeatResponse(1, 0, None, 0, 1))
    assert cursor(bare, "n3")[0] is CursorState.UNKNOWN
    bare.hear("n3", m.HeartbeatResponse(1, 0, NO_ENTRY, 0, 1))
    assert cursor(bare, "n3")[0] is CursorState.ATTACHED


# It ends.


def test_acknowledgements_of_another_epoch_do_not_count() -> None:
    bare = settled()
    bare.hear("o", m.PrepareReconfigurationRequest(2, EXPAND))
    bare.sync()
    bare.hear("n2", have(1, 2, of=2))
    assert bare.node.commit == 1
    bare.hear("n2", have(2, 2))
    assert bare.node.commit == 2


@pytest.mark.parametrize(
    "news", [m.AddEntriesResponse(1, NO_ENTRY, False, 4), m.HeartbeatResponse(1, 3, None, 0, 4)]
)
def test_a_leader_that_was_deposed_steps_down_and_says_unknown(news: m.Message) -> None:
    bare = settled()
    bare.propose("a")
    bare.step(Read("r"))
    effects = bare.hear("n2", news)
    assert effects == [Refuse("a", Reason.UNKNOWN), Refuse("r", Reason.NOT_LEADER)]
    assert bare.node.role is Role.FENCED and bare.node.epoch == 1
    assert bare.propose("b") == [Refuse("b", Reason.NOT_LEADER)]


def test_a_fence_ends_it_too() -> None:
    bare = settled()
    bare.propose("a")
    bare.sync()
    effects = bare.hear("o", m.FenceRequest(2))
    assert effects[-1] == Refuse("a", Reason.UNKNOWN)
    assert effects[:-1] == [Persist(Promise(2)), Send("o", m.FenceResponse(2, EntryId(1, 2)))]


# Reads.


def test_a_read_waits_for_a_heartbeat_that_was_sent_after_it() -> None:
    bare = settled()
    beat = m.HeartbeatRequest(1, 1, 1)
    assert bare.step(Read("r")) == [Send("n2", beat), Send("n3", beat)]
    assert bare.hear("n2", m.HeartbeatResponse(1, 0, None, 0, 1)) == []
    assert bare.hear("n2", m.HeartbeatResponse(1, 1, None, 0, 1)) == [Serve("r")]
    assert bare.hear("n3", m.HeartbeatResponse(1, 1, None, 0, 1)) == []


def test_reads_that_come_meanwhile_share_the_next_heartbeat() -> None:
    bare = settled()
    bare.step(Read("r"))
    assert bare.step(Read("s")) == bare.step(Read("t")) == []
    effects = bare.hear("n2", m.HeartbeatResponse(1, 1, None, 0, 1))
    assert effects[-1] == Serve("r")
    assert bare.hear("n3", m.HeartbeatResponse(1, 1, None, 0, 1)) == []
    assert bare.hear("n3", m.HeartbeatResponse(1, 2, None, 0, 1)) == [Serve("s"), Serve("t")]


def test_nothing_is_read_before_the_first_entry_is_applied() -> None:
    bare = Bare()
    bare.lead(1, THREE, {"n2": NO_ENTRY, "n3": NO_ENTRY})
    bare.step(Read("r"))
    assert only(bare.hear("n2", m.HeartbeatResponse(1, 1, None, 0, 1)), Serve) == []
    bare.hear("n2", have(1, 1))
    assert bare.sync() == [Apply(1), Serve("r")]


# Reconfigurations.


def test_prepare_moves_the_epoch_and_is_answered_every_time() -> None:
    bare = settled()
    request = m.PrepareReconfigurationRequest(2, SWAP)
    effects = bare.hear("o", request)
    assert effects[0] == Persist(Promise(2, led=True))
    assert sent(effects, "n3") == []
    assert cursor(bare, "n3")[0] is CursorState.REMOVING
    head = bare.node.head
    assert bare.hear("o", request) == [Send("o", m.PrepareReconfigurationResponse(2, SWAP))]
    assert bare.node.head == head == EntryId(2, 2)


@pytest.mark.parametrize(
    "change",
    [
        Change(ChangeKind.SWAP, "n1", "n4"),  # the leader itself
        Change(ChangeKind.SWAP, "n9", "n4"),
        Change(ChangeKind.SWAP, "n3", "n2"),
        Change(ChangeKind.SWAP, "n3", None),
        Change(ChangeKind.EXPAND, None, "n2"),
        Change(ChangeKind.EXPAND, "n3", "n4"),
        Change(ChangeKind.CONTRACT, "n9", None),
        Change(ChangeKind.CONTRACT, "n3", "n4"),
        Change(ChangeKind.CONTRACT, None, None),
    ],
)
def test_an_impossible_change_is_not_prepared(change: Change) -> None:
    bare = settled()
    assert bare.hear("o", m.PrepareReconfigurationRequest(2, change)) == []
    assert bare.node.epoch == 1


def test_commit_needs_the_epoch_and_the_change_that_were_prepared() -> None:
    bare = settled()
    commit = m.CommitReconfigurationRequest(2, SWAP, EntryId(1, 1))
    assert bare.hear("o", commit) == []
    bare.hear("o", m.PrepareReconfigurationRequest(2, SWAP))
    assert bare.hear("o", m.CommitReconfigurationRequest(2, EXPAND, NO_ENTRY)) == []
    assert bare.hear("o", m.CommitReconfigurationRequest(1, SWAP, NO_ENTRY)) == []
    answer = m.CommitReconfigurationResponse(2, SWAP, True)
    assert bare.told("o", commit) == [answer]
    assert bare.hear("o", commit) == [Send("o", answer)]
    assert bare.node.leadership is not None
    assert bare.node.leadership.members == ("n1", "n2", "n4")
    assert bare.told("o", m.PrepareReconfigurationRequest(2, SWAP)) == [
        m.PrepareReconfigurationResponse(2, SWAP)
    ]


def test_the_one_that_goes_does_not_count_any_more() -> None:
    bare = settled()
    bare.hear("o", m.PrepareReconfigurationRequest(2, CONTRACT))
    bare.sync()
    bare.hear("n3", have(2, 2))
    assert bare.node.commit == 1


def test_a_contraction_is_safe_when_those_who_remain_have_it() -> None:
    """D5 and D8: everything committed, on a majority of the others, at least."""
    bare = settled(("n1", "n2", "n3", "n4", "n5"))
    bare.propose("a")
    bare.sync()
    bare.hear("n2", have(1, 2))
    bare.hear("n5", have(1, 2))
    assert bare.node.commit == 2
    change = Change(ChangeKind.CONTRACT, "n5", None)
    bare.hear("o", m.PrepareReconfigurationRequest(2, change))
    commit = m.CommitReconfigurationRequest(2, change, NO_ENTRY)
    unsafe = m.CommitReconfigurationResponse(2, change, False)
    assert bare.told("o", commit) == bare.told("o", commit) == [unsafe]
    bare.hear("n3", have(2, 2, of=1))
    assert bare.told("o", commit) == [m.CommitReconfigurationResponse(2, change, True)]


def test_a_new_leader_knows_too_little_to_let_one_go() -> None:
    """What was committed before it is somewhere before its first entry; that one must be with the others."""
    bare = Bare(entries=log_of(1, 1))
    bare.lead(2, THREE, {"n2": EntryId(1, 2), "n3": EntryId(1, 2)})
    bare.sync()
    bare.hear("o", m.PrepareReconfigurationRequest(3, CONTRACT))
    bare.sync()
    commit = m.CommitReconfigurationRequest(3, CONTRACT, NO_ENTRY)
    assert bare.told("o", commit) == [m.CommitReconfigurationResponse(3, CONTRACT, False)]
    bare.hear("n2", have(3, 3, of=2))
    assert bare.told("o", commit) == [m.CommitReconfigurationResponse(3, CONTRACT, True)]


def test_abort_brings_the_old_one_back_and_is_answered_every_time() -> None:
    bare = settled()
    bare.hear("o", m.PrepareReconfigurationRequest(2, SWAP))
    abort = m.AbortReconfigurationRequest(2, SWAP)
    answer = [m.AbortReconfigurationResponse(2, SWAP)]
    assert bare.told("o", m.AbortReconfigurationRequest(1, SWAP)) == []
    assert bare.told("o", abort) == bare.told("o", abort) == answer
    assert cursor(bare, "n3")[0] is CursorState.UNKNOWN
    assert bare.told("o", m.PrepareReconfigurationRequest(2, SWAP)) == []
    assert bare.told("o", m.CommitReconfigurationRequest(2, SWAP, NO_ENTRY)) == []


def test_what_is_committed_is_not_aborted() -> None:
    bare = settled()
    bare.hear("o", m.PrepareReconfigurationRequest(2, SWAP))
    bare.hear("o", m.CommitReconfigurationRequest(2, SWAP, EntryId(1, 1)))
    assert bare.hear("o", m.AbortReconfigurationRequest(2, SWAP)) == []


def test_a_later_prepare_takes_the_place_of_one_that_was_not_aborted() -> None:
    bare = settled()
    bare.hear("o", m.PrepareReconfigurationRequest(2, SWAP))
    bare.hear("o", m.PrepareReconfigurationRequest(3, EXPAND))
    assert cursor(bare, "n3")[0] is CursorState.UNKNOWN
    assert bare.node.leadership is not None and bare.node.leadership.change == EXPAND


# Handing over.


def test_a_leader_that_hands_over_takes_nothing_and_says_when() -> None:
    bare = settled()
    bare.propose("a")
    assert bare.told("o", m.HandOverRequest(1, "n3")) == []
    assert bare.propose("b") == [Refuse("b", Reason.BUSY)]
    assert Send("o", m.HandOverResponse(1, "n3")) in bare.hear("n3", have(1, 2))
    assert bare.told("o", m.HandOverRequest(1, "n3")) == [m.HandOverResponse(1, "n3")]
    assert bare.told("o", m.HandOverRequest(1, None)) == [m.HandOverResponse(1, None)]
    assert only(bare.propose("c"), Refuse) == []


def test_a_leader_whose_operator_is_gone_takes_writes_again() -> None:
    bare = settled(limits=Limits(hand_over_ticks=3))
    for _ in range(5):
        # Each repeated request gives the successor as much time again.
        bare.told("o", m.HandOverRequest(1, "n3"))
        bare.step(Tick())
        bare.step(Tick())
        assert bare.propose("a") == [Refuse("a", Reason.BUSY)]
    # A node steps only restless shards at every tick.
    assert bare.node.restless
    bare.step(Tick())
    assert not bare.node.status().handing_over
    assert only(bare.propose("b"), Refuse) == []
    assert bare.told("o", m.HandOverRequest(1, "n3")) == []
    assert bare.propose("c") == [Refuse("c", Reason.BUSY)]


def test_nobody_hands_over_to_a_stranger_or_for_another_epoch() -> None:
    bare = settled()
    assert bare.hear("o", m.HandOverRequest(1, "n9")) == []
    assert bare.hear("o", m.HandOverRequest(2, "n3")) == []
    assert only(bare.propose("a"), Refuse) == []


def test_entries_carry_what_the_client_gave() -> None:
    bare = settled()
    bare.propose("a")
    assert bare.log[1] == Entry.make(1, 2, 1, b"a")
