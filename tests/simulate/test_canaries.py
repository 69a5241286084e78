"""Planted defects are found, each within a bounded number of seeds."""

from collections.abc import Callable

import pytest

from hawser.testing.simulate import simulate

from .defects import DEFECTS
from .queue_defects import QUEUE_DEFECTS
from .transaction_defects import TRANSACTION_DEFECTS

MOST_SEEDS = 300
EVERY_DEFECT = DEFECTS | QUEUE_DEFECTS | TRANSACTION_DEFECTS


@pytest.mark.parametrize("name", EVERY_DEFECT)
def test_a_planted_defect_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    EVERY_DEFECT[name](monkeypatch)
    for seed in range(1, MOST_SEEDS + 1):
        try:
            simulate(seed)
        except AssertionError as found:
            record_property("seeds", seed)
            record_property("found", str(found).partition("\n")[0][:100] or type(found).__name__)
            return
    pytest.fail(f"{name} was not found within {MOST_SEEDS} seeds")
