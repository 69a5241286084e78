"""Where the workers of `tests.cluster.transaction_worker` work, what they write down, and what stops them."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.cluster.worker import PATIENT, Until
from tests.support.lines import Lines

__all__ = ["COPY", "ECHO", "GROUP", "OPTIONS", "QUEUES", "REST", "TRAIL", "Notes", "Orders", "ring_queue"]

QUEUES: Final = 4
TRAIL: Final = "trail"
ECHO: Final = "echo"
COPY: Final = "copy"
GROUP: Final = "copyists"
OPTIONS: Final = {"session_seconds": 3.0, **PATIENT}
# As long as there is a file of this name beside the notes, nobody begins anything.
REST: Final = "rest"
_LOOK_SECONDS: Final = 0.05


def ring_queue(number: int) -> str:
    return f"ring{number}"


class Notes:
    """A line for each event."""

    def __init__(self, file: str | Path) -> None:
        self._lines = Lines(file)

    def write(self, deed: str, **more: Any) -> None:
        self._lines.write(msgspec.json.encode({"deed": deed, **more}))


class Orders(Until):
    """True until standard input ends."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._rest = Path(file).with_name(REST)

    def rest(self) -> None:
        """Return when something may be begun, or everything ends."""
        while self and self._rest.exists():
            time.sleep(_LOOK_SECONDS)

    async def rest_in_a_loop(self) -> None:
        while self and self._rest.exists():
            await asyncio.sleep(_LOOK_SECONDS)
