"""What processes do, as the kernel says; and letting one stand still, for certain: a signal to stop takes
effect when its threads next look."""

import os
import signal
import time
from pathlib import Path

__all__ = ["stand_still", "state_of"]

_LIMIT_SECONDS = 60
_POLL_SECONDS = 0.001


def stand_still(process_id: int) -> None:
    """Return when no thread of it runs any more, until it is sent SIGCONT."""
    os.kill(process_id, signal.SIGSTOP)
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not all(_stands(thread) for thread in Path(f"/proc/{process_id}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {process_id} was told to stop, and runs"
        time.sleep(_POLL_SECONDS)


def state_of(process_id: int) -> str:
    """Of its first thread: S if it sleeps."""
    return _state(Path(f"/proc/{process_id}"))


def _stands(thread: Path) -> bool:
    try:
        return _state(thread) in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _state(of: Path) -> str:
    return (of / "stat").read_text().rpartition(") ")[2][0]
