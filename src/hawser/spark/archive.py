"""An archive of Spark's loaded and verified classes, which the next JVM maps (AppCDS).

Java spends half of the time until a first row on reading classes. An archive belongs to one Java and to the
jars of one Spark; its name contains both. The name also contains the file's length: Java checks the contents
of an archive (`VerifySharedSpaces`) and ignores a damaged one, but a truncated one would kill it.

One process makes an archive at a time, under a lock that the kernel releases when the process dies. It runs
what programs usually do (`runtime/warmup.py`) and installs the archive once Java has accepted it. If anything
fails, Spark starts without an archive. `HAWSER_SPARK_ARCHIVE=no` switches archives off.
"""

import atexit
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hawser.errors import UsageError
from hawser.spark.requirements import check_packages
from hawser.spark.runtime.cache import cache_directory, key_of
from hawser.spark.runtime.java import Java, find_java

__all__ = ["archive_options", "make_archive", "make_archive_at_exit"]

_VARIABLE: Final = "HAWSER_SPARK_ARCHIVE"
# Raise it when the warm-up changes; archives of another recipe are not used.
_RECIPE: Final = 1
_ROOM_BYTES: Final = 1 << 30
_UNUSED_SECONDS: Final = 30 * 24 * 3600.0
_RETRY_SECONDS: Final = 24 * 3600.0
_MAKING_SECONDS: Final = 600.0
_REHEARSAL: Final = ("-m", "hawser.spark.runtime.warmup")
# No program waits for it, so it must not slow down others.
_GENTLY: Final = "--gently"
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_log = logging.getLogger("hawser.spark")
_asked_for = False


def archive_options(home: Path) -> list[str]:
    """The JVM options that use the archive for the Spark in `home`; empty while there is none."""
    prefix = _prefix(home)
    found = None if prefix is None else _find(prefix)
    return [] if found is None else _options(found)


def _options(archive: Path) -> list[str]:
    return [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", *_QUIET]


def _prefix(home: Path) -> Path | None:
    """The prefix of the archive's path; None if no archive is possible."""
    directory = cache_directory()
    configuration = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    # Java refuses archives of a class path with a directory that has something in it.
    if os.environ.get(_VARIABLE) == "no" or directory is None or _has_entries(configuration):
        return None
    java = find_java()
    jars = [
        (jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted((home / "jars").iterdir())
    ]
    return directory / f"archive-{key_of(_RECIPE, java.home, java.version, home, jars)}-"


def _has_entries(directory: Path) -> bool:
    try:
        return next(directory.iterdir(), None) is not None
    except OSError:
        return False


def _find(prefix: Path) -> Path | None:
    """The archive whose length is the one in its name; others are removed."""
    for path in prefix.parent.glob(f"{prefix.name}*.jsa"):
        with suppress(OSError, ValueError):
            if path.stat().st_size == int(path.stem.rpartition("-")[2]):
                os.utime(path)
                return path
            path.unlink()
    return None


def make_archive_at_exit(home: Path) -> None:
    """Have the archive for `home` made by a process of its own when this one ends, unless there is one."""
    global _asked_for
    prefix = None if _asked_for else _prefix(home)
    if prefix is not None and _find(prefix) is None and not _failed_lately(prefix):
        _asked_for = True
        atexit.register(_begin_making)


def _failed_lately(prefix: Path) -> bool:
    """Whether an attempt failed lately: some Javas cannot make archives, and each attempt takes a minute."""
    try:
        # If the clock was set back, a time in the future does not count as recent.
        return 0 <= time.time() - _failure(prefix).stat().st_mtime < _RETRY_SECONDS
    except OSError:
        return False


def _failure(prefix: Path) -> Path:
    """The file that holds the reason of the last failure."""
    return prefix.with_name(f"{prefix.name}failure.txt")


def _begin_making() -> None:
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    command = [sys.executable, "-m", "hawser.spark.archive", _GENTLY]
    with suppress(OSError):
        os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere, setsid=True)


def make_archive(home: Path) -> bool:
    """Make the archive for `home` unless there is one or an attempt failed lately; whether there is one now.
    False, too, while another process makes it."""
    prefix = _prefix(home)
    if prefix is None or _failed_lately(prefix):
        return False
    with _lock(prefix.parent) as ours:
        if _find(prefix) is None and ours and shutil.disk_usage(prefix.parent).free > _ROOM_BYTES:
            _remove_leftovers(prefix.parent)
            _rehearse(prefix, find_java())
        return _find(prefix) is not None


@contextmanager
def _lock(directory: Path) -> Iterator[bool]:
    """Whether this process is the one that makes archives."""
    with (directory / "archive.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed makers left, and archives that were not used for long. A JVM keeps the one it
    maps."""
    for workshop in directory.glob(".archive-*"):
        shutil.rmtree(workshop, ignore_errors=True)
    for archive in directory.glob("archive-*.jsa"):
        with suppress(OSError):
            if time.time() - archive.stat().st_mtime > _UNUSED_SECONDS:
                archive.unlink()


def _rehearse(prefix: Path, java: Java) -> None:
    workshop = Path(tempfile.mkdtemp(prefix=".archive-", dir=prefix.parent))
    try:
        made = workshop / "made.jsa"
        options = " ".join([f"-XX:ArchiveClassesAtExit={made}", *_QUIET])
        command = [sys.executable, *_REHEARSAL, options]
        class_path = _output(command, cwd=workshop, env={**os.environ, _VARIABLE: "no"}).strip()
        # With -Xshare:on, Java would rather not start than do without it.
        command = [
            str(java.home / "bin" / "java"),
            "-Xshare:on",
            *_options(made),
            "-cp",
            class_path,
            "-version",
        ]
        _output(command)
        made.rename(prefix.with_name(f"{prefix.name}{made.stat().st_size}.jsa"))
    except (OSError, subprocess.SubprocessError) as error:
        told = [str(error)[:500], *(str(getattr(error, name, None) or "") for name in ("stdout", "stderr"))]
        reason = "\n".join(each.strip()[-2000:] for each in told if each)
        _log.warning("Spark will start as slowly as ever, its classes cannot be kept: %s", reason)
        with suppress(OSError):
            _failure(prefix).write_text(reason, encoding="utf-8")
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _output(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, check=True, text=True, timeout=_MAKING_SECONDS
    )
    return done.stdout


def main() -> int:
    """Make the archive now, even if an attempt failed lately; the exit code."""
    from hawser.spark.runtime.session import spark_home

    if _GENTLY in sys.argv[1:]:
        os.nice(19)
    try:
        check_packages()
        home = spark_home()
        if prefix := _prefix(home):
            _failure(prefix).unlink(missing_ok=True)
        return int(not make_archive(home))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
