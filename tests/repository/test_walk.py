"""The walk sees the functions that run, and compares them with ARCHITECTURE.md."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_publish_on_one_host_is_walked() -> None:
    program = [sys.executable, str(ROOT / "scripts" / "walk.py"), "local"]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("local: ")
    functions = [line.split()[-1] for line in lines]
    walked = ["LocalBus._topic", "LocalTopic.subscribe", "LocalPublishing.publish"]
    assert [name for name in functions if name in walked] == walked
    named, unnamed = lines[-2:]
    assert "api/loan.py" in named and "api/local/publishing.py" not in named
    assert "api/local/topic.py" in unnamed and "memory/domain.py" not in unnamed
