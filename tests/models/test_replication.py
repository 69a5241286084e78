"""The replication protocol explored exhaustively in small configurations; planted defects must be found."""

import re
from collections.abc import Callable
from functools import cache

import pytest

from .program import bugs, run

Record = Callable[[str, object], None]
Configuration = tuple[dict[str, int], dict[str, int]]

STATES_A_SECOND = 50_000  # of a soak, on a slow machine
MOST_STATES = 30_000_000  # some hundred bytes each

QUICK: dict[str, Configuration] = {
    "elections": ({"NODES": 3, "EPOCHS": 4, "VALUES": 1}, {"plan": 1111}),
    "elections, two operators, late requests": (
        {"NODES": 3, "EPOCHS": 3, "VALUES": 2, "OPERATORS": 2, "LATE": 1},
        {"plan": 111},
    ),
    "swap, two operators, late requests": (
        {"NODES": 4, "EPOCHS": 3, "VALUES": 1, "OPERATORS": 2, "LATE": 1},
        {"plan": 121, "aborts": 1},
    ),
    "expand, contract": ({"NODES": 4, "EPOCHS": 4, "VALUES": 0, "LATE": 1}, {"plan": 1341, "aborts": 1}),
    "from one member, anything": (
        {"NODES": 3, "EPOCHS": 4, "VALUES": 1, "OPERATORS": 2, "LATE": 1},
        {"plan": 1999, "members": 1, "aborts": 1},
    ),
    "from two members, anything": (
        {"NODES": 3, "EPOCHS": 4, "VALUES": 0, "OPERATORS": 2, "LATE": 1},
        {"plan": 1999, "members": 2, "aborts": 1},
    ),
    "contract of five": ({"NODES": 5, "EPOCHS": 3, "VALUES": 0}, {"plan": 141, "members": 5}),
}
LONG: dict[str, Configuration] = {
    "elections with two values": ({"NODES": 3, "EPOCHS": 4, "VALUES": 2}, {"plan": 1111}),
    "swap completed by elections": ({"NODES": 4, "EPOCHS": 4, "VALUES": 1}, {"plan": 1211}),
    "expand, then swap, of five": ({"NODES": 5, "EPOCHS": 4, "VALUES": 1}, {"plan": 1321}),
    "anything with four": ({"NODES": 4, "EPOCHS": 4, "VALUES": 0}, {"plan": 1999, "aborts": 1, "settled": 1}),
}
SOAK: dict[str, Configuration] = {
    "elections, late requests": (
        {"NODES": 3, "EPOCHS": 4, "VALUES": 2, "OPERATORS": 2, "LATE": 1},
        {"plan": 1111},
    ),
    "five elections": ({"NODES": 3, "EPOCHS": 5, "VALUES": 1}, {"plan": 11111}),
    "anything with four": (
        {"NODES": 4, "EPOCHS": 4, "VALUES": 1, "OPERATORS": 2, "LATE": 1},
        {"plan": 1999, "aborts": 1},
    ),
    "expand, election, contract": ({"NODES": 4, "EPOCHS": 5, "VALUES": 1}, {"plan": 13141}),
    "two swaps": ({"NODES": 4, "EPOCHS": 5, "VALUES": 1}, {"plan": 12121}),
    "expand, election, swap": ({"NODES": 5, "EPOCHS": 5, "VALUES": 1}, {"plan": 13121, "settled": 1}),
    "two contractions of five": ({"NODES": 5, "EPOCHS": 4, "VALUES": 1}, {"plan": 1441, "members": 5}),
}
# Small enough to be explored without any reduction as well.
PLAIN: dict[str, Configuration] = {
    "small ensembles": (
        {"NODES": 3, "EPOCHS": 3, "VALUES": 0, "OPERATORS": 2, "LATE": 1},
        {"plan": 199, "members": 2, "aborts": 1},
    ),
    "elections": ({"NODES": 3, "EPOCHS": 2, "VALUES": 1, "OPERATORS": 2, "LATE": 1}, {"plan": 11}),
    "changes": ({"NODES": 4, "EPOCHS": 2, "VALUES": 0, "OPERATORS": 2, "LATE": 1}, {"plan": 19, "aborts": 1}),
}
# Everything can still be committed: 1 by another election, 2 by the leader there is.
LIVE: dict[str, Configuration] = {
    "elections": ({"NODES": 3, "EPOCHS": 3, "VALUES": 1}, {"plan": 111, "live": 1}),
    "a dead member, swap": ({"NODES": 4, "EPOCHS": 4, "VALUES": 0}, {"plan": 1211, "deaths": 1, "live": 1}),
    "a dead member, expand": ({"NODES": 4, "EPOCHS": 4, "VALUES": 0}, {"plan": 1311, "deaths": 1, "live": 1}),
    "one leader, swap": ({"NODES": 4, "EPOCHS": 3, "VALUES": 1}, {"plan": 121, "live": 2}),
    "one leader, expand, contract": (
        {"NODES": 4, "EPOCHS": 3, "VALUES": 1},
        {"plan": 134, "aborts": 1, "live": 2},
    ),
    "one leader, small ensembles": (
        {"NODES": 3, "EPOCHS": 4, "VALUES": 0},
        {"plan": 1999, "members": 2, "aborts": 1, "live": 2},
    ),
}

LOST = "a leader lacks a committed entry"
STALLED = "not everything can be committed any more"
CANARIES: dict[str, tuple[dict[str, int], dict[str, int], str]] = {
    # The defects of the seed, D1 to D8.
    "TRUNCATE_ONCE": ({"NODES": 3, "EPOCHS": 4, "VALUES": 1}, {"plan": 1111}, "same entry, other prefix"),
    "COUNT_NOT_MEMBERS": ({"NODES": 3, "EPOCHS": 5, "VALUES": 1}, {"plan": 13121, "members": 1}, LOST),
    "FINISH_WITHOUT_COMPARING": (
        {"NODES": 4, "EPOCHS": 3, "VALUES": 0},
        {"plan": 131},
        "the metadata goes back",
    ),
    "COMMIT_RECOMPUTED": ({"NODES": 4, "EPOCHS": 2, "VALUES": 1}, {"plan": 13}, "the commit index goes back"),
    "CONTRACT_UNGUARDED": ({"NODES": 4, "EPOCHS": 4, "VALUES": 1}, {"plan": 1341}, LOST),
    "OLD_EPOCH_ACK": ({"NODES": 4, "EPOCHS": 2, "VALUES": 1}, {"plan": 13, "live": 2}, STALLED),
    "FENCE_OLD_ENSEMBLE": (
        {"NODES": 4, "EPOCHS": 4, "VALUES": 0},
        {"plan": 1211, "deaths": 1, "live": 1},
        STALLED,
    ),
    "FENCE_OLD_MAJORITY": ({"NODES": 4, "EPOCHS": 3, "VALUES": 1}, {"plan": 121}, LOST),
    "NO_NOTHING": ({"NODES": 3, "EPOCHS": 3, "VALUES": 1}, {"plan": 111, "live": 1}, STALLED),
    # The seed taken at its word, and what a careless reading would do.
    "CONTRACT_ROLLED_FORWARD": ({"NODES": 5, "EPOCHS": 3, "VALUES": 0}, {"plan": 141, "members": 5}, LOST),
    "ACK_BEFORE_SYNC": ({"NODES": 3, "EPOCHS": 2, "VALUES": 1}, {"plan": 11}, LOST),
    "PRIOR_EPOCH_COUNTS": ({"NODES": 3, "EPOCHS": 4, "VALUES": 1}, {"plan": 1111}, LOST),
    "REMOVED_COUNTS": ({"NODES": 4, "EPOCHS": 3, "VALUES": 1}, {"plan": 121}, LOST),
    "LEADS_AGAIN": ({"NODES": 3, "EPOCHS": 2, "VALUES": 1}, {"plan": 11}, "same entry, other prefix"),
    "TRUNCATE_ANY_HEAD": ({"NODES": 3, "EPOCHS": 4, "VALUES": 1}, {"plan": 1111}, LOST),
    # What the model found in the first draft of the mended protocol.
    "CONTRACT_BY_FRESH_LEADER": ({"NODES": 4, "EPOCHS": 5, "VALUES": 1}, {"plan": 13141, "settled": 1}, LOST),
    "SNAPSHOT_THROUGH_APPLIED": ({"NODES": 4, "EPOCHS": 3, "VALUES": 1}, {"plan": 121}, LOST),
    "CHANGE_UPON_CHANGE": ({"NODES": 5, "EPOCHS": 4, "VALUES": 1}, {"plan": 1321, "settled": 1}, LOST),
    "SYNCED_HEAD_REPORTED": (
        {"NODES": 3, "EPOCHS": 3, "VALUES": 1},
        {"plan": 111},
        "conflicts with the follower's log",
    ),
    "HEARTBEAT_COMMITS_UNMATCHED": (
        {"NODES": 3, "EPOCHS": 3, "VALUES": 1},
        {"plan": 111},
        "takes as committed what is not",
    ),
    "REMOVED_STAYS_CUT_OFF": (
        {"NODES": 4, "EPOCHS": 3, "VALUES": 0},
        {"plan": 123, "aborts": 1, "live": 2},
        STALLED,
    ),
}

FAR_AWAY = {"CONTRACT_BY_FRESH_LEADER"}  # found after millions of states
PLANTED = [
    pytest.param(bug, marks=pytest.mark.slow) if bug in FAR_AWAY else bug
    for bug in sorted(bugs("replication").keys() - {"NO_BUG"})
]

ACTIONS = {
    "store: election", "store: elected", "store: prepare swap", "store: prepare expand",
    "store: prepare contract", "store: commit", "store: changed", "store: aborted", "choose", "Fence",
    "BecomeLeader", "Heartbeat", "Heartbeat, attached", "Truncate", "AddEntries", "late Heartbeat",
    "late Truncate", "late AddEntries", "late AddEntries, refused", "deposed by an answer", "Propose",
    "Synced", "commit", "commit in the epoch of a change", "RESTART", "Prepare", "Snapshot", "Commit swap",
    "Commit expand", "Commit contract", "Abort",
}  # fmt: skip


@cache
def explored(name: str) -> str:
    """Quick ones are judged twice: each by itself, and all together."""
    return run("replication", *QUICK[name])


def figures(printed: str) -> str:
    return printed.splitlines()[0].split(": ", 1)[1]


@pytest.mark.parametrize("name", QUICK)
def test_holds(name: str, record_property: Record) -> None:
    record_property("explored", figures(explored(name)))
    assert ": OK " in explored(name), explored(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_holds_long(name: str, record_property: Record) -> None:
    printed = run("replication", *LONG[name])
    record_property("explored", figures(printed))
    assert ": OK " in printed, printed


@pytest.mark.parametrize("name", LIVE)
def test_everything_can_still_be_committed(name: str, record_property: Record) -> None:
    printed = run("replication", *LIVE[name])
    record_property("explored", figures(printed))
    assert ": OK " in printed, printed


@pytest.mark.parametrize("name", PLAIN)
def test_reductions_leave_nothing_out(name: str, record_property: Record) -> None:
    """Reduced on the way or at the end, the same states are there."""
    sizes, options = PLAIN[name]
    on_the_way, at_the_end = (run("replication", sizes, {**options, "plain": plain}) for plain in (0, 1))
    record_property("on the way", figures(on_the_way))
    record_property("at the end", figures(at_the_end))
    counted = [re.findall(r" states=(\d+)", printed) for printed in (on_the_way, at_the_end)]
    assert ": OK " in on_the_way and ": OK " in at_the_end
    assert counted[0] == counted[1]


def test_every_action_is_taken(record_property: Record) -> None:
    """An action that never happens would hide whatever it can break."""
    fired: dict[str, int] = {}
    for name in QUICK:
        for what, times in re.findall(r"; ([^=;]+)=(\d+)", explored(name).splitlines()[1]):
            fired[what] = fired.get(what, 0) + int(times)
    record_property(
        "rarest", ", ".join(f"{what} {fired[what]}" for what in sorted(fired, key=fired.__getitem__)[:5])
    )
    assert fired.keys() == ACTIONS


@pytest.mark.parametrize("bug", PLANTED)
def test_canary_is_caught(bug: str, record_property: Record) -> None:
    sizes, options, expected = CANARIES[bug]
    printed = run("replication", sizes, {**options, "bug": bugs("replication")[bug]})
    record_property("caught", figures(printed).removeprefix("VIOLATION: "))
    record_property("steps", sum(line.startswith("  ") for line in printed.splitlines()))
    assert ": VIOLATION: " in printed and expected in printed, printed


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", SOAK)
def test_soak(name: str, soak_seconds: float, record_property: Record) -> None:
    """As many states as the time allows, nearest first: all of them, given an hour."""
    sizes, options = SOAK[name]
    limit = min(MOST_STATES, int(soak_seconds * STATES_A_SECOND))
    printed = run("replication", sizes, {**options, "limit": limit})
    record_property("explored", figures(printed))
    assert "VIOLATION: " not in printed, printed
    assert "states=" in printed, printed
