"""A metadata store: one shard's metadata, written by compare-and-set, sometimes slow or out of reach."""

from collections.abc import Callable
from random import Random

import msgspec

from hawser.log.protocol.metadata import Metadata
from hawser.testing.clock import SimClock

__all__ = ["SimStore", "StoreFaults"]

Answer = Callable[[Metadata], None]
# (what was there, what is there now, who wrote it)
Observer = Callable[[Metadata, Metadata, str], None]


class StoreFaults(msgspec.Struct, frozen=True):
    """How bad the way to the store is: shares between 0 and 1, delays in microseconds."""

    lost_requests: float = 0.0
    lost_answers: float = 0.0
    delay_least: int = 100
    delay_most: int = 1_000


class SimStore:
    """Linearizable: every request takes effect at one instant, or never. `cut_off` are the operators that
    do not reach it."""

    def __init__(
        self, clock: SimClock, random: Random, metadata: Metadata, faults: StoreFaults | None = None
    ) -> None:
        self.clock = clock
        self.random = random
        self.metadata = metadata
        self.faults = faults or StoreFaults()
        self.cut_off: set[str] = set()
        self.observers: list[Observer] = []
        self.writes = self.conflicts = 0

    def load(self, operator: str, answer: Answer) -> None:
        """`answer` gets the metadata, sooner or later or never."""
        self._go(operator, self.faults.lost_requests, self._answer, operator, answer)

    def store(self, operator: str, metadata: Metadata, answer: Answer) -> None:
        """Write it if the version before it is what is there; `answer` gets what is there then."""
        self._go(operator, self.faults.lost_requests, self._write, operator, metadata, answer)

    def _write(self, operator: str, metadata: Metadata, answer: Answer) -> None:
        old = self.metadata
        if metadata.version == old.version + 1:
            self.metadata = metadata
            self.writes += 1
            for observe in self.observers:
                observe(old, metadata, operator)
        elif metadata != old:
            self.conflicts += 1
        self._answer(operator, answer)

    def _answer(self, operator: str, answer: Answer) -> None:
        self._go(operator, self.faults.lost_answers, answer, self.metadata)

    def _go(self, operator: str, loss: float, action: Callable[..., None], *arguments: object) -> None:
        if operator in self.cut_off or (loss and self.random.random() < loss):
            return
        low, high = self.faults.delay_least, self.faults.delay_most
        self.clock.after(low + int(self.random.random() * (high - low)), action, *arguments)
