"""Letting a process stand still, for certain: a signal to stop takes effect when its threads next look."""

import os
import signal
import time
from pathlib import Path

__all__ = ["stand_still"]

_LIMIT_SECONDS = 60
_POLL_SECONDS = 0.001


def stand_still(process_id: int) -> None:
    """Return when no thread of it runs any more, until it is sent SIGCONT."""
    os.kill(process_id, signal.SIGSTOP)
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not all(_stands(thread) for thread in Path(f"/proc/{process_id}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {process_id} was told to stop, and runs"
        time.sleep(_POLL_SECONDS)


def _stands(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "TtZX"
