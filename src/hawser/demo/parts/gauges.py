"""How far the messages of the demo are at each part of the path, looked at beside the performance."""

import threading
from collections.abc import Callable
from typing import Final

import hawser

__all__ = ["Gauge", "Watch"]

_LOOK_SECONDS: Final = 0.1


class Gauge:
    """A figure that only grows, and how often it was looked at."""

    def __init__(self) -> None:
        self.value = 0
        self.looks = 0

    def saw(self, value: int) -> None:
        self.value = max(self.value, value)
        self.looks += 1

    def growth(self) -> Callable[[], bool]:
        """Whether it has grown since now. What a look that began earlier may not have seen does not count."""
        first = self.looks + 2
        base: int | None = None

        def has_grown() -> bool:
            nonlocal base
            if base is None and self.looks >= first:
                base = self.value
            return base is not None and self.value > base

        return has_grown


class Watch:
    """Whoever is being killed may be slow to answer, so each gauge has its own thread."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def add(self, gauge: Gauge, look: Callable[[], int]) -> None:
        """Let the gauge see what `look` returns, again and again. A look that nobody answers is left out."""

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
        """What went wrong with looking, if something did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
