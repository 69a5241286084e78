"""The plan of a run: its directory, its amount of work, and the peers to compare."""

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
    """One run. `directory` is in shared memory and for this run alone; `peers` None means all installed
    peers."""

    directory: Path
    quick: bool = False
    peers: frozenset[str] | None = None
    tell: Callable[[str], None] = lambda _: None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 9

    def scaled(self, count: int) -> int:
        """`count`, or a quarter of it in a quick run."""
        return count // 4 if self.quick else count

    def invited(self, name: str) -> bool:
        return self.peers is None or name in self.peers

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new directory for one measurement, removed afterwards."""
        path = self.directory / str(next(self._numbers))
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def turns(
        self, measures: Mapping[str, Callable[[], Any]], most: int | None = None
    ) -> dict[str, list[Any]]:
        """The results of each measure. The measures take turns, at most `most` rounds, after one warm-up
        round."""
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
