"""Named groups: members, generations, positions that only a rightful member moves, and only forward."""

import pytest

from hawser.log.state.commands import (
    AT_END,
    GroupCommit,
    GroupDelete,
    GroupJoin,
    GroupLeave,
    TrimTo,
)
from hawser.log.state.groups import Group, Groups
from hawser.log.state.part import BadState
from hawser.log.state.results import Committed, Deleted, Joined, Left, Reason, Rejected
from tests.stateful.log_shard import Shard


def shard() -> Shard:
    """Ten records, and a group of one member at 3."""
    made = Shard()
    made.publish(10)
    assert made.do(GroupJoin("g", "b", 3)) == Joined(1, "b", ("b",), 3)
    return made


def test_each_change_of_members_is_a_generation() -> None:
    made = shard()
    assert made.do(GroupJoin("g", "c")) == Joined(2, "b", ("b", "c"), 3)
    assert made.do(GroupJoin("g", "a")) == Joined(3, "a", ("a", "b", "c"), 3)
    assert made.do(GroupLeave("g", "a")) == Left(4, "b", ("b", "c"))


def test_joining_and_leaving_again_change_nothing() -> None:
    made = shard()
    assert made.do(GroupJoin("g", "b", 7)) == Joined(1, "b", ("b",), 3)
    assert made.do(GroupLeave("g", "nobody")) == Left(1, "b", ("b",))
    assert made.do(GroupLeave("other", "b")) == Rejected(Reason.NO_GROUP)


def test_a_group_without_members_keeps_its_position() -> None:
    made = shard()
    assert made.do(GroupLeave("g", "b")) == Left(2, None, ())
    assert made.groups.get("g") == Group(2, 3, ())
    assert made.do(GroupJoin("g", "x", 9)) == Joined(3, "x", ("x",), 3)


@pytest.mark.parametrize(("asked", "position"), [(0, 5), (4, 5), (7, 7), (11, 11), (AT_END, 11)])
def test_a_new_group_begins_within_what_there_is(asked: int, position: int) -> None:
    made = Shard()
    made.publish(10)
    made.do(TrimTo(5))
    assert made.do(GroupJoin("g", "a", asked)) == Joined(1, "a", ("a",), position)


def test_a_commit_moves_the_position_from_where_it_is() -> None:
    made = shard()
    assert made.do(GroupCommit("g", "b", 1, 3, 8)) == Committed(8)
    assert made.do(GroupCommit("g", "b", 1, 8, 8)) == Committed(8)
    assert made.do(GroupCommit("g", "b", 1, 8, 11)) == Committed(11)
    assert made.groups.get("g") == Group(1, 11, ("b",))


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (GroupCommit("other", "b", 1, 3, 8), Rejected(Reason.NO_GROUP)),
        (GroupCommit("g", "a", 1, 3, 8), Rejected(Reason.NOT_MEMBER)),
        (GroupCommit("g", "b", 0, 3, 8), Rejected(Reason.OTHER_GENERATION, 1, 0)),
        (GroupCommit("g", "b", 2, 3, 8), Rejected(Reason.OTHER_GENERATION, 1, 2)),
        (GroupCommit("g", "b", 1, 2, 8), Rejected(Reason.MOVED, 3, 2)),
        (GroupCommit("g", "b", 1, 4, 2), Rejected(Reason.MOVED, 3, 4)),
        (GroupCommit("g", "b", 1, 3, 2), Rejected(Reason.BACKWARD, 3, 2)),
        (GroupCommit("g", "b", 1, 3, 12), Rejected(Reason.BEYOND_END, 11, 12)),
    ],
)
def test_any_other_commit_is_rejected_and_changes_nothing(command: GroupCommit, result: Rejected) -> None:
    made = shard()
    before = made.groups.digest()
    assert made.do(command) == result
    assert not result.retryable
    assert made.groups.digest() == before


def test_a_consumer_that_lost_its_place_cannot_rewind_it() -> None:
    made = shard()
    made.do(GroupJoin("g", "new"))
    made.do(GroupLeave("g", "b"))
    assert made.do(GroupCommit("g", "new", 3, 3, 9)) == Committed(9)
    assert made.do(GroupCommit("g", "b", 1, 3, 4)) == Rejected(Reason.NOT_MEMBER)
    made.do(GroupJoin("g", "b"))
    assert made.do(GroupCommit("g", "b", 1, 3, 4)) == Rejected(Reason.OTHER_GENERATION, 4, 1)
    assert made.do(GroupCommit("g", "b", 4, 3, 4)) == Rejected(Reason.MOVED, 9, 3)
    assert made.groups.get("g") == Group(4, 9, ("b", "new"))


def test_a_group_made_again_is_another_one() -> None:
    made = shard()
    assert made.do(GroupDelete("g")) == Deleted(True)
    assert made.do(GroupDelete("g")) == Deleted(False)
    assert made.groups.get("g") is None
    assert made.do(GroupJoin("g", "b", 3)) == Joined(2, "b", ("b",), 3)
    assert made.do(GroupCommit("g", "b", 1, 3, 8)) == Rejected(Reason.OTHER_GENERATION, 2, 1)


def test_a_position_that_was_trimmed_away_is_left_by_a_commit() -> None:
    made = shard()
    made.do(TrimTo(6, floor=6))
    assert made.groups.get("g") == Group(1, 3, ("b",))
    assert made.do(GroupCommit("g", "b", 1, 3, 6)) == Committed(6)


def test_generations_go_on_after_a_restart() -> None:
    made = shard()
    made.do(GroupDelete("g"))
    made.save()
    made.restart()
    assert made.do(GroupJoin("h", "b")) == Joined(2, "b", ("b",), 1)
    assert dict(made.groups) == {"h": Group(2, 1, ("b",))}


@pytest.mark.parametrize(
    "state", [b"", b"\x92\x00\x81\xa1g\x93\x01\x01\x90", b"\x92\x00\x81\xa1\xff\x93\x00\x01\x90"]
)
def test_a_state_that_cannot_be_is_refused(state: bytes) -> None:
    with pytest.raises(BadState):
        Groups().load(state)
