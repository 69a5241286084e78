"""The hot paths may not grow unnoticed: instructions counted by callgrind, which no load changes."""

from collections.abc import Callable

import pytest

from bench.instructions import OPERATIONS, count_all, grown, missing_tools, recorded

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {', '.join(missing_tools())}")


def test_growth_over_a_tenth_is_noticed() -> None:
    allowed = dict.fromkeys(OPERATIONS, 100)
    assert grown({**allowed, "take": 110}, allowed) == []
    (complaint,) = grown({**allowed, "take": 111}, allowed)
    assert complaint.startswith("take takes 111")


@needs_tools
def test_publish_take_and_release_have_not_grown(record_property: Callable[[str, object], None]) -> None:
    counts = count_all()
    for operation, instructions in counts.items():
        record_property(operation, instructions)
    assert grown(counts, recorded()) == []
