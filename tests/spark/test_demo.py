"""`hawser demo`, the whole path with everybody killed: proven, and nothing left behind."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.spark import need_java

MESSAGES = 20_000


@pytest.mark.slow
def test_the_demo_is_proven(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    need_java()
    directory = tmp_path / "demo"
    command = [sys.executable, "-m", "hawser", "demo", "--messages", str(MESSAGES), "--seconds", "10"]
    done = subprocess.run(
        [*command, "--seed", "1", "--dir", str(directory), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    report = msgspec.json.decode(done.stdout)
    assert report["proven"] and report["published"] >= MESSAGES
    assert report["landed"] == report["published"]
    killed = [kill["what"] for kill in report["kills"]]
    assert set(killed) == {"publisher", "agent", "leader", "driver"}
    assert all(kill["recovered_seconds"] is not None for kill in report["kills"])
    assert (directory / "landing" / "summary.html").exists()
    left = [each for each in os.listdir("/dev/shm") if each.startswith("hawser-demo-")]
    assert left == []
    assert _processes_in(directory) == []
    record_property("messages", report["published"])
    record_property("kills", len(killed))


def _processes_in(directory: Path) -> list[str]:
    """Whose command line names the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    need_java()
    (tmp_path / "mine").touch()
    command = [sys.executable, "-m", "hawser", "demo", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["mine"]
