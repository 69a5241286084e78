"""Every command of the how-tos about clusters is typed here, on machines of their own on loopback."""

import configparser
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.machines import ROOT, Step, can_mount, machines, steps_of

HOWTOS = ROOT / "docs" / "howto"
BEGINNING = HOWTOS / "three-machines.md"
OTHERS = ["replacing-a-machine", "growing-and-shrinking", "rolling-restart", "restoring"]


def test_three_machines(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with machines(tmp_path) as made:
        record_property("commands", made.follow(BEGINNING))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_follows(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with machines(tmp_path) as made:
        made.follow(BEGINNING)
        record_property("commands", made.follow(HOWTOS / f"{name}.md"))


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small disk")
def test_a_full_disk(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with machines(tmp_path) as made:
        made.small_disk("a", "140M")
        made.follow(BEGINNING)
        # The one with the small disk leads, so that its disk is the one to be noticed.
        made.enter("a", "hawser topic pub backlog first && hawser cluster transfer all a")
        record_property("commands", made.follow(HOWTOS / "disk-full.md"))


def test_a_how_to_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.md"
    with machines(tmp_path) as made:
        wrong.write_text("```console\na$ hawser config chekc\n```\n")
        with pytest.raises(AssertionError, match="No such command"):
            made.follow(wrong)
        wrong.write_text("```console\na$ hawser --version\n0.1 alpha\n```\n")
        with pytest.raises(AssertionError, match="printed no"):
            made.follow(wrong)
        wrong.write_text("```console\na$ hawser --version\n9.9.9\n```\n")
        assert made.follow(wrong) == 1


def test_blocks_are_read_as_they_are_typed(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "```toml\na$ not this\n```\n<!-- gone: c -->\n"
        "```console\na$ cat > x <<'END'\ntext\nEND\nb$ one \\\n  two\nprinted\n```\n"
    )
    assert list(steps_of(document)) == [
        Step("c", "", [], "gone"),
        Step("a", "cat > x <<'END'\ntext\nEND", []),
        Step("b", "one \\\n  two", ["printed"]),
    ]


@pytest.mark.parametrize("unit", ["hawser-node", "hawser-operator"])
def test_units_are_what_systemd_takes(unit: str, tmp_path: Path) -> None:
    source = ROOT / "deploy" / f"{unit}.service"
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(source)
    service = parser["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    # The program need not be where a package would put it.
    copy = tmp_path / source.name
    copy.write_text(source.read_text().replace("/usr/bin/hawser", "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Unknown" not in done.stderr and "Failed to parse" not in done.stderr, done.stderr
