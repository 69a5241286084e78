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
KILLED = {
    ("publisher", "publisher-"),
    ("agent", "demo-agent"),
    ("operator", "operator"),
    ("leader", "n"),
    ("worker", "sorter"),
    ("worker", "checker"),
    ("driver", "landing"),
    ("driver", "totals"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
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
    proofs = report["proofs"]
    assert report["proven"] and all(proof["proven"] for proof in proofs)
    recorded = proofs[1]
    assert recorded["found"] == recorded["expected"] >= MESSAGES
    killed = {(kill["what"], kill["name"].rstrip("0123456789")) for kill in report["kills"]}
    assert killed == KILLED
    assert all(kill["recovered_seconds"] is not None for kill in report["kills"])
    assert "complete" in Path(report["report"]).read_text(encoding="utf-8")
    assert (directory / "landing" / "summary.html").exists()
    left = [each for each in os.listdir("/dev/shm") if each.startswith("hawser-demo-")]
    assert left == []
    assert _processes_in(directory) == []
    record_property("messages", recorded["found"])
    record_property("kills", len(report["kills"]))
    record_property("seconds", report["seconds"])


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
