"""Every example runs to its end, says something, and leaves nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hawser.testing import LocalBus

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LAST_LINES = {
    "camera_frames.py": "viewer: the last line is still there: True",
    "dead_letters.py": "1 dead letter left",
    "hello_world.py": "received 'world' from 'hello', offset 3",
    "job_queue.py": "0 jobs left",
    "late_joiner.py": "the last two were 20.4, 20.7",
    "method_call.py": "12 squared is 144 by second",
    "surviving_a_crash.py": "received [1, 2, 3, 4, 5, 6], missed 0",
}


def test_all_examples_are_known() -> None:
    assert [path.name for path in EXAMPLES] == sorted(LAST_LINES)


def run(program: Path, local: LocalBus) -> list[str]:
    """What it prints, line by line."""
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "HAWSER_DIR": str(local.directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    with LocalBus() as local:
        assert LAST_LINES[path.name] in run(path, local)
        assert os.listdir(local.directory) == [".lock"]


def test_examples_run_twice_and_after_the_readme(tmp_path: Path) -> None:
    """A reader tries all of them in one domain."""
    block = re.search(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    program = tmp_path / "readme.py"
    program.write_text(block.group(1), encoding="utf-8")
    with LocalBus() as local:
        for _ in range(2):
            assert run(program, local)
            for path in EXAMPLES:
                assert LAST_LINES[path.name] in run(path, local)
