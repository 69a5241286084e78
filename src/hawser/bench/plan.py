"""How much to measure, against whom, and where."""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: `directory` is on shared memory and nobody else's; `peers` None means all installed."""

    directory: Path
    quick: bool = False
    peers: frozenset[str] | None = None
    tell: Callable[[str], None] = lambda _: None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 9

    def scaled(self, count: int) -> int:
        """`count`, or the part of it that a quick run does."""
        return count // 4 if self.quick else count

    def invited(self, name: str) -> bool:
        return self.peers is None or name in self.peers

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A fresh directory for one measurement, gone afterwards."""
        path = self.directory / str(next(self._numbers))
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def turns(
        self, measures: Mapping[str, Callable[[], Any]], most: int | None = None
    ) -> dict[str, list[Any]]:
        """What each measure found; they take turns, at most `most` of them, and one warm-up round is not
        counted."""
        repeats = self.repeats if most is None else min(most, self.repeats)
        found: dict[str, list[Any]] = {name: [] for name in measures}
        for turn in range(repeats + 1):
            for name, measure in measures.items():
                self.tell(f"{name}, turn {turn} of {repeats}")
                value = measure()
                if turn:
                    found[name].append(value)
        return found

    def medians(self, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """The median of each measure, in turns."""
        return {name: statistics.median(values) for name, values in self.turns(measures).items()}
