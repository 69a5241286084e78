"""Temporary tracing: regions that were not traced before are traced while an observer runs.

| the region is | an observer | then |
|---|---|---|
| not traced | covers it | traced at the temporary level; the observer shares a lock on the region's byte |
| traced temporarily | closes, and other observers hold the byte | unchanged |
| traced temporarily | closes as the last one | not traced |
| traced for good | covers it or closes | unchanged |

A permanent switch overwrites the temporary level. The bytes are in the ring's file; observers decide one at a
time under another byte of it. Locks end with their process, so a killed observer no longer counts, and the
next observer to close switches its regions off.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from hawser.errors import HawserError, PermissionDenied, Timeout
from hawser.memory.domain import TRACE_NAME, Domain
from hawser.memory.file_locks import held_by_others, try_lock, unlock
from hawser.memory.settings import TRACE_LEVELS
from hawser.memory.trace_ring import make_ring
from hawser.record.trace import region_number

__all__ = ["TemporaryTracing"]

_OFF: Final = 0
_LOOKED_AT: Final = len(TRACE_LEVELS) - 1
# Far behind the end of any ring: one byte for decisions, and one for each region.
_DECISION_BYTE: Final = (1 << 62) - 1
_REGION_BYTES: Final = 1 << 62
_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.005


class TemporaryTracing:
    """One observer. `ring` is the domain's, created if needed; PermissionDenied if it is not accessible."""

    def __init__(self, domain: Domain) -> None:
        self.ring = make_ring(domain)
        self._domain = domain
        self._seen: set[int] = set()
        # The names of temporarily traced regions, by number.
        self._held: dict[int, str] = {}
        path = domain.directory / TRACE_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise PermissionDenied(f"trace ring {path} cannot be opened: {error.strerror}") from error

    def cover(self, name: str) -> None:
        """Trace the topic or queue of this name from now on, if it exists. Raises Closed if it is deleted
        meanwhile."""
        if self._is_seen(name) or (region := self._domain.watch(name)) is None:
            return
        number = region_number(region.uuid)
        with self._decision():
            # Noted first, so that `close` switches it off even if a signal interrupts here.
            self._held[number] = name
            region.trace(self.ring, _LOOKED_AT, only_from=_OFF)
            if region.tracing[1] == _LOOKED_AT:
                is_held = try_lock(self._file, _byte_of(number), shared=True)
                assert is_held, "all followers share it"
            else:
                del self._held[number]
        self._seen.add(number)

    def _is_seen(self, name: str) -> bool:
        """Whether the region is covered, by its label alone, which is cheap."""
        try:
            label = self._domain.label_of(name)
        except OSError:
            return False
        return label is not None and label.number in self._seen

    def close(self) -> None:
        """Switch off the tracing that no other observer needs."""
        try:
            with self._decision():
                for number, name in self._held.items():
                    unlock(self._file, _byte_of(number))
                    if not held_by_others(self._file, _byte_of(number)):
                        self._switch_off(name, number)
        finally:
            os.close(self._file)

    def _switch_off(self, name: str, number: int) -> None:
        try:
            region = self._domain.watch(name)
            if region is not None and region_number(region.uuid) == number:
                region.trace(None, only_from=_LOOKED_AT)
        except HawserError:
            # Deleted or inaccessible; the others are still switched off.
            return

    @contextmanager
    def _decision(self) -> Iterator[None]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not try_lock(self._file, _DECISION_BYTE):
            if time.monotonic() >= deadline:
                raise Timeout(
                    f"another process hangs while it switches tracing in {self._domain.directory}; "
                    "end it, then check the traced topics with `hawser topic info`"
                )
            time.sleep(_PAUSE_SECONDS)
        try:
            yield
        finally:
            unlock(self._file, _DECISION_BYTE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _byte_of(number: int) -> int:
    return _REGION_BYTES | number >> 2
