"""Wall clocks of processes that step when a test says so; monotonic clocks go on as they are."""

import hashlib
import os
import subprocess
from pathlib import Path

from tests.support.builds import ROOT

__all__ = ["SteppingClock"]

_SOURCE = Path(__file__).with_name("clocks.cpp")


class SteppingClock:
    """The wall clock of the processes that are started with `prefix` before their command."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)
        self.prefix = ["env", f"LD_PRELOAD={_library()}", f"WALL_CLOCK_AHEAD={file}"]

    def step(self, ahead_hours: float) -> None:
        """From now on it is so far ahead of the truth, or behind it."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, round(ahead_hours * 3600).to_bytes(8, "little", signed=True), 0)
        finally:
            os.close(descriptor)


def _library() -> Path:
    """The library to preload, built when its source changed."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = ROOT / "build" / f"clocks-{digest}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["g++", "-shared", "-fPIC", "-O2", "-o", str(unfinished), str(_SOURCE)], check=True)
        unfinished.rename(library)
    return library
