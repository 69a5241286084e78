"""Queues explored exhaustively in small configurations; planted defects must be found."""

from collections.abc import Callable

import pytest

from .program import STATES_A_SECOND, bugs, run

Record = Callable[[str, object], None]
Configuration = tuple[dict[str, int], dict[str, int]]

LEASE: Configuration = ({"MESSAGES": 4}, {"kills": 0, "lease": 1})
HOLDS: dict[str, Configuration] = {
    "two consumers": ({}, {"kills": 1}),
    "two consumers, lease": LEASE,
    "two producers": ({"PRODUCERS": 2, "CONSUMERS": 1, "RING": 1, "MESSAGES": 2}, {"kills": 1}),
    "lease and kill": ({"MESSAGES": 2}, {"kills": 1, "lease": 1}),
    "copies": ({"COPIES": 1, "MESSAGES": 4}, {"kills": 0, "lease": 1}),
}
LARGE: dict[str, Configuration] = {
    "two and two": ({"PRODUCERS": 2, "MESSAGES": 2}, {"kills": 0}),
    "two consumers, two kills": ({}, {"kills": 2, "lease": 1}),
    "two recoverers": ({"MESSAGES": 2, "RECOVERERS": 2}, {"kills": 2, "lease": 1}),
}
CANARIES: dict[str, Configuration] = {
    "REUSE_UNCLAIMED": LEASE,
    "ACCEPT_BY_STORE": LEASE,
    "BIT_AFTER_CLAIM": LEASE,
    "BORROW_CLAIMED": LEASE,
    "NO_BITS": LEASE,
    "RETURN_WITHOUT_LOOK": ({"RECOVERERS": 2}, {"kills": 1}),
    "FREE_ENTRY_FIRST": ({}, {"kills": 1}),
    "CLAIM_UNPUBLISHED": ({}, {"kills": 0}),
    "COPY_WITHOUT_LOOK": ({"COPIES": 1, "MESSAGES": 4}, {"kills": 0, "lease": 1}),
    "RETURN_TO_FRESH": ({}, {"kills": 0}),
    "BIT_AFTER_END": ({"MESSAGES": 4}, {"kills": 0}),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(name: str, record_property: Record) -> None:
    printed = run("queue", *HOLDS[name])
    record_property("explored", printed.split(": ", 1)[1].strip())
    assert ": OK " in printed, printed


@pytest.mark.parametrize("bug", sorted(bugs("queue").keys() - {"NO_BUG"}))
def test_canary_is_caught(bug: str, record_property: Record) -> None:
    sizes, options = CANARIES[bug]
    printed = run("queue", sizes, {**options, "bug": bugs("queue")[bug]})
    record_property("caught", printed.splitlines()[0].split("VIOLATION: ")[-1])
    assert ": VIOLATION: " in printed, printed


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_soak(name: str, soak_seconds: float, record_property: Record) -> None:
    """As many states as the time allows: all of them, given minutes."""
    sizes, options = LARGE[name]
    limit = min(120_000_000, int(soak_seconds * STATES_A_SECOND))
    printed = run("queue", sizes, {**options, "limit": limit})
    record_property("explored", printed.split(": ", 1)[1].strip())
    assert "VIOLATION: " not in printed, printed
    assert "states=" in printed, printed
