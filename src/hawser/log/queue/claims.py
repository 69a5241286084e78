"""Claims: which session holds which message. The soft state of a queue's leader.

| a message is | until | then |
|---|---|---|
| ready | a session asks for messages | claimed |
| claimed, held by its session | an entry that ends the claim is applied | accepted, moved, or ready again |
| claimed, held | the session or the lease expires, or the session leaves | over |
| claimed, held | the session says it never showed it, or never received it | ready; no delivery is counted |
| over, held by no session | the entry that returns or moves it is applied | ready, or a dead letter |

A claim is one message delivered to one session. Its token is unique: the epoch in which this leader began,
and a number. Until an entry that ends the claim is applied, no other session gets the message; an entry that
is lost or has no effect changes nothing. While an entry that ends a claim is pending, the claim does not
expire: a holder that is told that it does not hold a message knows that none of its requests will still take
effect. The caller supplies the time.

**Messages ahead.** A session that prefetches says how many messages its program has not seen (`ahead`). If
the session dies, those delivered to it last are not counted as delivered, so that a message that kills its
consumer does not take the ones behind it along. The first message is always counted; the others are *maybe
redelivered*. All messages that were there when this leader began are maybe redelivered too, because an
earlier leader may have delivered them.

Messages are delivered in the order of their offsets; returned ones come before all others. Memory holds the
claims and the returned offsets; the rest is in the subqueue.
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
# Leases of ended claims are removed when there are this many more of them than claims.
_SPARE_LEASES: Final = 64


class Token(msgspec.Struct, frozen=True, array_like=True):
    """The name of a claim."""

    epoch: Number
    number: Number


NO_TOKEN: Final = Token(0, 0)


class DeliveryPolicy(msgspec.Struct, frozen=True):
    """How messages are delivered; durations are in the caller's unit of time. 0 means no lease, and no limit
    of deliveries. A session may bring a duration of its own."""

    session_duration: int
    lease_duration: int = 0
    max_deliveries: int = 0
    # The most messages that one session holds.
    most_held: int = 10_000


class Claim:
    """A delivered message. `deliveries` ended before this one; `pending` is the number of proposed entries
    that would end this claim or, if it was ahead, the claims before it. `was_ahead` says that the message was
    ahead when its session ended, so that this delivery is not counted."""

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
    """A consumer's session. `delivered` answers its last request, numbered `request`; its program has not
    seen the last `ahead` of the held messages."""

    __slots__ = ("ahead", "duration", "heard", "held", "delivered", "request")

    def __init__(self, duration: int) -> None:
        self.duration = duration
        self.ahead = 0
        self.heard = 0
        self.held: dict[int, Claim] = {}
        self.request = 0
        self.delivered: list[Claim] = []


class Claims:
    """The claims of one leader on one subqueue. The leader must have applied all entries before its term."""

    def __init__(self, subqueue: Subqueue, epoch: int, policy: DeliveryPolicy) -> None:
        self.epoch = epoch
        self._subqueue = subqueue
        self._policy = policy
        # By the number of the token.
        self._number = 0
        self._claims: dict[int, Claim] = {}
        # The offsets of all claims.
        self._claimed: set[int] = set()
        self._sessions: dict[str, _Session] = {}
        # By the number of the token: claims that no session holds any more. Their messages are not ready
        # until an entry returns or moves them. Then (end of the lease, number), in order.
        self._over: dict[int, Claim] = {}
        self._leases: deque[tuple[int, int]] = deque()
        # A heap of returned offsets. Offsets from `_next` on were never delivered by this leader. Those
        # before `_alike_end` are known to be ready, with `_alike_deliveries` ended deliveries each, so one
        # look into the subqueue serves all of them.
        self._returned: list[int] = []
        self._next = subqueue.start
        self._alike_end = self._alike_deliveries = 0
        self._began_at = subqueue.end
        # Offsets of messages that were ahead in a session that ended: its program may have seen them, but no
        # delivery was counted, so their next claims are maybe redelivered.
        self._unsure: set[int] = set()
        subqueue.on_return = self._came_back

    def __len__(self) -> int:
        """The number of claims, those that are over included."""
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims.values())

    @property
    def holders(self) -> dict[str, int]:
        """The number of messages that each session holds."""
        return {name: len(session.held) for name, session in self._sessions.items()}

    @property
    def is_any_ready(self) -> bool:
        """Whether a message may be ready."""
        return bool(self._returned) or self._subqueue.next_from(self._next) < self._subqueue.end

    @property
    def is_any_over(self) -> bool:
        """Whether claims are over and wait for an entry that ends them."""
        return bool(self._over)

    @property
    def is_idle(self) -> bool:
        """Whether there is no session and no claim, so that time changes nothing."""
        return not self._sessions and not self._claims

    def hear(self, name: str, now: int, duration: int = 0, ahead: int | None = None) -> None:
        """Note a sign of life of the session; it expires after its duration without another one."""
        assert name != _NOBODY
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(self._policy.session_duration)
        session.heard = now
        session.duration = duration or session.duration
        session.ahead = session.ahead if ahead is None else ahead

    def leave(self, name: str) -> None:
        """End the session and the claims it holds."""
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
        """Deliver the first `most` ready messages to the session, as far as `takes` accepts them; if it
        raises, none is delivered.

        A session numbers its requests from 1, has one in flight and uses only the answer to the last one. A
        repeated request gets the same messages again as far as they are still held, or new ones if it got
        none; an earlier request gets nothing. `received` is the last token the session ever received:
        messages delivered to it later were lost on the way and become ready again.
        """
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
        """Whether the session has made a later request."""
        session = self._sessions.get(name)
        return session is not None and request < session.request

    def take_back(self, name: str, tokens: Iterable[Token]) -> None:
        """Take back messages that the session has not shown to its program; no delivery is counted."""
        self._take_back([claim for token in tokens if (claim := self.find(name, token)) is not None])

    def _take_back(self, claims: list[Claim]) -> None:
        """Make the messages ready again as if never delivered, unless an entry that ends them is pending."""
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
        """Up to `most` new claims. A message that has used up its deliveries becomes a claim that is over."""
        while most > 0 and (found := self._take()) is not None:
            claim = self._claim(*found, name)
            if self._is_last(claim.deliveries - 1):
                self._end(claim)
            else:
                most -= 1
                yield claim

    def _take(self) -> tuple[int, int] | None:
        """The first ready message and the number of its ended deliveries; None if no message is ready."""
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
        """Make messages ready that a transaction unlocked; the subqueue calls this. `resolve` handles those
        with a claim, and `_take` finds those from `_next` on by itself."""
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
        """Whether this delivery is the last one allowed."""
        return self._is_last(claim.deliveries)

    def _is_last(self, deliveries: int) -> bool:
        return 0 < self._policy.max_deliveries <= deliveries + 1

    def find(self, name: str, token: Token) -> Claim | None:
        """The claim with this token, if this session holds it."""
        claim = self._claims.get(token.number) if token.epoch == self.epoch else None
        return claim if claim is not None and claim.session == name else None

    def overdue(self, now: int) -> list[Claim]:
        """The claims that are over and have no pending entry."""
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
        """Take the claim from its holder, for good."""
        session = self._sessions.get(claim.session)
        if session is not None:
            session.held.pop(claim.number, None)
        claim.session = _NOBODY
        self._over[claim.number] = claim

    def resolve(self, claims: "list[Claim]") -> None:
        """Note that a pending entry of these claims was applied or refused; the subqueue shows which."""
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
        """Make a message ready that was ahead in a session that is over, without counting a delivery."""
        self._unsure.add(claim.offset)
        self._forget(claim)
        heappush(self._returned, claim.offset)

    def _is_held(self, claim: Claim) -> bool:
        """Whether its session still holds it."""
        session = self._sessions.get(claim.session)
        return session is not None and claim.number in session.held

    def _forget(self, claim: Claim) -> None:
        del self._claims[claim.number]
        self._claimed.remove(claim.offset)
        self._over.pop(claim.number, None)
        session = self._sessions.get(claim.session)
        if session is not None:
            session.held.pop(claim.number, None)
