"""Dead letters that go to a queue of another name, each once.

They are on the second shelf of their own queue first, and leave it in order, a batch at a time: put on the
other queue under the stamp of `letters:SHARD`, whose incarnation is the offset of the first letter of the
batch and whose sequence is 1, and accepted at home when that is known to be done. Whoever does the same batch
again, this leader or the next, is told that it is there; and a batch older than the newest is fenced, hence
there. Nobody else may take letters from that shelf: one that was left behind by others would be taken for one
that is there. Nor does anybody but a node put something under that stamp.
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
    """The producer under which the letters of a shard are put on another queue."""
    return _PREFIX + shard.encode()


def shard_of_dead_letters(producer: bytes) -> str | None:
    """The shard whose letters this producer puts; None if it is another one."""
    return producer.removeprefix(_PREFIX).decode() if producer.startswith(_PREFIX) else None


def next_dead_letters(machine: Machine, read: Callable[[int], Entry], shard: str) -> Batch | None:
    """The letters that go next, stamped; None if there are none. `read` gives the entry at an index."""
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
    """The entry of kind QUEUE_SETTLE that ends the first `count` letters of this batch at home."""
    return encode_command(QueueSettle(DEAD_LETTERS, accepted=((batch.stamp.incarnation, count, 0),)))
