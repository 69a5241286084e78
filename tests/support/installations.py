"""Pythons with a few packages and nothing else, made without a network from what this one has."""

import shutil
import subprocess
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.support.processes import LIMIT_SECONDS

SOURCES = Path(__file__).resolve().parents[2] / "src"
# What Hawser needs where it is installed, and what these packages need.
REQUIRED = ("msgspec", "crc32c", "xxhash", "click", "rich", "markdown-it-py", "mdurl", "pygments")
# The part of it that reading and writing topics needs.
COMPILED = ("msgspec", "crc32c", "xxhash")


def copy_hawser(directory: Path) -> None:
    """All of Hawser but its native module, into a directory that a Python looks for packages in."""
    for package in SOURCES.iterdir():
        shutil.copytree(
            package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )


def copy_packages(directory: Path, names: tuple[str, ...]) -> None:
    """As `pip install --no-deps --target` leaves them there, their metadata among it."""
    for source in _parts(names):
        if source.is_dir():
            shutil.copytree(source, directory / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, directory)


class BarePython:
    """A Python of its own, with these packages of the one that runs the tests."""

    def __init__(self, directory: Path, names: tuple[str, ...]) -> None:
        venv.create(directory, symlinks=True)
        self.program = directory / "bin" / "python"
        (self.packages,) = directory.glob("lib/python*/site-packages")
        for source in _parts(names):
            (self.packages / source.name).symlink_to(source)

    def run(self, *arguments: Any, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run it without the variables that bring packages of another one along."""
        words = [str(self.program), "-I", *map(str, arguments)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended


def _parts(names: tuple[str, ...]) -> set[Path]:
    """What lies in the directory of packages for each of them."""
    found: set[Path] = set()
    for name in names:
        place = distribution(name)
        tops = {file.parts[0] for file in place.files or () if file.parts[0] not in ("..", "__pycache__")}
        found |= {Path(str(place.locate_file(top))) for top in tops}
    return found
