"""The packages that Spark needs: PySpark, pyarrow and pandas, each within its range of versions."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from hawser.errors import UsageError

__all__ = ["PACKAGES", "Package", "check_packages"]

_CURE: Final = "pip install 'hawser-bus[spark]'"


class Package(NamedTuple):
    """A package and its allowed versions: at least `least`, and below `below` if there is such a bound."""

    name: str
    least: tuple[int, int]
    below: tuple[int, int] | None = None

    @property
    def installed(self) -> str | None:
        """Its version, None if it is not installed."""
        return _installed(self.name)

    @property
    def fault(self) -> str | None:
        """What is wrong with it, None if nothing is."""
        found = self.installed
        if found is None:
            return f"{self.name} is not installed"
        place = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
        if place < self.least:
            return f"{self.name} is {found}, and has to be {_dotted(self.least)} or newer"
        if self.below is not None and place >= self.below:
            return f"{self.name} is {found}, and has to be older than {_dotted(self.below)}"
        return None


# PySpark 4.2 brought read limits and AvailableNow to Python sources; its pandas code breaks on pandas 3.
PACKAGES: Final = (Package("pyspark", (4, 2)), Package("pyarrow", (15, 0)), Package("pandas", (2, 2), (3, 0)))


def check_packages() -> None:
    """Raise UsageError naming every package that is missing, too old or too new."""
    faults = list(_faults())
    if faults:
        raise UsageError(f"Spark cannot be used here: {'; '.join(faults)}. Run: {_CURE}")


@cache
def _installed(name: str) -> str | None:
    """Read once: it takes milliseconds, of every query."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _faults() -> Iterator[str]:
    for package in PACKAGES:
        if fault := package.fault:
            yield fault


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
