"""Delivery batches: consecutive messages with the same delivery count, as an answer carries them.

Answers are bounded by the bytes of their messages. Batches are packed while messages are claimed, so a
message without room is not claimed. The size of a message includes some bytes for the header that it gets as
a dead letter.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.queue.claims import Claim, Token
from hawser.log.state.commands import QueueSettle, decoder
from hawser.log.state.results import Place
from hawser.record.batch import Batch
from hawser.record.record import Record

__all__ = [
    "Delivery",
    "DecodedBatch",
    "BatchPacker",
    "DeliveryBatch",
    "batch_of",
    "deliveries_of",
    "nbytes_of",
]

# Added to the bytes of a message: its place in a batch, and the header of a dead letter.
_MESSAGE_BYTES: Final = 256
_HEADER_BYTES: Final = 16

_read_settle = decoder(QueueSettle)

# A batch of a subqueue: its place, the batch, its records.
DecodedBatch = tuple[Place, Batch, list[Record]]


class Delivery(msgspec.Struct, frozen=True):
    """A delivered message. `delivery_count` includes this delivery, as far as known; `redelivered` is True if
    the message may have been delivered before."""

    token: Token
    offset: int
    record: Record
    delivery_count: int
    redelivered: bool


class DeliveryBatch(msgspec.Struct, frozen=True, array_like=True):
    """`count` messages delivered together, with consecutive tokens and offsets. `delivery_count` of each
    includes this delivery, as far as known; `redelivered` is True if they may have been delivered before."""

    token: Token
    offset: int
    count: int
    delivery_count: int
    redelivered: bool
    batch: bytes


class BatchPacker:
    """Packs claimed messages into delivery batches of at most `most_bytes`, or one larger message.
    `open_batch` gives the decoded batch with an offset."""

    def __init__(self, open_batch: Callable[[int], DecodedBatch], epoch: int, most_bytes: int) -> None:
        self._open = open_batch
        self._epoch = epoch
        self._left_bytes = most_bytes
        self._delivery_batches: list[DeliveryBatch] = []
        # The open delivery batch: its claims, their bytes, and the decoded batch they lie in.
        self._claims: list[Claim] = []
        self._nbytes = 0
        self._decoded: DecodedBatch | None = None

    def take(self, claim: Claim) -> bool:
        """Add the message of this claim; False without room."""
        decoded = self._open(claim.offset)
        nbytes = nbytes_of(decoded[2][claim.offset - decoded[0].first_offset])
        if nbytes > self._left_bytes and (self._claims or self._delivery_batches):
            return False
        if self._claims and not (decoded is self._decoded and _follows(claim, self._claims[-1])):
            self._close()
        self._decoded = decoded
        self._claims.append(claim)
        self._nbytes += nbytes
        self._left_bytes -= nbytes
        return True

    def delivery_batches(self) -> list[DeliveryBatch]:
        """The packed batches."""
        if self._claims:
            self._close()
        return self._delivery_batches

    def _close(self) -> None:
        assert self._decoded is not None
        (place, batch, records), claims = self._decoded, self._claims
        first, count = claims[0], len(claims)
        data = batch.data
        # The stored bytes as they are, if all of them are delivered.
        if count < place.count or len(data) > self._nbytes:
            at = first.offset - place.first_offset
            data = Batch.of(records[at : at + count], batch.stamp).data
        redelivered = first.deliveries > 0 or first.maybe_redelivered
        token = Token(self._epoch, first.number)
        self._delivery_batches.append(
            DeliveryBatch(token, first.offset, count, first.deliveries + 1, redelivered, bytes(data))
        )
        self._claims, self._nbytes = [], 0


def _follows(claim: Claim, last: Claim) -> bool:
    """Whether the claim continues the batch: consecutive and with the same delivery count."""
    return (
        claim.offset == last.offset + 1
        and claim.number == last.number + 1
        and claim.deliveries == last.deliveries
        and claim.maybe_redelivered == last.maybe_redelivered
    )


def deliveries_of(delivery_batch: DeliveryBatch) -> Iterator[Delivery]:
    """The messages of the batch, one by one."""
    epoch, number = delivery_batch.token.epoch, delivery_batch.token.number
    for place, record in enumerate(Batch.read(delivery_batch.batch).records()):
        token = Token(epoch, number + place)
        yield Delivery(
            token,
            delivery_batch.offset + place,
            record,
            delivery_batch.delivery_count,
            delivery_batch.redelivered,
        )


def batch_of(entry: Entry) -> Batch:
    """The batch of messages in an entry."""
    if entry.kind == Kind.QUEUE_PUT:
        return Batch.read(entry.payload)
    command = _read_settle(entry)
    assert entry.kind == Kind.QUEUE_SETTLE and command is not None, entry
    return Batch.read(command.batch)


def nbytes_of(record: Record) -> int:
    """The size of a message for the bounds of answers and moves."""
    nbytes = _MESSAGE_BYTES + len(record.value) + len(record.key or b"")
    for name, value in record.headers.items():
        nbytes += _HEADER_BYTES + len(name.encode()) + len(value)
    return nbytes
