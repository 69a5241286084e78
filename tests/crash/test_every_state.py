"""Every operation killed and stopped at every state of the shared memory and after every system call.

A survivor publishes, one holds a sample and one is reliable: they recover and go on, lose nothing, and find
every place and slot usable again. So do the survivors of a queue: a producer, a consumer that holds a message
and still reads one that it has accepted, and one that gets everything else; every message is done once, in
the queue or in its dead letters. A queue that one consumer has for itself goes on with the next of its name.
A failure names the step; `stepper DIRECTORY OPERATION kill step=N` repeats it.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from .stepper import operations, sweep, traceable

Record = Callable[[str, object], None]

CANARIES = {
    "recovery_keeps_loans": [("publish", "kill"), ("publish_loan", "kill"), ("recover", "kill")],
    "recovery_keeps_bits": [("take", "kill"), ("recover", "kill")],
    "recovery_takes_all_loans": [("publish", "kill"), ("recover", "kill")],
    "head_is_never_helped": [("publish", "kill"), ("publish", "stop")],
    "idle_before_publish": [("publish", "stop")],
    "death_counted_twice": [("recover", "kill"), ("join_after_death", "kill")],
    "counts_start_anew": [("take", "kill"), ("release", "kill")],
    "entry_freed_before_bits": [("recover", "kill"), ("subscribe_after_death", "kill")],
    "take_without_second_look": [("take", "stop")],
    "copy_without_second_look": [("take_copy", "stop")],
    "join_without_second_look": [("subscribe_reliable", "stop")],
    "claim_without_bit": [("claim_leased", "stop")],
    "unclaimed_positions_are_reused": [("put", "kill")],
    "undone_slots_are_lent": [("release_message_lapped", "kill"), ("claim_copy", "stop")],
    "read_on_without_bit": [("accept_lapped", "stop"), ("accept", "stop")],
    "accept_by_store": [("accept_late", "kill")],
    "claims_outlive_their_owner": [("claim", "kill"), ("recover_queue", "kill"), ("reserved_claim", "kill")],
    "reserved_ones_are_counted": [("reserved_claim", "kill"), ("reserved_release", "kill")],
    "claims_of_the_living_return": [("recover_queue", "kill"), ("claim_after_death", "kill")],
    "claimed_ones_are_not_passed": [("claim", "kill")],
    "release_without_hint": [("release_message", "kill")],
    "moved_without_pin": [("bury", "kill")],
    "lease_of_the_moment": [("keep_off", "kill")],
    "trace_without_check": [("publish", "kill"), ("claim", "kill")],
    "trace_after_the_fact": [("publish", "kill"), ("accept", "kill"), ("recover_queue", "kill")],
    "removed_while_open": [("close_ephemeral_shared", "kill"), ("close_ephemeral", "stop")],
}


@pytest.mark.parametrize("operation", operations())
def test_killed(operation: str, record_property: Record) -> None:
    _check(operation, "kill", record_property)


@pytest.mark.parametrize("operation", operations())
def test_stopped(operation: str, record_property: Record) -> None:
    _check(operation, "stop", record_property)


@pytest.mark.parametrize("operation", traceable())
def test_killed_or_stopped_while_it_is_traced(operation: str, record_property: Record) -> None:
    """The trace tells everything that happened; what it does not tell is a position known to be lost."""
    _check(operation, "both", record_property, traced=1)


@pytest.mark.slow
@pytest.mark.parametrize("operation", operations())
def test_between_states(operation: str, record_property: Record) -> None:
    """Instructions that change nothing: what was read before them is what goes stale."""
    _check(operation, "both", record_property, between=75)


@pytest.mark.slow
@pytest.mark.parametrize("canary", CANARIES)
def test_canary_is_caught(canary: str) -> None:
    for operation, mode in CANARIES[canary]:
        found = sweep(operation, mode, canary, watchdog=2, more=300, traced=int(canary.startswith("trace_")))
        assert found.broken, f"{operation} {mode}: {canary} was not noticed, {found.counts}"
        print(f"{canary}: {found.broken}")


@pytest.mark.soak
def test_every_instruction(soak_seconds: float, record_property: Record) -> None:
    """All of them, as far as the time goes; every operation gets the same."""
    total: Counter[str] = Counter()
    names = operations()
    for operation in names:
        done = sweep(operation, "both", every=1, seconds=max(1, int(soak_seconds / len(names))))
        assert not done.broken, done.broken
        total.update(done.counts)
    for name, value in total.items():
        record_property(name, value)


def _check(operation: str, mode: str, record_property: Record, **options: int) -> None:
    done = sweep(operation, mode, **options)
    assert not done.broken, done.broken
    for name, value in done.counts.items():
        record_property(name, value)
