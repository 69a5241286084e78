"""The dispatcher of a queue: its leader delivers messages to consumers and settles them.

Pure: it returns entries to propose, and takes their results. Its caller

1. makes a dispatcher when this member begins to lead and has applied all earlier entries (its leadership is
   `ready`), and drops it when the term ends; nothing in it is needed later;
2. calls `get` after a read of the newest state was confirmed, so that no message is delivered that was
   accepted under another leader; for a transaction the read may be unconfirmed, because a stale leader is
   detected when the accept is proposed;
3. proposes what `settle` and `tick` return, and calls `resolve` with it when the entry is applied or refused.

A settlement ends deliveries, each named by its token: all of them or none. It has a stamp like a batch, so a
repeat, at this leader or the next, gets the result of the first. A consumer has one settlement in flight. A
token of an earlier leader is void: the message is delivered again, and its holder learns that its accept did
not count.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from hawser.errors import Corrupt, UsageError
from hawser.limits import CONSUMER_PREFIX
from hawser.log.entry import Entry
from hawser.log.queue.claims import NO_TOKEN, Claim, Claims, DeliveryPolicy, Token
from hawser.log.queue.delivery_batch import (
    BatchPacker,
    DecodedBatch,
    Delivery,
    DeliveryBatch,
    batch_of,
    deliveries_of,
    nbytes_of,
)
from hawser.log.state.commands import QueueSettle, Run, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.producers import Producers
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.results import Place, Result
from hawser.record.batch import Batch
from hawser.record.metadata import DEAD_LETTER_HEADER
from hawser.record.record import Record

__all__ = [
    "MOST_MOVED_BYTES",
    "Delivery",
    "Dispatcher",
    "Get",
    "DeliveryBatch",
    "Proposal",
    "Settlement",
    "SettlementRefusal",
    "RefusalReason",
    "batch_of",
    "consumer_id",
    "nbytes_of",
    "ranges_of",
    "shown_as",
]

# The most bytes of messages that move together, and of one answer; a single message may be larger.
MOST_MOVED_BYTES: Final = 8 << 20
MOST_DELIVERED_BYTES: Final = 8 << 20


class Get(msgspec.Struct, frozen=True):
    """A session's request for up to `most` messages; with 0 it is only a heartbeat.

    A session numbers its requests from 1, has one in flight and uses only the answer to the last one, so a
    repeated request gets the same messages. `received` is the last token it received, `unseen` are received
    messages that it gives back unseen. A session with a duration expires that long after its last sign of
    life. Its program has seen all held messages but the last `ahead`.
    """

    session: str
    request: int
    received: Token
    most: int
    most_bytes: int = MOST_DELIVERED_BYTES
    unseen: tuple[Token, ...] = ()
    session_duration: int = 0
    ahead: int = 0


class Settlement(msgspec.Struct, frozen=True):
    """A session's request to end deliveries of messages it holds. Incarnations and sequences count from 1."""

    session: str
    incarnation: int
    sequence: int
    accepted: tuple[Token, ...] = ()
    released: tuple[Token, ...] = ()
    rejected: tuple[Token, ...] = ()


class RefusalReason(StrEnum):
    """Why a settlement was refused. No part of it has taken or will take effect."""

    NOT_HELD = "the session does not hold these messages, or no longer"
    OTHER_LEADER = "another node leads; ask there"
    TOO_MUCH = "these messages are too large to be moved together; settle fewer at once"


class SettlementRefusal(msgspec.Struct, frozen=True):
    """A settlement was refused because of these tokens."""

    why: RefusalReason
    tokens: tuple[Token, ...] = ()


class Proposal(msgspec.Struct, frozen=True):
    """An entry of kind QUEUE_SETTLE, and the claims that it ends."""

    payload: bytes
    claims: list[Claim]


# A message to move.
_DeadLetter = tuple[Claim, Record]


class Dispatcher:
    """The dispatcher of one subqueue of `queue`, at a leader that began in this epoch; `read` gives the entry
    at an index."""

    def __init__(
        self,
        machine: Machine,
        read: Callable[[int], Entry],
        epoch: int,
        policy: DeliveryPolicy,
        subqueue: int = MESSAGES,
        queue: str = "",
    ) -> None:
        self._queue = queue
        self._subqueue_number = subqueue
        self._subqueue = machine.part(Queue).subqueues[subqueue]
        self._producers = machine.part(Producers)
        self._read = read
        # The batch that was decoded last, which usually holds the next messages too. It is kept while it is
        # used between two ticks, since decoding a large one takes milliseconds.
        self._decoded: DecodedBatch | None = None
        self._is_decoded_wanted = False
        self.claims = Claims(self._subqueue, epoch, policy)

    def get(self, wanted: Get, now: int) -> tuple[Delivery, ...]:
        """The messages delivered to the session, one by one."""
        return tuple(
            each for delivery_batch in self.deliver(wanted, now) for each in deliveries_of(delivery_batch)
        )

    def deliver(self, wanted: Get, now: int) -> list[DeliveryBatch]:
        """Deliver messages to the session. If a message cannot be read, the error is raised and none is
        delivered."""
        packer = BatchPacker(self._open, self.claims.epoch, wanted.most_bytes)
        self._deliver(wanted, wanted.most, now, packer.take)
        return packer.delivery_batches()

    def hear(self, wanted: Get, now: int) -> None:
        """Note the request without delivering; messages that the session did not receive become ready."""
        self._deliver(wanted, 0, now)

    def _deliver(
        self, wanted: Get, most: int, now: int, takes: Callable[[Claim], bool] | None = None
    ) -> None:
        claims = self.claims
        claims.hear(wanted.session, now, wanted.session_duration, wanted.ahead)
        claims.take_back(wanted.session, wanted.unseen)
        claims.deliver(wanted.session, wanted.request, wanted.received, most, now, takes)

    def peek(self, first: int, most: int, most_bytes: int) -> list[DeliveryBatch]:
        """Copies of messages from `first` on, the oldest first, delivered or not; they have no tokens."""
        packer = BatchPacker(self._open, self.claims.epoch, most_bytes)
        offset = self._subqueue.next_from(min(first, self._subqueue.end))
        for number in range(most):
            deliveries = self._subqueue.deliveries(offset)
            if deliveries is None or not packer.take(Claim(number, offset, deliveries, "", False)):
                break
            offset = self._subqueue.next_from(offset + 1)
        return self._copies(packer)

    def read(self, first: int, end: int, most: int, most_bytes: int) -> list[DeliveryBatch]:
        """As `peek`, from `first` up to `end` and at most `most` offsets, with messages locked by
        transactions."""
        packer = BatchPacker(self._open, self.claims.epoch, most_bytes)
        subqueue = self._subqueue
        for offset in range(max(first, subqueue.start), min(end, first + most, subqueue.end)):
            is_there = subqueue.deliveries(offset) is not None or subqueue.is_locked(offset)
            if is_there and not packer.take(Claim(offset, offset, 0, "", False)):
                break
        return self._copies(packer)

    def _copies(self, packer: BatchPacker) -> list[DeliveryBatch]:
        self._decoded = None
        return [
            msgspec.structs.replace(each, token=NO_TOKEN, delivery_count=each.delivery_count - 1)
            for each in packer.delivery_batches()
        ]

    def settle(self, wanted: Settlement, now: int) -> Proposal | Result | SettlementRefusal:
        """The entry to propose, or the answer if none is needed."""
        tokens = (*wanted.accepted, *wanted.released, *wanted.rejected)
        if any(token.epoch > self.claims.epoch for token in tokens):
            return SettlementRefusal(RefusalReason.OTHER_LEADER)
        consumer = consumer_id(wanted.session)
        verdict = self._producers.judge(consumer, wanted.incarnation, wanted.sequence)
        if verdict is not None:
            return verdict
        self.claims.hear(wanted.session, now)
        found = {token: self.claims.find(wanted.session, token) for token in tokens}
        times = Counter(tokens) if len(found) < len(tokens) else {}
        strange = tuple(token for token, claim in found.items() if claim is None or times.get(token, 1) > 1)
        if strange or not tokens:
            return SettlementRefusal(RefusalReason.NOT_HELD, strange)
        accepted, released, rejected = (
            [claim for token in part if (claim := found[token]) is not None]
            for part in (wanted.accepted, wanted.released, wanted.rejected)
        )
        moved = rejected + [claim for claim in released if self.claims.is_last(claim)]
        returned = [claim for claim in released if not self.claims.is_last(claim)]
        dead_letters = self._movable(moved)
        if len(dead_letters) < len(moved):
            return SettlementRefusal(RefusalReason.TOO_MUCH, wanted.rejected)
        stamp = (consumer, wanted.incarnation, wanted.sequence)
        return self._propose(accepted, returned, dead_letters, stamp)

    @property
    def is_idle(self) -> bool:
        """Whether a tick would have no effect."""
        return self.claims.is_idle and self._decoded is None

    def tick(self, now: int) -> Proposal | None:
        """The entry that ends expired claims: messages are returned, or moved after their last delivery."""
        if not self._is_decoded_wanted:
            self._decoded = None
        self._is_decoded_wanted = False
        over = self.claims.overdue(now)
        seen = [claim for claim in over if not claim.was_ahead]
        ahead = [claim for claim in over if claim.was_ahead]
        last = [claim for claim in seen if self.claims.is_last(claim)]
        returned = [claim for claim in seen if not self.claims.is_last(claim)]
        dead_letters: list[_DeadLetter] = []
        try:
            dead_letters = self._movable(last)
        except (Corrupt, OSError):
            # An unreadable message does not delay the others.
            if not returned and not ahead:
                raise
        if returned or dead_letters:
            # Messages that were ahead need no entry; they become ready together with the ones before them.
            return self._propose([], returned, dead_letters, ahead=ahead)
        for claim in ahead:
            self.claims.come_back(claim)
        return None

    def resolve(self, proposal: Proposal) -> None:
        """Note that the entry was applied or refused."""
        self.claims.resolve(proposal.claims)

    def _propose(
        self,
        accepted: list[Claim],
        returned: list[Claim],
        dead_letters: list[_DeadLetter],
        stamp: tuple[bytes, int, int] = (b"", 0, 0),
        ahead: Sequence[Claim] = (),
    ) -> Proposal:
        moved = [claim for claim, _ in dead_letters]
        batch = self._batch(dead_letters) if dead_letters else b""
        command = QueueSettle(
            self._subqueue_number, ranges_of(accepted), ranges_of(returned), ranges_of(moved), batch, *stamp
        )
        proposal = Proposal(encode_command(command), [*accepted, *returned, *moved, *ahead])
        for claim in proposal.claims:
            claim.pending += 1
        return proposal

    # Contents of messages.

    def _open(self, offset: int) -> DecodedBatch:
        """The decoded batch with this message."""
        self._is_decoded_wanted = True
        decoded = self._decoded
        if decoded is None or not 0 <= offset - decoded[0].first_offset < decoded[0].count:
            place = self._subqueue.locate(offset)
            assert isinstance(place, Place)
            batch = batch_of(self._read(place.index))
            decoded = self._decoded = place, batch, list(batch.records())
        return decoded

    def _movable(self, claims: list[Claim]) -> list[_DeadLetter]:
        """The first of these messages, as many as can move together, at least one."""
        dead_letters: list[_DeadLetter] = []
        size_bytes = 0
        for claim in sorted(claims, key=_offset):
            place, _, records = self._open(claim.offset)
            record = records[claim.offset - place.first_offset]
            size_bytes += nbytes_of(record)
            if dead_letters and size_bytes > MOST_MOVED_BYTES:
                break
            dead_letters.append((claim, record))
        return dead_letters

    def _batch(self, dead_letters: list[_DeadLetter]) -> bytes:
        """The batch of moved messages; a dead letter gets a header with its origin and number of
        deliveries."""
        if self._subqueue_number == DEAD_LETTERS:
            return bytes(Batch.of([_without_origin(record) for _, record in dead_letters]).data)
        try:
            return bytes(Batch.of([self._with_origin(claim, record) for claim, record in dead_letters]).data)
        except UsageError:  # one that fills a batch alone, without a byte to spare
            return bytes(Batch.of([record for _, record in dead_letters]).data)

    def _with_origin(self, claim: Claim, record: Record) -> Record:
        origin = {"queue": self._queue, "offset": claim.offset, "deliveries": claim.deliveries + 1}
        return record._replace(headers={**record.headers, DEAD_LETTER_HEADER: msgspec.json.encode(origin)})


def consumer_id(session: str) -> bytes:
    """The producer id under which a session's settlements are numbered."""
    return (CONSUMER_PREFIX + session).encode()


def shown_as(session: str) -> str:
    """The public name of a session: its client and a digest of its id. The id itself is a secret of the
    client and the nodes, because it authorizes requests."""
    return f"{session.rpartition('#')[0]}#{blake2b(session.encode(), digest_size=6).hexdigest()}"


def _offset(claim: Claim) -> int:
    return claim.offset


def ranges_of(claims: list[Claim]) -> tuple[Run, ...]:
    """The claims as ranges of alike messages, as an entry names them."""
    runs: list[Run] = []
    for claim in sorted(claims, key=_offset):
        if runs:
            first, count, deliveries = runs[-1]
            if claim.offset == first + count and claim.deliveries == deliveries:
                runs[-1] = (first, count + 1, deliveries)
                continue
        runs.append((claim.offset, 1, claim.deliveries))
    return tuple(runs)


def _without_origin(record: Record) -> Record:
    headers = {name: value for name, value in record.headers.items() if name != DEAD_LETTER_HEADER}
    return record._replace(headers=headers)
