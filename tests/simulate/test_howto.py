"""The examples of docs/howto/simulate.md run."""

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "howto" / "simulate.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_an_example_runs(place: int) -> None:
    exec(compile(EXAMPLES[place], f"{DOCUMENT.name}, example {place + 1}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2
