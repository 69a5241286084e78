"""Creation, joining and removal of a region over every interleaving, with kills."""

from collections.abc import Callable

import pytest

from .explorer import STATES_A_SECOND, explore
from .region import Region

Record = Callable[[str, object], None]
HOLDS = {
    "two processes": Region(),
    "two processes, ephemeral": Region(ephemeral=True),
    "two processes, ephemeral, three rounds": Region(ephemeral=True, kills=1, rounds=3),
    "three processes, one round": Region(processes=3, kills=1, rounds=1),
}
CANARIES = {
    "rename replaces": Region(bug="rename replaces"),
    "lock after link": Region(bug="lock after link"),
    "header not read": Region(bug="header not read"),
    "nobody asked": Region(bug="nobody asked"),
    "not closing first": Region(bug="not closing first"),
    "path not compared": Region(bug="path not compared"),
    "name not locked": Region(bug="name not locked"),
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
@pytest.mark.parametrize("ephemeral", [False, True])
def test_soak(ephemeral: bool, soak_seconds: float, record_property: Record) -> None:
    limit = min(20_000_000, int(soak_seconds * STATES_A_SECOND))
    verdict = explore(Region(processes=3, kills=1, rounds=2, ephemeral=ephemeral).model(), limit)
    record_property("states", verdict.states)
    assert verdict.violation is None, verdict
