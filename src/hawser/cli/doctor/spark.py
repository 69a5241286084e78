"""Checks of Spark: packages, Java, and the Python of its workers.

Spark is optional, so no check here fails: a missing part is reported as ok, an incompatible part as a
warning.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from hawser.cli.doctor import Finding
from hawser.errors import UsageError
from hawser.spark.requirements import PACKAGES
from hawser.spark.runtime.java import find_java

__all__ = ["spark_checks"]

_ADVICE: Final = "pip install 'hawser-bus[spark]'"
_QUERY_SECONDS: Final = 60.0
# Prints the versions of a Python as JSON.
_QUERY_PROGRAM: Final = """
import importlib.util as u, json, sys
from importlib.metadata import version
pyspark = version("pyspark") if u.find_spec("pyspark") else None
print(json.dumps([sys.version_info[:2], pyspark, u.find_spec("pyspark_hawser") is not None]))
"""


class _Worker(msgspec.Struct, array_like=True):
    """The versions in a Python interpreter."""

    python: tuple[int, int]
    pyspark: str | None
    has_source: bool


def spark_checks() -> Iterator[Finding]:
    """Check whether this Python can use Spark; one finding if Spark is not installed."""
    if PACKAGES[0].installed is None:
        text = 'not installed; only sessions, pipelines and format("hawser") need it'
        yield Finding("Spark", "ok", f"{text}: {_ADVICE}")
        return
    yield _packages()
    yield _java()
    yield _python("PYSPARK_PYTHON")
    if os.environ.get("PYSPARK_DRIVER_PYTHON"):
        yield _python("PYSPARK_DRIVER_PYTHON")


def _packages() -> Finding:
    faults = [fault for package in PACKAGES if (fault := package.fault)]
    if faults:
        return Finding("Spark", "warn", "; ".join(faults), _ADVICE)
    return Finding("Spark", "ok", ", ".join(f"{each.name} {each.installed}" for each in PACKAGES))


def _java() -> Finding:
    try:
        java = find_java()
    except UsageError as error:
        found, _, advice = str(error).partition(": ")
        return Finding("Java", "warn", found, advice)
    return Finding("Java", "ok", f"{java.version}, from {java.origin}")


def _python(variable: str) -> Finding:
    """Check that the Python in an environment variable of Spark has the versions of this one, and the
    source."""
    named = os.environ.get(variable)
    try:
        worker = _query_python(named or sys.executable)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return Finding(
            variable, "warn", f"{named} does not run: {error}", f"unset it, or set it to {sys.executable}"
        )
    ours = _Worker((sys.version_info.major, sys.version_info.minor), PACKAGES[0].installed, True)
    faults = list(_differences(worker, ours))
    if faults:
        advice = f"set it to {sys.executable}, or there: pip install 'hawser-bus[spark]=={_version()}'"
        return Finding(variable, "warn", f"{named or sys.executable} {' and '.join(faults)}", advice)
    place = named or "not set; hawser.spark.session() uses this Python"
    return Finding(variable, "ok", f"{place}, with pyspark_hawser")


def _query_python(python: str) -> _Worker:
    asked = subprocess.run(
        [python, "-c", _QUERY_PROGRAM], capture_output=True, check=True, timeout=_QUERY_SECONDS
    )
    return msgspec.json.decode(asked.stdout, type=_Worker)


def _differences(worker: _Worker, ours: _Worker) -> Iterator[str]:
    if worker.python != ours.python:
        yield f"is Python {'.'.join(map(str, worker.python))}, not {'.'.join(map(str, ours.python))}"
    if worker.pyspark != ours.pyspark:
        yield f"has PySpark {worker.pyspark}, not {ours.pyspark}" if worker.pyspark else "has no PySpark"
    if not worker.has_source:
        yield "does not find pyspark_hawser"


def _version() -> str:
    import hawser

    return hawser.__version__
