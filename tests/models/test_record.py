"""Records of kept positions: claims, takeovers from the dead, forgetting, with kills."""

from collections.abc import Callable

import pytest

from .explorer import STATES_A_SECOND, explore
from .record import Records

Record = Callable[[str, object], None]
HOLDS = {
    "two processes, two names": Records(),
    "two processes, three starts": Records(starts=3, kills=1),
    "three processes, one name": Records(processes=3, names=("a",), starts=1, kills=2),
    "three processes, one record": Records(processes=3, records=1, starts=1, kills=1),
}
CANARIES = {
    "no byte": Records(bug="no byte"),
    "no incarnation": Records(bug="no incarnation", starts=3),
    "used before named": Records(bug="used before named"),
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


@pytest.mark.soak
@pytest.mark.slow
def test_soak(soak_seconds: float, record_property: Record) -> None:
    limit = min(20_000_000, int(soak_seconds * STATES_A_SECOND))
    verdict = explore(Records(processes=3, starts=2, kills=1).model(), limit)
    record_property("states", verdict.states)
    assert verdict.violation is None, verdict
