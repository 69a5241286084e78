"""Forwarding of dead letters to a queue of another name, each exactly once.

Dead letters first go to the second subqueue of their own queue and leave it in order, a batch at a time. The
node puts the batch on the other queue under the stamp of the producer `letters:SHARD`, whose incarnation is
the offset of the batch's first message and whose sequence is 1, and accepts the messages in their own queue
once the put is done. A repeat of the batch, by this leader or the next, is answered as a repeat; a batch
older than the newest is fenced, so it was put before. For this, consumers cannot take messages from that
subqueue (a gap would be taken for messages already forwarded), and only nodes may use that producer.
"""

from collections.abc import Callable
from typing import Final

from hawser.limits import DEAD_LETTERS_PREFIX
from hawser.log.entry import Entry
from hawser.log.queue.delivery_batch import batch_of
from hawser.log.state.commands import QueueSettle, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.queue import DEAD_LETTERS, Queue
from hawser.log.state.results import Place
from hawser.record.batch import Batch
from hawser.record.record import Stamp

__all__ = ["dead_letters_producer", "next_dead_letters", "shard_of_dead_letters", "sent"]

_PREFIX: Final = DEAD_LETTERS_PREFIX.encode()


def dead_letters_producer(shard: str) -> bytes:
    """The producer that forwards the dead letters of this shard."""
    return _PREFIX + shard.encode()


def shard_of_dead_letters(producer: bytes) -> str | None:
    """The shard whose dead letters this producer forwards; None for other producers."""
    return producer.removeprefix(_PREFIX).decode() if producer.startswith(_PREFIX) else None


def next_dead_letters(machine: Machine, read: Callable[[int], Entry], shard: str) -> Batch | None:
    """The next batch to forward, stamped; None without dead letters. `read` gives the entry at an index."""
    dead_letters = machine.part(Queue).dead_letters
    if dead_letters.start == dead_letters.end:
        return None
    place = dead_letters.locate(dead_letters.start)
    assert isinstance(place, Place)
    batch, stamp = batch_of(read(place.index)), Stamp(dead_letters_producer(shard), dead_letters.start, 1)
    if dead_letters.start == place.first_offset:
        return batch.stamped(stamp)
    return Batch.of(list(batch.records())[dead_letters.start - place.first_offset :], stamp)


def sent(batch: Batch, count: int) -> bytes:
    """The QUEUE_SETTLE payload that accepts the first `count` forwarded messages of this batch."""
    return encode_command(QueueSettle(DEAD_LETTERS, accepted=((batch.stamp.incarnation, count, 0),)))
