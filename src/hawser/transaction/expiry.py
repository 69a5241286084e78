"""The age of tombstones, and of other records that expire, such as coordinator shards that were deleted.

A tombstone is kept for as long as a client may still ask about its transaction, under any number of leaders.
Clocks of different machines cannot be compared, and a leader knows only its own time. So leaders write their
time into the log: a *mark* is an entry without content, which says that its leader has led for another
MARK_SECONDS since its last mark, or since it began to count. The state machine counts marks, and each
tombstone carries the count at which it was written (`Register`). A tombstone is old after OLD_MARKS further
marks.

No tombstone expires too early. Each mark stands for a separate period of one leader, and the first mark after
a tombstone does not count, because the tombstone may have been written at the end of that period. The time
that a leader has not marked when it stops leading is lost, so tombstones are kept longer by that time."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

from hawser.transaction.identity import MAX_TIMEOUT_SECONDS

__all__ = ["KEEP_SECONDS", "MARK_SECONDS", "OLD_MARKS", "ExpiryTimer"]

# No client asks later than the longest timeout of a transaction, and no request is in flight for that long.
KEEP_SECONDS: Final = 2 * MAX_TIMEOUT_SECONDS
LOOK_SECONDS: Final = 60.0
# Each leader loses less than this time. A mark costs one entry, even on an idle shard.
MARK_SECONDS: Final = 300
OLD_MARKS: Final = -(-KEEP_SECONDS // MARK_SECONDS) + 1
# The most tombstones that one entry removes.
MOST_AT_ONCE: Final = 4096

K = TypeVar("K")


class ExpiryTimer:
    """Says when a leader writes marks and searches for old tombstones."""

    def __init__(self) -> None:
        self._marked: float | None = None
        self._looked = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether to write a mark now. The time to the first mark runs from the first call."""
        if self._marked is None:
            self._marked = now
        if now - self._marked < MARK_SECONDS:
            return False
        self._marked = now
        return True

    def old(self, old: Iterable[K], now: float) -> list[K]:
        """The first MOST_AT_ONCE of these; searches once a minute at most."""
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        return list(islice(old, MOST_AT_ONCE))
