"""How far the messages of the demo are: published, recorded, landed; looked at beside the performance."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import hawser

__all__ = ["Gauges"]

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


class Gauges:
    """Whoever is being killed may be slow to answer, so each gauge has its own thread."""

    def __init__(self, topic: "hawser.Topic[Any]", landing: Path) -> None:
        self._topic = topic
        self._landing = landing
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._bus: hawser.Bus | None = None
        self._threads: list[threading.Thread] = []
        self.recorded = Gauge()
        self.landed = Gauge()
        self.leader: str | None = None

    @property
    def published(self) -> int:
        return self._topic.info().head

    def watch_cluster(self, url: str, topic: str) -> None:
        """Begin to look at the recorded topic, and at the tables."""
        self._bus = hawser.connect(url, name="demo-gauges")
        recorded = self._bus.topic(topic)
        self._watch("recorded", lambda: self._look_at_cluster(recorded))
        self._watch("landed", self._look_at_tables)

    def check(self) -> None:
        """What went wrong with looking, if something did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if self._bus is not None:
            self._bus.close()

    def _watch(self, name: str, look: Callable[[], None]) -> None:
        def watch() -> None:
            try:
                while not self._is_over.wait(_LOOK_SECONDS):
                    look()
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=watch, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _look_at_cluster(self, topic: "hawser.Topic[Any]") -> None:
        try:
            info = topic.info()
        except hawser.HawserError as error:
            if not error.retryable:
                raise
            return
        self.recorded.saw(info.head)
        self.leader = info.partitions[0].leader

    def _look_at_tables(self) -> None:
        from hawser.spark.pipelines import tables

        self.landed.saw(tables.count(self._landing, "raw"))
