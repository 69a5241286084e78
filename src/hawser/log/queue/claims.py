"""Who holds which message: the soft state of the one who leads a queue.

A claim is one message, lent to one session, with a token that no other claim ever has: the epoch in which
this leader began, and a number. It ends by an entry: accepted, returned or moved. Until that entry is applied
the claim stays, so nobody else is given the message; if the entry does not come through, or does not take
effect, it is as if it had not been asked for. When a session is not heard of for too long, or a claim lasts
longer than a lease, if there is one, the claim is over: the message is to be returned, and belongs to nobody
until it is. A claim that its holder has asked to end is not taken from it before it is known whether that was
done: whoever is told that it does not hold a message must know that nothing it asked for will happen to it.
Time is whatever the caller says it is.

What its session never saw, because an answer was lost or because it says so, needs no entry: the claim is
forgotten, the message lent to the next one, and no delivery is counted. A session that gets messages ahead
says how many that may be. If it dies, those it was lent last were ahead, and are not counted either, or a
message that kills its consumer would take the ones behind it along. Perhaps they were not: the first is
always counted, and the others are *maybe redelivered*.

Messages are lent in the order of their offsets: first those that came back, which are all before the others.
Memory is what is lent or came back; the rest is on the shelf.

A message may have been lent by an earlier leader, which nobody knows. So all that were there when this one
began are maybe redelivered, too.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

import msgspec

from hawser.log.entry import Number
from hawser.log.state.subqueue import Subqueue

__all__ = ["NO_TOKEN", "Claim", "Claims", "DeliveryPolicy", "Token"]

_NOBODY: Final = ""
# Leases of claims that are gone are kept until there are so many more of them than claims.
_SPARE_LEASES: Final = 64


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Names a claim."""

    epoch: Number
    number: Number


NO_TOKEN: Final = Token(0, 0)


class DeliveryPolicy(msgspec.Struct, frozen=True):
    """How messages are lent, in the caller's unit of time. 0 is no lease, and no bound of deliveries. A
    session may say another duration of its own."""

    session_duration: int
    lease_duration: int = 0
    max_deliveries: int = 0
    # Messages that one session holds at a time.
    most_held: int = 10_000


class Claim:
    """A message that is lent. `deliveries` of it had ended before; `pending` entries would end this one or,
    if it was ahead, the ones before it."""

    __slots__ = ("deliveries", "maybe_redelivered", "number", "offset", "pending", "session", "was_ahead")

    def __init__(self, number: int, offset: int, deliveries: int, session: str, maybe: bool) -> None:
        self.number = number
        self.offset = offset
        self.deliveries = deliveries
        self.session = session
        self.maybe_redelivered = maybe
        self.pending = 0
        self.was_ahead = False


class _Session:
    """`delivered` is what the last request, `request`, was given; of what it holds up to `ahead` were not
    seen."""

    __slots__ = ("ahead", "duration", "heard", "held", "delivered", "request")

    def __init__(self, duration: int) -> None:
        self.duration = duration
        self.ahead = 0
        self.heard = 0
        self.held: dict[int, Claim] = {}
        self.request = 0
        self.delivered: list[Claim] = []


class Claims:
    """The claims of one leader on one shelf, which it must have applied everything to that came before it."""

    def __init__(self, subqueue: Subqueue, epoch: int, policy: DeliveryPolicy) -> None:
        self.epoch = epoch
        self._subqueue = subqueue
        self._policy = policy
        # By the numbers of their tokens.
        self._number = 0
        self._claims: dict[int, Claim] = {}
        # Their offsets.
        self._claimed: set[int] = set()
        self._sessions: dict[str, _Session] = {}
        # Claims that are over, and claims in the order in which their leases end.
        self._over: dict[int, Claim] = {}
        self._leases: deque[tuple[int, int]] = deque()
        # Offsets that came back, a heap; all others from `_next` on were not lent yet. Nothing happens to
        # those but that others come behind them: up to `_alike_end` as many deliveries of each have ended.
        self._returned: list[int] = []
        self._next = subqueue.start
        self._alike_end = self._alike_deliveries = 0
        self._began_at = subqueue.end
        # Offsets of what was perhaps seen, and not counted.
        self._unsure: set[int] = set()
        subqueue.on_return = self._came_back

    def __len__(self) -> int:
        """How many messages are lent, or not back yet."""
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims.values())

    @property
    def holders(self) -> dict[str, int]:
        """How many messages each session holds."""
        return {name: len(session.held) for name, session in self._sessions.items()}

    @property
    def is_any_ready(self) -> bool:
        """Whether there may be something to lend."""
        return bool(self._returned) or self._subqueue.next_from(self._next) < self._subqueue.end

    @property
    def is_any_over(self) -> bool:
        """Whether there are claims to be ended by the next entry."""
        return bool(self._over)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is there, so that time changes nothing."""
        return not self._sessions and not self._claims

    def hear(self, name: str, now: int, duration: int = 0, ahead: int | None = None) -> None:
        """The session is there; with a duration, and for so long unless it is heard of again."""
        assert name != _NOBODY
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(self._policy.session_duration)
        session.heard = now
        session.duration = duration or session.duration
        session.ahead = session.ahead if ahead is None else ahead

    def leave(self, name: str) -> None:
        """The session is over; what it holds is to be returned."""
        session = self._sessions.pop(name, None)
        if session is not None:
            seen = max(1, len(session.held) - session.ahead)
            for place, claim in enumerate(session.held.values()):
                if not claim.pending:
                    claim.was_ahead = place >= seen
                    self._end(claim)

    def deliver(
        self,
        name: str,
        request: int,
        received: Token,
        most: int,
        now: int,
        takes: Callable[[Claim], bool] | None = None,
    ) -> list[Claim]:
        """Lend the session up to so many messages, the first there are, and no more than `takes` has room
        for; if that raises, nothing is lent.

        A session numbers its requests from 1, has one under way and listens to no answer but its. So a repeat
        gets what the first got, as far as that is still held, or what there is by now if that was nothing;
        and an earlier one gets nothing. `received` is the last token the session ever got: what was lent to
        it later did not reach it, and is lent anew."""
        self.hear(name, now)
        session = self._sessions[name]
        if request < session.request:
            return []
        if request > session.request:
            session.request = request
            session.delivered = []
            known = received.number if received.epoch == self.epoch else 0
            self._take_back([claim for number, claim in session.held.items() if number > known])
        if not most:
            return []
        if not session.delivered:
            session.delivered = self._deliver(name, session, most, now, takes)
            return session.delivered
        again = [claim for claim in session.delivered if claim.number in session.held]
        return again if takes is None else list(takewhile(takes, again))

    def is_outdated(self, name: str, request: int) -> bool:
        """Whether the session has asked for something else since."""
        session = self._sessions.get(name)
        return session is not None and request < session.request

    def take_back(self, name: str, tokens: Iterable[Token]) -> None:
        """The session has shown these messages to nobody, and does not want them."""
        self._take_back([claim for token in tokens if (claim := self.find(name, token)) is not None])

    def _take_back(self, claims: list[Claim]) -> None:
        """It is as if they had not been lent, unless an entry that ends them is under way."""
        for claim in claims:
            if not claim.pending:
                self._forget(claim)
                heappush(self._returned, claim.offset)

    def _deliver(
        self, name: str, session: _Session, most: int, now: int, takes: Callable[[Claim], bool] | None
    ) -> list[Claim]:
        delivered: list[Claim] = []
        try:
            for claim in self._fresh(name, min(most, self._policy.most_held - len(session.held))):
                session.held[claim.number] = claim
                delivered.append(claim)
                if takes is not None and not takes(claim):
                    self._take_back([delivered.pop()])
                    break
        except Exception:
            self._take_back(delivered)
            raise
        if self._policy.lease_duration:
            end = now + self._policy.lease_duration
            self._leases.extend((end, claim.number) for claim in delivered)
            if len(self._leases) > 2 * len(self._claims) + _SPARE_LEASES:
                self._leases = deque(lease for lease in self._leases if lease[1] in self._claims)
        return delivered

    def _fresh(self, name: str, most: int) -> Iterator[Claim]:
        """Claims of what is not lent, up to so many. Those that were delivered too often are not lent, but
        over at once."""
        while most > 0 and (found := self._take()) is not None:
            claim = self._claim(*found, name)
            if self._is_last(claim.deliveries - 1):
                self._end(claim)
            else:
                most -= 1
                yield claim

    def _take(self) -> tuple[int, int] | None:
        """The first message that is not lent, and how many deliveries of it have ended; None if all are."""
        while self._returned:
            offset = heappop(self._returned)
            deliveries = self._subqueue.deliveries(offset)
            if deliveries is not None:
                return offset, deliveries
        if self._next >= self._alike_end:
            self._next = self._subqueue.next_from(self._next)
            if self._next >= self._subqueue.end:
                return None
            self._alike_end, self._alike_deliveries = self._subqueue.alike_from(self._next)
        self._next += 1
        return self._next - 1, self._alike_deliveries

    def _came_back(self, first: int, count: int) -> None:
        """A transaction gave these back. One whose claim is still there comes back when that is resolved."""
        for offset in range(first, min(first + count, self._next)):
            if offset not in self._claimed:
                heappush(self._returned, offset)

    def _claim(self, offset: int, deliveries: int, session: str) -> Claim:
        number = self._number = self._number + 1
        maybe = offset < self._began_at or offset in self._unsure
        claim = self._claims[number] = Claim(number, offset, deliveries, session, maybe)
        self._claimed.add(offset)
        return claim

    def is_last(self, claim: Claim) -> bool:
        """Whether the message is not to be delivered again if this delivery fails."""
        return self._is_last(claim.deliveries)

    def _is_last(self, deliveries: int) -> bool:
        return 0 < self._policy.max_deliveries <= deliveries + 1

    def find(self, name: str, token: Token) -> Claim | None:
        """The claim with this token, if this session holds it."""
        claim = self._claims.get(token.number) if token.epoch == self.epoch else None
        return claim if claim is not None and claim.session == name else None

    def overdue(self, now: int) -> list[Claim]:
        """The claims that are over and that no entry is on its way to end."""
        sessions = self._sessions.items()
        for name in [name for name, session in sessions if now - session.heard > session.duration]:
            self.leave(name)
        pending: list[tuple[int, int]] = []
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
            session.held.pop(claim.number, None)
        claim.session = _NOBODY
        self._over[claim.number] = claim

    def resolve(self, claims: "list[Claim]") -> None:
        """An entry that would have ended these is applied, or will never be. What it was shows on the
        shelf."""
        for claim in claims:
            claim.pending -= 1
            if claim.number not in self._claims:
                continue
            if claim.was_ahead:
                self.come_back(claim)
                continue
            deliveries = self._subqueue.deliveries(claim.offset)
            if deliveries != claim.deliveries:
                self._unsure.discard(claim.offset)
                self._forget(claim)
                if deliveries is not None:
                    heappush(self._returned, claim.offset)
            elif not claim.pending and not self._is_held(claim):
                self._end(claim)

    def come_back(self, claim: Claim) -> None:
        """It was ahead, and its session is over: perhaps seen, and not counted."""
        self._unsure.add(claim.offset)
        self._forget(claim)
        heappush(self._returned, claim.offset)

    def _is_held(self, claim: Claim) -> bool:
        """Whether the session it was lent to has been there ever since."""
        session = self._sessions.get(claim.session)
        return session is not None and claim.number in session.held

    def _forget(self, claim: Claim) -> None:
        del self._claims[claim.number]
        self._claimed.remove(claim.offset)
        self._over.pop(claim.number, None)
        session = self._sessions.get(claim.session)
        if session is not None:
            session.held.pop(claim.number, None)
