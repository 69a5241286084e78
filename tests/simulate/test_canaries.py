"""Planted defects are found, each by a seed that is known to find it.

A change of the simulator or of what it runs may move a defect to another seed. Then the test looks for it
from seed 1 on, and `python -m tests.simulate.choose_seeds --defects` records the seed that finds it now.
"""

from collections.abc import Callable
from itertools import chain

import pytest

from tests.simulate.choose_seeds import EVERY_DEFECT, FINDING, finding

MOST_SEEDS = 300


def test_a_seed_is_recorded_for_every_defect() -> None:
    assert FINDING.keys() == EVERY_DEFECT.keys(), "python -m tests.simulate.choose_seeds --defects"


@pytest.mark.parametrize("name", EVERY_DEFECT)
def test_a_planted_defect_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    seeds = chain([FINDING[name]], range(1, 1 + MOST_SEEDS))
    found = finding(name, seeds)
    assert found is not None, f"{name} was not found within {MOST_SEEDS} seeds"
    record_property("seed", found[0])
    record_property("found", found[1])
