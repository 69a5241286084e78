"""A recoverer held up after it saw a dead entry reported the name of the entry's next, living owner."""

import subprocess
from pathlib import Path

from tests.support.programs import build


def test_the_next_owner_is_not_reported_dead() -> None:
    program = build(Path(__file__).with_name("late_recoverer.cpp"), ["-O1", "-DHAWSER_EXPLORE"])
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
