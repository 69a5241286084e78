"""Who sleeps on a topic, read from its file: tests wait for it instead of hoping."""

import struct
import threading
import time
from pathlib import Path
from typing import Final

# Where the waiter bits of the two signals are (docs/formats/topic-region.md).
_WAITERS_AT: Final = {"subscriber": 1216 + 8, "publisher": 1280 + 8}
_PATIENCE_SECONDS: Final = 30.0


def asleep(topic_file: Path, kind: str) -> bool:
    """Whether a "subscriber" or a "publisher" of the topic has told the others that it sleeps."""
    with topic_file.open("rb") as file:
        file.seek(_WAITERS_AT[kind])
        return bool(struct.unpack("<Q", file.read(8))[0])


def until_asleep(topic_file: Path, kind: str) -> None:
    """Return when one of that kind sleeps; AssertionError when none ever does."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not asleep(topic_file, kind):
        assert time.monotonic() < deadline, f"no {kind} went to sleep"
        time.sleep(0.0005)


def pauses_of(thread: threading.Thread) -> int:
    """How often a living thread has gone to sleep so far."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
