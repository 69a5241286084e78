"""Where files are kept that only make Spark start sooner. Whoever deletes them loses time and nothing else.

A file or directory appears under its name complete or not at all: it is made beside it under a name of its
own and renamed. Two processes that make the same thing at once both succeed, and one of the two stays.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

__all__ = ["cache_directory", "kept", "key_of"]


def cache_directory() -> Path | None:
    """`$XDG_CACHE_HOME/hawser/spark`, made if need be; None where nothing can be kept."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        directory = Path(base) / "hawser" / "spark"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Java and Python run what lies here: it must be nobody else's to write.
        found = directory.stat()
    except (OSError, RuntimeError):
        return None
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return directory if ours and os.access(directory, os.W_OK | os.X_OK) else None


def key_of(*parts: object) -> str:
    """A short name for what was made of these."""
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made by `make` (a file or a directory at the path it is given) unless it is there already.
    OSError if it cannot be made."""
    if path.exists():
        return path
    workshop = Path(tempfile.mkdtemp(prefix=".making-", dir=path.parent))
    try:
        made = workshop / path.name
        make(made)
        try:
            made.rename(path)
        except OSError:
            # A directory is not renamed over another: somebody else was first.
            if not path.exists():
                raise
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return path
