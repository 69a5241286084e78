"""A shared-memory domain for one test."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hawser.api.bus import Bus, connect

__all__ = ["LocalBus"]


class LocalBus:
    """A new domain in shared memory that is removed when its block ends.

    with LocalBus() as local:
        topic = local.connect("reader").topic("numbers")
    """

    def __init__(self, directory: str = "/dev/shm") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hawser-test-", dir=directory))
        self._buses: list[Bus] = []

    @property
    def url(self) -> str:
        """The URL of the domain, for other processes."""
        return f"shm://{self.directory}"

    def connect(self, name: str | None = None, **options: Any) -> Bus:
        """Connect to the domain; the bus is closed with it."""
        bus = connect(self.url, name=name, **options)
        self._buses.append(bus)
        return bus

    def close(self) -> None:
        """Close every bus of `connect`, and remove the domain."""
        while self._buses:
            self._buses.pop().close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
