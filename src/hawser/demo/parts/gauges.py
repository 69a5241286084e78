"""Gauges of the progress of each part, read in threads of their own."""

import threading
from collections.abc import Callable
from typing import Final

import hawser

__all__ = ["Gauge", "Watch"]

_LOOK_SECONDS: Final = 0.1


class Gauge:
    """A value that only grows, and the number of reads."""

    def __init__(self) -> None:
        self.value = 0
        self.looks = 0

    def saw(self, value: int) -> None:
        self.value = max(self.value, value)
        self.looks += 1

    def growth(self) -> Callable[[], bool]:
        """A function that tells whether the value has grown since this call. Reads that began earlier do not
        count."""
        first = self.looks + 2
        base: int | None = None

        def has_grown() -> bool:
            nonlocal base
            if base is None and self.looks >= first:
                base = self.value
            return base is not None and self.value > base

        return has_grown


class Watch:
    """Threads that read gauges, one each, because a process that is killed may answer slowly."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def add(self, gauge: Gauge, look: Callable[[], int]) -> None:
        """Update the gauge with the result of `look` at intervals. Retryable errors are ignored."""

        def watch() -> None:
            try:
                while not self._is_over.wait(_LOOK_SECONDS):
                    try:
                        gauge.saw(look())
                    except hawser.HawserError as error:
                        if not error.retryable:
                            raise
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=watch, name="gauge", daemon=True)
        thread.start()
        self._threads.append(thread)

    def check(self) -> None:
        """Raise the error of a gauge, if there is one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
