"""No waiter sleeps beside a sample: the futex protocol over every interleaving, with faults."""

from collections.abc import Callable

import pytest

from .explorer import explore
from .wakeup import Wakeup

Record = Callable[[str, object], None]
HOLDS = {
    "two waiters, nobody dies, sleeps without end": Wakeup(waiters=2, bounded=False),
    "three samples, nobody dies, sleeps without end": Wakeup(publishers=1, publishes=3, bounded=False),
    "bump even when nobody waits, sleeps without end": Wakeup(
        wake=("bump", "load", "wake"), publishes=2, bounded=False
    ),
    "wake one, nobody dies, sleeps without end": Wakeup(queue=True, wake_one=True, waiters=2, bounded=False),
    "wake one of three messages": Wakeup(
        queue=True, wake_one=True, publishers=1, publishes=3, waiters=2, bounded=False
    ),
    "publisher killed": Wakeup(publisher_fault="KILLED"),
    "publisher stopped": Wakeup(publisher_fault="STOPPED"),
    "consumer killed after it was woken": Wakeup(
        queue=True, wake_one=True, waiters=2, publishers=1, waiter_killed=True
    ),
}
CANARIES = {
    "value read after the check": Wakeup(wait=("flag", "check", "value", "sleep"), bounded=False),
    "value read after the flag": Wakeup(
        wait=("flag", "value", "check", "sleep"), publishers=1, publishes=3, bounded=False
    ),
    "word not bumped": Wakeup(wake=("load", "take", "wake"), bounded=False),
    "flags taken after the bump": Wakeup(wake=("load", "bump", "take", "wake"), waiters=1, bounded=False),
    "flag never set": Wakeup(wait=("value", "check", "sleep"), bounded=False),
    "publisher killed, sleeps without end": Wakeup(publisher_fault="KILLED", bounded=False),
    "woken consumer killed, sleeps without end": Wakeup(
        queue=True, wake_one=True, waiters=2, publishers=1, waiter_killed=True, bounded=False
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(name: str, record_property: Record) -> None:
    verdict = explore(HOLDS[name].model())
    record_property("states", verdict.states)
    assert verdict.holds, verdict


@pytest.mark.parametrize("name", CANARIES)
def test_canary_is_caught(name: str, record_property: Record) -> None:
    verdict = explore(CANARIES[name].model(), limit=1_000_000)
    record_property("caught after states", verdict.states)
    assert verdict.violation, verdict
