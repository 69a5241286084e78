"""How old tombstones are, as far as one leader has seen."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from hawser.log.state.results import Outcome
from hawser.transaction.identity import MAX_TIMEOUT_SECONDS, TransactionId

__all__ = ["KEEP_SECONDS", "Ageing"]

# Nobody asks for longer than a transaction may last, nor is a request under way for that long.
KEEP_SECONDS: Final = 2 * MAX_TIMEOUT_SECONDS
LOOK_SECONDS: Final = 60.0
# So many are forgotten by one entry.
MOST_AT_ONCE: Final = 4096


class Ageing:
    """When each was seen first."""

    def __init__(self) -> None:
        self._seen: dict[TransactionId, float] = {}
        self._looked = float("-inf")

    def old(self, tombstones: Iterable[tuple[TransactionId, Outcome]], now: float) -> list[TransactionId]:
        """Those of all there are that may be forgotten; looks once a minute at most."""
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        self._seen = {each: self._seen.get(each, now) for each, _ in tombstones}
        old = (each for each, seen in self._seen.items() if now - seen >= KEEP_SECONDS)
        return list(islice(old, MOST_AT_ONCE))
