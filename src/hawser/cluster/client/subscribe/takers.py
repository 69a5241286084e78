"""The takers of a group member: which samples each holds, and which a transaction has claimed.

A *taker* is a thread, or a task of an event loop; several may share one member. A taker *holds* samples from
the moment it takes them until a commit or a transaction covers them. Samples become void when the group
resumes before them: then the next commit of each of their takers raises, once. Samples may be handed from one
taker to another, so the next commit of any other taker may raise, too.

The owner of a `Takers` holds its lock during every call.
"""

import weakref
from collections.abc import Iterable
from typing import NamedTuple

from hawser.cluster.client.subscribe.subscription import Taker

__all__ = ["Claim", "Taken", "Takers"]


class Taken(NamedTuple):
    """A member's progress when `taker` commits: how often it had gone back, the positions behind the samples
    taken, and the number of samples taken."""

    returns: int
    positions: dict[int, int]
    received: int
    taker: Taker | None


class Claim:
    """The claim of a transaction on a member: the positions to which it moves the group, by partition, and
    the takers of the samples."""

    __slots__ = ("others", "positions", "received", "taker")

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        # The last claimant, and the count of samples when it handed the transaction over.
        self.taker: Taker | None = None
        self.received = 0
        # Other takers whose samples are claimed.
        self.others: list[Taker] = []


class Takers:
    """The takers of one member. A count is the number of samples that the member had handed out by then."""

    def __init__(self) -> None:
        # The last taker, and the count when it began; the other takers, and the count when each took last.
        self._last: Taker | None = None
        self._since = 0
        self._others: weakref.WeakKeyDictionary[Taker, int] = weakref.WeakKeyDictionary()
        # The notices of void samples, by taker, each with its partitions; the last is for the next taker that
        # commits.
        self._notices: weakref.WeakKeyDictionary[Taker, set[int]] = weakref.WeakKeyDictionary()
        self._next_notice: set[int] = set()

    def take(self, taker: Taker, count: int) -> None:
        """Note that this taker is about to take."""
        if taker is not self._last:
            self._note(count)
            self._last, self._since = taker, count

    def _note(self, count: int) -> None:
        if self._last is not None and count > self._since:
            self._others[self._last] = count

    def cover(self, count: int, upto: int) -> list[Taker]:
        """Record that a commit covers every sample up to the count `upto`; return the takers that held some
        of them."""
        self._note(count)
        covered = [taker for taker, last in self._others.items() if last <= upto]
        for taker in covered:
            del self._others[taker]
        self._since = count
        return covered

    def holders(self, count: int, knowing: Taker | None = None, upto: int = 0) -> list[Taker]:
        """The takers that hold samples, except one that knows that its samples up to a count are void."""
        self._note(count)
        return [taker for taker, last in self._others.items() if taker is not knowing or last > upto]

    def void(self, count: int) -> None:
        """Record that all held samples are void."""
        self._others.clear()
        self._since = count

    def notify(self, takers: Iterable[Taker], partitions: set[int]) -> None:
        """Record for each of these takers that its samples of these partitions are void."""
        for taker in takers:
            self._notices.setdefault(taker, set()).update(partitions)

    def notify_next(self, partitions: Iterable[int]) -> None:
        """Record that samples of these partitions are void, for the next taker that commits."""
        self._next_notice.update(partitions)

    def take_notices(self, taker: Taker | None) -> set[int]:
        """Remove and return the notices for this taker: the partitions of which it has void samples."""
        untold, self._next_notice = self._next_notice, set()
        return untold if taker is None else untold | self._notices.pop(taker, set())
