"""The tutorials do what they show: files are saved, commands run in order, outputs are compared."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
NAMES = ("first-five-minutes", "robot-camera", "job-queue", "payments")
URL = "hawser://127.0.0.1:7400"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
# The environment and the cluster are there already.
SKIPPED = ("python3 -m venv", ". .venv", "pip install", "hawser doctor", "hawser up")
# Figures and units of these outputs differ in each run, and with them the widths of columns.
VARYING = ("python slow.py", "hawser ps")
FIGURE = re.compile(r"\d[\d.,]*(?: (?:ms|s|min)\b)?")
# What a shell says of its jobs: interactive shells print the first two, scripts the third.
JOB = re.compile(r"\[\d\]|Killed$|\S+: line \d+: +\d+ (?:Killed|Terminated) ")
MARK = "--- next command ---"
LIMIT_SECONDS = 200


class Command(NamedTuple):
    """A command and the lines that the tutorial shows below it."""

    text: str
    shown: list[str]


def commands_of(block: str) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].shown.append(line)
    return [each for each in found if not each.text.startswith(SKIPPED)]


def run(script: str, directory: Path, environment: dict[str, str]) -> str:
    """The output of a script, which may leave programs in the background: they end here."""
    (directory / "script").write_text(script, encoding="utf-8")
    output = directory / "output"
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "script"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        shell.wait(LIMIT_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    return output.read_text(encoding="utf-8")


def comparable(command: str, lines: list[str]) -> list[str]:
    """The lines without notes about jobs, and without figures that vary."""
    lines = [line for line in lines if not JOB.match(line)]
    if command.startswith("hawser topic hz"):
        return ["Hz" for line in lines[-1:] if " Hz " in line]
    if command.startswith("python proof.py"):
        return [FIGURE.sub("#", line, count=1) for line in lines]
    if command.startswith(VARYING):
        return [" ".join(FIGURE.sub("#", line).split()) for line in lines]
    return lines


def test_all_tutorials_are_known() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_tutorial_does_what_it_shows(cluster: RunningCluster, tmp_path: Path, name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").replace(URL, cluster.url)
    commands: list[Command] = []
    for kind, block in BLOCK.findall(text):
        if kind == "console":
            commands += commands_of(block)
        else:
            named = FILE_NAME.match(block)
            assert named is not None, block
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    script = "".join(f"{each.text}\necho '{MARK}' $?\n" for each in commands)
    with LocalBus() as local:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        output = run(script, tmp_path, {**os.environ, "HAWSER_DIR": str(local.directory), "PATH": path})
    pieces = re.split(rf"{MARK} (\d+)\n", output)
    assert len(pieces) == 2 * len(commands) + 1, output
    for command, printed, status in zip(commands, pieces[::2], pieces[1::2], strict=False):
        assert status == ("137" if "Killed" in command.shown else "0"), output
        shown = comparable(command.text, command.shown)
        assert comparable(command.text, printed.splitlines()) == shown, output
