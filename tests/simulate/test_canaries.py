"""Planted defects are found, each within a bounded number of seeds."""

from collections.abc import Callable

import pytest

from hawser.testing.simulate import simulate

from .defects import DEFECTS
from .queue_defects import QUEUE_DEFECTS
from .transaction_defects import TRANSACTION_DEFECTS

MOST_SEEDS = 300
# Where to begin with those that few runs find: they take minutes otherwise.
FIRST_SEEDS = {
    "contraction guarded by commit only": 198,
    "snapshot over newer entries": 713,
    "acknowledgements of another epoch counted": 72,
    "contraction unguarded": 143,
    "second decision counts": 87,
    "dropped member not retired": 90,
    "halted without a word": 75,
    "sessions shown as they are": 132,
    "delivered again by a commit that comes again": 101,
}
EVERY_DEFECT = DEFECTS | QUEUE_DEFECTS | TRANSACTION_DEFECTS
assert FIRST_SEEDS.keys() <= EVERY_DEFECT.keys()


@pytest.mark.parametrize("name", EVERY_DEFECT)
def test_a_planted_defect_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    EVERY_DEFECT[name](monkeypatch)
    first = FIRST_SEEDS.get(name, 1)
    for seed in range(first, first + MOST_SEEDS):
        try:
            simulate(seed)
        except AssertionError as found:
            record_property("seed", seed)
            record_property("found", str(found).partition("\n")[0][:100] or type(found).__name__)
            return
    pytest.fail(f"{name} was not found within {MOST_SEEDS} seeds")
