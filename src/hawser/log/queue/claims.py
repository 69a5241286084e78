"""Who holds which message: the soft state of the one who leads a queue.

A claim is one message, lent to one session, with a token that no other claim ever has: the epoch in which
this leader began, and a number. It ends by an entry: accepted, returned or moved. Until that entry is applied
the claim stays, so nobody else is given the message; if the entry does not come through, or does not take
effect, it is as if it had not been asked for. When a session is not heard of for too long, or a claim lasts
longer than a lease, if there is one, the claim is over: the message is to be returned, and belongs to nobody
until it is. A claim that its holder has asked to end is not taken from it before it is known whether that was
done: whoever is told that it does not hold a message must know that nothing it asked for will happen to it.
Time is whatever the caller says it is.

Messages are lent in the order of their offsets: first those that came back, which are all before the others.
Memory is what is lent or came back; the rest is on the shelf.

A message may have been lent by an earlier leader, which nobody knows. So all that were there when this one
began are *maybe redelivered*.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

import msgspec

from hawser.log.entry import Number
from hawser.log.state.queue_shelf import Shelf

__all__ = ["NO_TOKEN", "Claim", "Claims", "Lending", "Token"]

_NOBODY: Final = ""
# Leases of claims that are gone are kept until there are so many more of them than claims.
_SPARE_LEASES: Final = 64


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Names a claim."""

    epoch: Number
    number: Number


NO_TOKEN: Final = Token(0, 0)


class Lending(msgspec.Struct, frozen=True):
    """How messages are lent, in the caller's unit of time. 0 is no lease, and no bound of deliveries."""

    session_duration: int
    lease_duration: int = 0
    max_deliveries: int = 0
    # Messages that one session holds at a time.
    most_held: int = 10_000


class Claim:
    """A message that is lent. `deliveries` of it had ended before; `pending` entries would end this one."""

    __slots__ = ("deliveries", "maybe_redelivered", "offset", "pending", "session", "token")

    def __init__(self, token: Token, offset: int, deliveries: int, session: str, maybe: bool) -> None:
        self.token = token
        self.offset = offset
        self.deliveries = deliveries
        self.session = session
        self.maybe_redelivered = maybe
        self.pending = 0


class _Session:
    """`lent` is what the last request, `request`, was given."""

    __slots__ = ("heard", "held", "lent", "request")

    def __init__(self) -> None:
        self.heard = 0
        self.held: dict[Token, Claim] = {}
        self.request = 0
        self.lent: list[Claim] = []


class Claims:
    """The claims of one leader on one shelf, which it must have applied everything to that came before it."""

    def __init__(self, shelf: Shelf, epoch: int, lending: Lending) -> None:
        self.epoch = epoch
        self._shelf = shelf
        self._lending = lending
        self._number = 0
        self._claims: dict[Token, Claim] = {}
        self._sessions: dict[str, _Session] = {}
        # Claims that are over, and claims in the order in which their leases end.
        self._over: dict[Token, Claim] = {}
        self._leases: deque[tuple[int, Token]] = deque()
        # Offsets that came back, a heap; all others from `_next` on were not lent yet.
        self._returned: list[int] = []
        self._next = shelf.start
        self._began_at = shelf.end

    def __len__(self) -> int:
        """How many messages are lent, or not back yet."""
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims.values())

    @property
    def holders(self) -> dict[str, int]:
        """How many messages each session holds."""
        return {name: len(session.held) for name, session in self._sessions.items()}

    def hear(self, name: str, now: int) -> None:
        """The session is there."""
        assert name != _NOBODY
        self._sessions.setdefault(name, _Session()).heard = now

    def leave(self, name: str) -> None:
        """The session is over; what it holds is to be returned."""
        session = self._sessions.pop(name, None)
        if session is not None:
            for claim in session.held.values():
                if not claim.pending:
                    self._end(claim)

    def lend(self, name: str, request: int, received: Token, most: int, now: int) -> list[Claim]:
        """Lend the session up to so many messages, the first there are.

        A session numbers its requests from 1, has one under way and listens to no answer but its. So a repeat
        gets what the first got, as far as that is still held, and an earlier one nothing. `received` is the
        last token the session ever got: what was lent to it later did not reach it, and is over."""
        self.hear(name, now)
        session = self._sessions[name]
        if request < session.request:
            return []
        if request > session.request:
            session.request = request
            known = received.number if received.epoch == self.epoch else 0
            for claim in [claim for token, claim in session.held.items() if token.number > known]:
                if not claim.pending:
                    self._end(claim)
            session.lent = self._lend(name, session, most, now)
        return [claim for claim in session.lent if claim.token in session.held]

    def _lend(self, name: str, session: _Session, most: int, now: int) -> list[Claim]:
        """Those that were delivered too often are not lent, but over at once."""
        most = min(most, self._lending.most_held - len(session.held))
        lent: list[Claim] = []
        while len(lent) < most and (offset := self._take()) is not None:
            claim = self._claim(offset, name)
            if self._is_last(claim.deliveries - 1):
                self._end(claim)
                continue
            session.held[claim.token] = claim
            lent.append(claim)
            if self._lending.lease_duration:
                self._leases.append((now + self._lending.lease_duration, claim.token))
        if len(self._leases) > 2 * len(self._claims) + _SPARE_LEASES:
            self._leases = deque(lease for lease in self._leases if lease[1] in self._claims)
        return lent

    def _take(self) -> int | None:
        """The first message that is not lent; None if all are."""
        while self._returned:
            offset = heappop(self._returned)
            if self._shelf.deliveries(offset) is not None:
                return offset
        offset = self._shelf.next_from(self._next)
        if offset >= self._shelf.end:
            self._next = self._shelf.end
            return None
        self._next = offset + 1
        return offset

    def _claim(self, offset: int, session: str) -> Claim:
        deliveries = self._shelf.deliveries(offset)
        assert deliveries is not None
        self._number += 1
        token = Token(self.epoch, self._number)
        claim = self._claims[token] = Claim(token, offset, deliveries, session, offset < self._began_at)
        return claim

    def is_last(self, claim: Claim) -> bool:
        """Whether the message is not to be delivered again if this delivery fails."""
        return self._is_last(claim.deliveries)

    def _is_last(self, deliveries: int) -> bool:
        return 0 < self._lending.max_deliveries <= deliveries + 1

    def find(self, name: str, token: Token) -> Claim | None:
        """The claim with this token, if this session holds it."""
        claim = self._claims.get(token)
        return claim if claim is not None and claim.session == name else None

    def overdue(self, now: int) -> list[Claim]:
        """The claims that are over and that no entry is on its way to end."""
        lost = self._lending.session_duration
        for name in [name for name, session in self._sessions.items() if now - session.heard > lost]:
            self.leave(name)
        pending: list[tuple[int, Token]] = []
        while self._leases and self._leases[0][0] < now:
            lease = self._leases.popleft()
            claim = self._claims.get(lease[1])
            if claim is not None and claim.pending:
                pending.append(lease)
            elif claim is not None:
                self._end(claim)
        self._leases.extendleft(reversed(pending))
        return [claim for claim in self._over.values() if not claim.pending]

    def _end(self, claim: Claim) -> None:
        """It belongs to nobody from here on, not even if its holder comes back."""
        session = self._sessions.get(claim.session)
        if session is not None:
            session.held.pop(claim.token, None)
        claim.session = _NOBODY
        self._over[claim.token] = claim

    def resolve(self, claims: "list[Claim]") -> None:
        """An entry that would have ended these is applied, or will never be. What it was shows on the
        shelf."""
        for claim in claims:
            claim.pending -= 1
            if claim.token not in self._claims:
                continue
            deliveries = self._shelf.deliveries(claim.offset)
            if deliveries != claim.deliveries:
                self._forget(claim)
                if deliveries is not None:
                    heappush(self._returned, claim.offset)
            elif not claim.pending and not self._is_held(claim):
                self._end(claim)

    def _is_held(self, claim: Claim) -> bool:
        """Whether the session it was lent to has been there ever since."""
        session = self._sessions.get(claim.session)
        return session is not None and claim.token in session.held

    def _forget(self, claim: Claim) -> None:
        del self._claims[claim.token]
        self._over.pop(claim.token, None)
        session = self._sessions.get(claim.session)
        if session is not None:
            session.held.pop(claim.token, None)
