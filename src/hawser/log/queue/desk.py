"""The desk of a queue: what its leader does when consumers ask, and as time passes.

Pure: entries to be proposed come out, and what became of them goes in. Whoever drives it

1. makes a desk when this member begins to lead and has applied everything that came before (its leadership is
   `ready`), and drops it when it leads no more; nothing it knew is needed again;
2. calls `get` when a read of the newest state is served, so that nothing is lent that was accepted elsewhere;
3. proposes what `settle` and `tick` return, and calls `resolve` with it when the command is done or refused.

A settlement ends deliveries, each named by its token: all of them or none. It has a stamp, as a batch has, so
it may be asked for again, of this leader or the next, and is answered for what it did. A consumer has one
under way at a time. A token of an earlier leader is void: the message is delivered again, and its holder
learns that its accept did not count.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from hawser.errors import UsageError
from hawser.log.entry import Entry, Kind
from hawser.log.queue.claims import Claim, Claims, Lending, Token
from hawser.log.state.commands import QueueSettle, Run, decoder, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.producers import Producers
from hawser.log.state.queue import LETTERS, MESSAGES, Queue
from hawser.log.state.results import Place, Result
from hawser.record.batch import Batch
from hawser.record.record import Record

__all__ = ["LETTER_HEADER", "Delivery", "Desk", "Get", "Proposal", "Settlement", "Turned", "Why", "batch_of"]

LETTER_HEADER: Final = "hawser-dead-letter"
# Of messages that move together; one alone may have more.
MOST_MOVED_BYTES: Final = 8 << 20

_read_settle = decoder(QueueSettle)


class Delivery(msgspec.Struct, frozen=True):
    """A message that is lent. It was lent `delivery_count` times, this one included, as far as is known;
    `redelivered` if it may have been lent before."""

    token: Token
    offset: int
    record: Record
    delivery_count: int
    redelivered: bool


class Get(msgspec.Struct, frozen=True):
    """What a session wants: up to so many messages, or with 0 only to be known to be there. It numbers its
    requests from 1, one at a time, and listens to no answer but that of the last; so one that is asked again
    gets the same messages. `received` is the last token that it got for any of them."""

    session: str
    request: int
    received: Token
    most: int


class Settlement(msgspec.Struct, frozen=True):
    """What a session wants to become of messages that it holds. Incarnations and sequences count from 1."""

    session: str
    incarnation: int
    sequence: int
    accepted: tuple[Token, ...] = ()
    released: tuple[Token, ...] = ()
    rejected: tuple[Token, ...] = ()


class Why(StrEnum):
    """Why a settlement was turned away; nothing of it was done, nor will be."""

    NOT_HELD = "the session does not hold these messages, or no longer"
    OTHER_LEADER = "somebody else leads; ask there"
    TOO_MUCH = "these messages are too large to be moved together; settle fewer at once"


class Turned(msgspec.Struct, frozen=True):
    """A settlement was turned away, because of these of its tokens."""

    why: Why
    tokens: tuple[Token, ...] = ()


class Proposal(msgspec.Struct, frozen=True):
    """An entry of kind QUEUE_SETTLE, and the claims that it ends."""

    payload: bytes
    claims: list[Claim]


class Desk:
    """The desk of one shelf, at a leader that began in this epoch; `read` gives the entry at an index."""

    def __init__(
        self,
        machine: Machine,
        read: Callable[[int], Entry],
        epoch: int,
        lending: Lending,
        shelf: int = MESSAGES,
    ) -> None:
        self._shelf_number = shelf
        self._shelf = machine.part(Queue).shelves[shelf]
        self._producers = machine.part(Producers)
        self._read = read
        self.claims = Claims(self._shelf, epoch, lending)

    def get(self, wanted: Get, now: int) -> tuple[Delivery, ...]:
        """What the session is lent."""
        claims = self.claims.lend(wanted.session, wanted.request, wanted.received, wanted.most, now)
        return tuple(
            Delivery(
                claim.token,
                claim.offset,
                record,
                claim.deliveries + 1,
                claim.deliveries > 0 or claim.maybe_redelivered,
            )
            for claim, record in zip(claims, self._records(claims), strict=True)
        )

    def settle(self, wanted: Settlement, now: int) -> Proposal | Result | Turned:
        """What to propose; or the answer, if there is one without."""
        tokens = (*wanted.accepted, *wanted.released, *wanted.rejected)
        if any(token.epoch > self.claims.epoch for token in tokens):
            return Turned(Why.OTHER_LEADER)
        consumer = consumer_id(wanted.session)
        verdict = self._producers.judge(consumer, wanted.incarnation, wanted.sequence)
        if verdict is not None:
            return verdict
        self.claims.hear(wanted.session, now)
        found = {token: self.claims.find(wanted.session, token) for token in tokens}
        times = Counter(tokens)
        strange = tuple(token for token in tokens if found[token] is None or times[token] > 1)
        if strange or not tokens:
            return Turned(Why.NOT_HELD, strange)
        accepted, released, rejected = (
            [claim for token in part if (claim := found[token]) is not None]
            for part in (wanted.accepted, wanted.released, wanted.rejected)
        )
        moved = rejected + [claim for claim in released if self.claims.is_last(claim)]
        returned = [claim for claim in released if not self.claims.is_last(claim)]
        if len(self._movable(moved)) < len(moved):
            return Turned(Why.TOO_MUCH, wanted.rejected)
        stamp = (consumer, wanted.incarnation, wanted.sequence)
        return self._propose(accepted, returned, moved, stamp)

    def tick(self, now: int) -> Proposal | None:
        """Time has passed: what was lent for too long is to be returned, or moved if it was the last time."""
        over = self.claims.overdue(now)
        moved = self._movable([claim for claim in over if self.claims.is_last(claim)])
        returned = [claim for claim in over if not self.claims.is_last(claim)]
        return self._propose([], returned, moved) if over else None

    def resolve(self, proposal: Proposal) -> None:
        """The entry is applied, or was refused."""
        self.claims.resolve(proposal.claims)

    def _propose(
        self,
        accepted: list[Claim],
        returned: list[Claim],
        moved: list[Claim],
        stamp: tuple[bytes, int, int] = (b"", 0, 0),
    ) -> Proposal:
        moved = sorted(moved, key=_offset)
        claims = [*accepted, *returned, *moved]
        for claim in claims:
            claim.pending += 1
        command = QueueSettle(
            self._shelf_number,
            _runs(accepted),
            _runs(returned),
            _runs(moved),
            self._letters(moved) if moved else b"",
            *stamp,
        )
        return Proposal(encode_command(command), claims)

    # The messages themselves.

    def _records(self, claims: Iterable[Claim]) -> list[Record]:
        """The records of these, read batch by batch."""
        records: list[Record] = []
        first = 0
        batch: list[Record] = []
        for claim in claims:
            if not first <= claim.offset < first + len(batch):
                place = self._shelf.locate(claim.offset)
                assert isinstance(place, Place)
                first, batch = place.first_offset, list(batch_of(self._read(place.index)).records())
            records.append(batch[claim.offset - first])
        return records

    def _movable(self, claims: list[Claim]) -> list[Claim]:
        """The first of these, as many as can be moved together."""
        size_bytes, count = 0, 0
        for record in self._records(claims):
            size_bytes += len(record.value) + len(record.key or b"")
            if count and size_bytes > MOST_MOVED_BYTES:
                break
            count += 1
        return claims[:count]

    def _letters(self, claims: list[Claim]) -> bytes:
        """What moves, as a batch; a dead letter says where it was and how often it was delivered."""
        records = self._records(claims)
        if self._shelf_number == LETTERS:
            return bytes(Batch.of([_without_origin(record) for record in records]).data)
        pairs = zip(claims, records, strict=True)
        try:
            return bytes(Batch.of([_with_origin(claim, record) for claim, record in pairs]).data)
        except UsageError:  # one that fills a batch alone, without a byte to spare
            return bytes(Batch.of(records).data)


def consumer_id(session: str) -> bytes:
    """Under which the requests of a session are numbered, beside those of producers."""
    return b"consumer:" + session.encode()


def batch_of(entry: Entry) -> Batch:
    """The messages that came with an entry."""
    if entry.kind == Kind.QUEUE_PUT:
        return Batch.read(entry.payload)
    command = _read_settle(entry)
    assert entry.kind == Kind.QUEUE_SETTLE and command is not None, entry
    return Batch.read(command.batch)


def _offset(claim: Claim) -> int:
    return claim.offset


def _runs(claims: list[Claim]) -> tuple[Run, ...]:
    """These as they stand in an entry."""
    runs: list[Run] = []
    for claim in sorted(claims, key=_offset):
        if runs:
            first, count, deliveries = runs[-1]
            if claim.offset == first + count and claim.deliveries == deliveries:
                runs[-1] = (first, count + 1, deliveries)
                continue
        runs.append((claim.offset, 1, claim.deliveries))
    return tuple(runs)


def _with_origin(claim: Claim, record: Record) -> Record:
    origin = msgspec.json.encode({"offset": claim.offset, "deliveries": claim.deliveries + 1})
    return record._replace(headers={**record.headers, LETTER_HEADER: origin})


def _without_origin(record: Record) -> Record:
    headers = {name: value for name, value in record.headers.items() if name != LETTER_HEADER}
    return record._replace(headers=headers)
