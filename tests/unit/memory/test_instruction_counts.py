"""The hot paths cost no more instructions than recorded."""

from collections.abc import Callable

import pytest

from bench import instructions


def test_hot_paths_have_not_grown(record_property: Callable[[str, object], None]) -> None:
    if missing := instructions.missing_tools():
        pytest.skip(f"instructions are not counted, because {' and '.join(missing)} is not installed")
    if instructions.compiler() != instructions.recorded_compiler():
        pytest.skip(
            f"instructions are not compared: {instructions.recorded_compiler()} is recorded, "
            f"this is {instructions.compiler()}; python bench/instructions.py --record makes it the measure"
        )
    counts = instructions.count_all()
    for operation, count in counts.items():
        record_property(operation, count)
    assert instructions.grown(counts, instructions.recorded()) == []


@pytest.mark.parametrize("operation", instructions.OPERATIONS)
def test_growth_is_seen(operation: str) -> None:
    allowed = instructions.recorded()
    assert instructions.grown(allowed, allowed) == []
    slower = {**allowed, operation: round(allowed[operation] * 1.06) + 1}
    assert len(instructions.grown(slower, allowed)) == 1
