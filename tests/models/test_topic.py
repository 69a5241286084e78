"""Topics explored exhaustively in small configurations; planted defects must be found."""

from collections.abc import Callable

import pytest

from .program import STATES_A_SECOND, bugs, run

Record = Callable[[str, object], None]
Configuration = tuple[dict[str, int], dict[str, int]]

HOLDS: dict[str, Configuration] = {
    "two publishers": ({}, {"kills": 1}),
    "two publishers, two kills": ({}, {"kills": 2}),
    "three publishers": ({"PUBLISHERS": 3, "PUBLISHES": 1}, {"kills": 1}),
    "two subscribers": (
        {"PUBLISHERS": 1, "SUBSCRIBERS": 2, "RING": 2, "PUBLISHES": 4},
        {"kills": 2},
    ),
    "two recoverers": ({"PUBLISHERS": 1, "PUBLISHES": 3, "RECOVERERS": 2}, {"kills": 2}),
    "two samples held": ({"RING": 2, "MAX_HELD": 2}, {"kills": 1}),
    "late joiner": ({"SUBSCRIBERS": 2}, {"kills": 0, "joiners": 1, "history": 1}),
    "reliable joiner": ({"RING": 2}, {"kills": 1, "joiners": 1, "reliable": 1, "history": 2}),
    "published slots kept": ({"KEEP": 1}, {"kills": 1}),
    "published slots kept, longer": (
        {"KEEP": 1, "PUBLISHERS": 1, "RING": 2, "PUBLISHES": 4, "RECOVERERS": 2},
        {"kills": 2},
    ),
}
LARGE: dict[str, Configuration] = {
    "two publishers, two recoverers": ({"RECOVERERS": 2}, {"kills": 2}),
    "two and two": ({"SUBSCRIBERS": 2, "RING": 2}, {"kills": 1}),
    "two subscribers, two recoverers": (
        {"PUBLISHERS": 1, "SUBSCRIBERS": 2, "RING": 2, "PUBLISHES": 4, "RECOVERERS": 2},
        {"kills": 2},
    ),
    "reliable joiner, two kills": ({"RING": 2}, {"kills": 2, "joiners": 1, "reliable": 1, "history": 2}),
    "published slots kept": ({"KEEP": 1, "RING": 2}, {"kills": 1}),
}
CANARIES: dict[str, Configuration] = {
    "NO_REREAD": ({}, {"kills": 1}),
    "REFS_BEFORE_RING": ({}, {"kills": 1}),
    "IDLE_BEFORE_PUBLISH": ({}, {"kills": 1}),
    "FREE_ENTRY_FIRST": ({}, {"kills": 1}),
    "NO_HELP": ({}, {"kills": 1}),
    "LAP_BY_HEAD_ONLY": ({}, {"kills": 1}),
    "HELD_CHECKED_LATE": ({"PUBLISHES": 3}, {"kills": 0}),
    "NO_RECOVERY_LOCK": ({"PUBLISHERS": 1, "PUBLISHES": 3, "RECOVERERS": 2}, {"kills": 1}),
    "JOIN_WITHOUT_HELP": ({}, {"kills": 1}),
    "RELIABLE_JOIN_NAIVE": ({"RING": 2}, {"kills": 0, "joiners": 1, "reliable": 1, "history": 1}),
    "RELIABLE_CHECKED_ONCE": ({"RING": 2}, {"kills": 0, "joiners": 1, "reliable": 1, "history": 1}),
    "WAIT_FOR_RECOVERER": ({"PUBLISHERS": 1, "PUBLISHES": 3, "RECOVERERS": 2}, {"kills": 1, "reliable": 1}),
    "KEPT_BUT_IDLE": ({"KEEP": 1}, {"kills": 1}),
    "LOANS_WITHOUT_INCARNATION": ({"PUBLISHERS": 1, "PUBLISHES": 3, "RECOVERERS": 2}, {"kills": 1}),
}
TOO_FEW_SLOTS: dict[str, Configuration] = {
    "plain": ({"SLOTS": 3}, {"kills": 1}),
    "kept": ({"KEEP": 1, "SLOTS": 5, "PUBLISHES": 3}, {"kills": 0}),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(name: str, record_property: Record) -> None:
    printed = run("topic", *HOLDS[name])
    record_property("explored", printed.split(": ", 1)[1].strip())
    assert ": OK " in printed, printed


@pytest.mark.parametrize("bug", sorted(bugs("topic").keys() - {"NO_BUG"}))
def test_canary_is_caught(bug: str, record_property: Record) -> None:
    sizes, options = CANARIES[bug]
    printed = run("topic", sizes, {**options, "bug": bugs("topic")[bug]})
    record_property("caught", printed.splitlines()[0].split("VIOLATION: ")[-1])
    assert ": VIOLATION: " in printed, printed


@pytest.mark.parametrize("name", TOO_FEW_SLOTS)
def test_one_slot_less_than_the_formula_fails(name: str, record_property: Record) -> None:
    printed = run("topic", *TOO_FEW_SLOTS[name])
    record_property("caught", printed.splitlines()[0].split("VIOLATION: ")[-1])
    assert ": VIOLATION: no slot" in printed, printed


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_soak(name: str, soak_seconds: float, record_property: Record) -> None:
    """As many states as the time allows: all of them, given minutes."""
    sizes, options = LARGE[name]
    limit = min(120_000_000, int(soak_seconds * STATES_A_SECOND))
    printed = run("topic", sizes, {**options, "limit": limit})
    record_property("explored", printed.split(": ", 1)[1].strip())
    assert "VIOLATION: " not in printed, printed
    assert "states=" in printed, printed
