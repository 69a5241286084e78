"""`make check FOR=...` finds the tests of a room."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def chosen(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "scripts" / "tests_of.py"), *arguments]
    return subprocess.run(program, check=False, capture_output=True, text=True, cwd=ROOT)


def test_tests_of_a_module_are_those_that_import_it() -> None:
    found = chosen("src/hawser/log/journal/journal.py").stdout.split()
    assert "tests/unit/log/journal/test_journal.py" in found
    assert not any(name.startswith("tests/spark/") for name in found)


def test_tests_of_native_code_use_the_module() -> None:
    found = chosen("native/ring.hpp").stdout.split()
    assert "tests/unit/memory/test_native_queue.py" in found


def test_a_changed_test_is_chosen() -> None:
    name = "tests/unit/log/state/test_epochs.py"
    assert chosen(name).stdout.split()[0] == name


def test_a_path_that_does_not_exist_is_named() -> None:
    done = chosen("src/hawser/nowhere")
    assert done.returncode == 2 and "nowhere does not exist" in done.stderr


def test_a_file_without_tests_is_said_to_have_none() -> None:
    done = chosen("README.md")
    assert done.returncode == 1 and "no test file belongs to README.md" in done.stderr


def test_everything_is_every_file_that_is_quick() -> None:
    found = chosen("everything").stdout.split()
    recorded = json.loads((ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
    every = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    longest = max(recorded.get(name, 0) for name in found)
    assert all(recorded.get(name, 0) >= longest for name in every - {*found})
    assert len(found) > len(every) / 2
