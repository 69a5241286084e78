"""How old tombstones are, and whatever else is forgotten some day, as far as one leader has seen."""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from hawser.transaction.identity import MAX_TIMEOUT_SECONDS

__all__ = ["KEEP_SECONDS", "Ageing"]

# Nobody asks for longer than a transaction may last, nor is a request under way for that long.
KEEP_SECONDS: Final = 2 * MAX_TIMEOUT_SECONDS
LOOK_SECONDS: Final = 60.0
# So many are forgotten by one entry.
MOST_AT_ONCE: Final = 4096

K = TypeVar("K", bound=Hashable)


class Ageing(Generic[K]):
    """When each was seen first."""

    def __init__(self) -> None:
        self._seen: dict[K, float] = {}
        self._looked = float("-inf")

    def old(self, kept: Iterable[K], now: float) -> list[K]:
        """Those of all there are that may be forgotten; looks once a minute at most."""
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        self._seen = {each: self._seen.get(each, now) for each in kept}
        old = (each for each, seen in self._seen.items() if now - seen >= KEEP_SECONDS)
        return list(islice(old, MOST_AT_ONCE))
