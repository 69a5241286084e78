"""Tracing for as long as somebody looks: what was not traced before is not traced after the last of them.

A region that is traced only because somebody looks says so: it has a level of its own, which whoever switches
tracing on or off for good overwrites. Who looks holds a byte of the ring's file for it, shared with all who
look, and the last one switches it off. That is decided one at a time, under another byte of the file. Locks
end with their process: one that is killed is not counted any more, and what it left is switched off by the
next one who looked.
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
# Far behind the end of any ring: one byte to decide under, and one for each region.
_DECISION_BYTE: Final = (1 << 62) - 1
_REGION_BYTES: Final = 1 << 62
_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.005


class TemporaryTracing:
    """What one process looks at. `ring` is the domain's, made if there is none; PermissionDenied if it is not
    ours to use."""

    def __init__(self, domain: Domain) -> None:
        self.ring = make_ring(domain)
        self._domain = domain
        self._seen: set[int] = set()
        # Regions that are traced because somebody looks, by their numbers.
        self._held: dict[int, str] = {}
        path = domain.directory / TRACE_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise PermissionDenied(f"trace ring {path} cannot be opened: {error.strerror}") from error

    def cover(self, name: str) -> None:
        """Have a topic or queue traced from now on, if there is one of that name. Closed if it is deleted at
        this moment."""
        if self._is_seen(name) or (region := self._domain.watch(name)) is None:
            return
        number = region_number(region.uuid)
        with self._decision():
            # Noted first: a signal may end this at any moment, and what was switched on is switched off.
            self._held[number] = name
            region.trace(self.ring, _LOOKED_AT, only_from=_OFF)
            if region.tracing[1] == _LOOKED_AT:
                is_held = try_lock(self._file, _byte_of(number), shared=True)
                assert is_held, "everybody shares it"
            else:
                del self._held[number]
        self._seen.add(number)

    def _is_seen(self, name: str) -> bool:
        """By its label alone, which costs little."""
        try:
            label = self._domain.label_of(name)
        except OSError:
            return False
        return label is not None and label.number in self._seen

    def close(self) -> None:
        """Look no longer."""
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
            # Deleted, or not ours any more: the others are to be switched off all the same.
            return

    @contextmanager
    def _decision(self) -> Iterator[None]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not try_lock(self._file, _DECISION_BYTE):
            if time.monotonic() >= deadline:
                raise Timeout(
                    f"another process stands still while it switches tracing in {self._domain.directory}; "
                    "end it, and see what is traced with `hawser topic info`"
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
