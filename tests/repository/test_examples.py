"""Every example runs to its end, says something, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hawser.testing import LocalBus

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    with LocalBus() as local:
        environment = {**os.environ, "HAWSER_DIR": str(local.directory)}
        done = subprocess.run(
            [sys.executable, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert LAST_LINES[path.name] in done.stdout.splitlines()
        assert os.listdir(local.directory) == [".lock"]
