"""Which clients are there: those with a link to this node.

    never seen --link--> here --last link closed--> absent --ABSENT_SECONDS--> lost
        └-- asked about, UNSEEN_SECONDS --> lost        └--link--> here

A client dials every node that it knows, so a live client has a link to every leader. A client that had a link
and has had none for a while is lost, and an entry rolls back its open transactions. A node that has never had
a link of a client, because the node is new or was just started, cannot tell whether the client lives: it
leaves the client's open work to its time-outs. None of these is longer than UNSEEN_SECONDS, after which the
client is lost for this node, too. So nothing is kept for ever for a client that is gone. A client without
undecided work is lost sooner.
"""

from typing import Final

from hawser.transaction.identity import MAX_TIMEOUT_SECONDS, owner_of

__all__ = ["ABSENT_SECONDS", "UNSEEN_SECONDS", "ClientRegistry"]

ABSENT_SECONDS: Final = 10.0
UNSEEN_SECONDS: Final = float(MAX_TIMEOUT_SECONDS)
# The time for which a lost client is remembered; by then none of its work is open.
_FORGET_SECONDS: Final = 2 * UNSEEN_SECONDS


class ClientRegistry:
    """Of the runs of clients, by their owners' numbers as labels have them."""

    def __init__(self) -> None:
        self._links: dict[int, int] = {}
        # The time since which each client that was here is absent; the time since which each client that was
        # never here is asked about.
        self._absent: dict[int, float] = {}
        self._unseen: dict[int, float] = {}

    def came(self, run: str) -> None:
        """A link of this run was opened."""
        owner = owner_of(run)
        self._links[owner] = self._links.get(owner, 0) + 1
        self._absent.pop(owner, None)
        self._unseen.pop(owner, None)

    def left(self, run: str, now: float) -> None:
        """A link of this run was closed."""
        owner = owner_of(run)
        self._links[owner] -= 1
        if not self._links[owner]:
            del self._links[owner]
            self._absent[owner] = now
            _forget(self._absent, now)

    def is_lost(self, owner: int, now: float, unseen_seconds: float = UNSEEN_SECONDS) -> bool:
        """Whether a client was absent for too long; `unseen_seconds` is the limit if it was never here. Owner
        0 means no client, and is never lost."""
        if not owner or owner in self._links:
            return False
        since = self._absent.get(owner)
        if since is not None:
            return now - since >= ABSENT_SECONDS
        if owner not in self._unseen:
            _forget(self._unseen, now)
        return now - self._unseen.setdefault(owner, now) >= unseen_seconds


def _forget(absences: dict[int, float], now: float) -> None:
    """Drop absences that are old; the oldest are in front."""
    while absences:
        owner, since = next(iter(absences.items()))
        if now - since < _FORGET_SECONDS:
            break
        del absences[owner]
