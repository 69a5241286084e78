"""The entry of a participant and its lock bytes over every interleaving, with kills."""

from collections.abc import Callable

import pytest

from .explorer import explore
from .registration import Registration

Record = Callable[[str, object], None]
BUGS = ("active before life", "bits without the byte", "unlocks before free", "word not re-read")


@pytest.mark.parametrize(("kills", "registrations"), [(2, 3), (3, 4)])
def test_holds(kills: int, registrations: int, record_property: Record) -> None:
    verdict = explore(Registration(kills, registrations).model())
    record_property("states", verdict.states)
    assert verdict.holds, verdict


@pytest.mark.parametrize("bug", BUGS)
def test_canary_is_caught(bug: str, record_property: Record) -> None:
    verdict = explore(Registration(bug=bug).model(), limit=1_000_000)
    record_property("caught after states", verdict.states)
    assert verdict.violation, verdict
