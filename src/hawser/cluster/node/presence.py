"""Which clients are there: those with a link to this node.

A client dials every node, so one that lives has a link to whoever leads. One that has had none for a while is
lost, and what it has open in transactions is rolled back, by an entry. A node that did not know a client, as
after a start of its own, waits for it as long, from when it is first asked about it.
"""

from typing import Final

from hawser.transaction.identity import owner_of

__all__ = ["ABSENT_SECONDS", "Presence"]

ABSENT_SECONDS: Final = 10.0
# For so long it is remembered that somebody is lost.
_FORGET_SECONDS: Final = 600.0


class Presence:
    """Of the runs of clients, by their owners' numbers as labels have them."""

    def __init__(self) -> None:
        self._links: dict[int, int] = {}
        # Since when each that was here, or that somebody asked about, is not here.
        self._absent: dict[int, float] = {}

    def came(self, run: str) -> None:
        """A link of this run was opened."""
        owner = owner_of(run)
        self._links[owner] = self._links.get(owner, 0) + 1
        self._absent.pop(owner, None)

    def left(self, run: str, now: float) -> None:
        """A link of this run was closed."""
        owner = owner_of(run)
        self._links[owner] -= 1
        if not self._links[owner]:
            del self._links[owner]
            self._absent[owner] = now
            self._forget(now)

    def is_lost(self, owner: int, now: float) -> bool:
        """Whether it was not here for too long; nobody, 0, is never lost."""
        if not owner or owner in self._links:
            return False
        return now - self._absent.setdefault(owner, now) >= ABSENT_SECONDS

    def _forget(self, now: float) -> None:
        """Those who went first are in front."""
        while self._absent:
            owner, since = next(iter(self._absent.items()))
            if now - since < _FORGET_SECONDS:
                break
            del self._absent[owner]
