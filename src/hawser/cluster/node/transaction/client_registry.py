"""The clients that are connected to this node.

    never seen --link--> connected --last link closed--> absent --ABSENT_SECONDS--> lost
        └-- first asked about, UNSEEN_SECONDS --> lost       └--link--> connected

A client dials every node that it knows, so a live client has a link to every leader. A client that has been
absent for ABSENT_SECONDS is lost, and an entry rolls back its open transactions. A node that was just started
has never seen some live clients, so it leaves their transactions to their time limits. No limit is longer
than UNSEEN_SECONDS, after which a client that the node has never seen is lost, too; so nothing is kept for
ever. A client without undecided work is lost sooner.
"""

from typing import Final

from hawser.transaction.identity import MAX_TIMEOUT_SECONDS, owner_of

__all__ = ["ABSENT_SECONDS", "UNSEEN_SECONDS", "ClientRegistry"]

ABSENT_SECONDS: Final = 10.0
UNSEEN_SECONDS: Final = float(MAX_TIMEOUT_SECONDS)
# How long a lost client is remembered; by then none of its transactions are open.
_FORGET_SECONDS: Final = 2 * UNSEEN_SECONDS


class ClientRegistry:
    """The sessions of clients, by the number that stands for their owner in labels."""

    def __init__(self) -> None:
        self._links: dict[int, int] = {}
        # Since when each client that was connected is absent; since when each client that was never seen is
        # asked about.
        self._absent: dict[int, float] = {}
        self._unseen: dict[int, float] = {}

    def link_opened(self, session: str) -> None:
        """A link of this session was opened."""
        owner = owner_of(session)
        self._links[owner] = self._links.get(owner, 0) + 1
        self._absent.pop(owner, None)
        self._unseen.pop(owner, None)

    def link_closed(self, session: str, now: float) -> None:
        """A link of this session was closed."""
        owner = owner_of(session)
        self._links[owner] -= 1
        if not self._links[owner]:
            del self._links[owner]
            self._absent[owner] = now
            _forget(self._absent, now)

    def is_lost(self, owner: int, now: float, unseen_seconds: float = UNSEEN_SECONDS) -> bool:
        """Whether a client has been absent for too long; `unseen_seconds` is the limit if it was never
        connected. Owner 0 means no client and never expires."""
        if not owner or owner in self._links:
            return False
        since = self._absent.get(owner)
        if since is not None:
            return now - since >= ABSENT_SECONDS
        if owner not in self._unseen:
            _forget(self._unseen, now)
        return now - self._unseen.setdefault(owner, now) >= unseen_seconds


def _forget(absences: dict[int, float], now: float) -> None:
    """Drops old absences; the oldest come first."""
    while absences:
        owner, since = next(iter(absences.items()))
        if now - since < _FORGET_SECONDS:
            break
        del absences[owner]
