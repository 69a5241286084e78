"""A domain in shared memory for one test."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hawser.api.bus import Bus, connect

__all__ = ["LocalBus"]


class LocalBus:
    """A domain of its own in shared memory that is gone, with everything in it, when its block ends.

    with LocalBus() as local:
        topic = local.connect("reader").topic("numbers")
    """

    def __init__(self, directory: str = "/dev/shm") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hawser-test-", dir=directory))
        self._buses: list[Bus] = []

    @property
    def url(self) -> str:
        """What other processes connect to."""
        return f"shm://{self.directory}"

    def connect(self, name: str | None = None, **options: Any) -> Bus:
        """A bus in this domain, closed with it."""
        bus = connect(self.url, name=name, **options)
        self._buses.append(bus)
        return bus

    def close(self) -> None:
        """Close every bus made here and remove the domain."""
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
