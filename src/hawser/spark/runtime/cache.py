"""A cache of files that make Spark start sooner. Deleting it costs time and nothing else.

A file or directory appears under its name complete or not at all: it is made under a temporary name beside it
and renamed. If two processes make the same file at once, both succeed and one result stays.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

__all__ = ["cache_directory", "kept", "key_of"]


def cache_directory() -> Path | None:
    """`$XDG_CACHE_HOME/hawser/spark`, created if needed; None if it cannot be written."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        directory = Path(base) / "hawser" / "spark"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Java and Python run files of this directory, so only this user may write to it.
        found = directory.stat()
    except (OSError, RuntimeError):
        return None
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return directory if ours and os.access(directory, os.W_OK | os.X_OK) else None


def key_of(*parts: object) -> str:
    """A short key of these values."""
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`; if it does not exist, `make` makes the file or directory at the path it is given. OSError if it
    cannot be made."""
    if path.exists():
        return path
    workshop = Path(tempfile.mkdtemp(prefix=".making-", dir=path.parent))
    try:
        made = workshop / path.name
        make(made)
        try:
            made.rename(path)
        except OSError:
            # A directory is not renamed over another one: another process was first.
            if not path.exists():
                raise
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return path
