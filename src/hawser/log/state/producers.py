"""Producers: each batch of a producer is accepted once and in order, however often it arrives.

A producer has incarnations, and each numbers its batches from 1. The state keeps the last sequence of the
newest incarnation, and the receipts of its last 64 batches. The result for a batch with incarnation i and
sequence s, at a producer with (j, last):

| i against j | s | result |
|---|---|---|
| unknown producer, or i > j | 1 | accepted; i becomes the incarnation |
| unknown producer, or i > j | above 1 | UNKNOWN_PRODUCER: it expired, or a batch is missing |
| i < j | any | FENCED |
| i = j | last + 1 | accepted |
| i = j | above | GAP, retryable |
| i = j | last - 63 to last | repeated, with its first receipt |
| i = j | below | TOO_OLD: it is in the topic, since all up to last are; its receipt is gone |

A producer is idle from the first entry after its newest batch that moved the time of the log. It may have
been idle for longer, never for less.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import ExpireProducers, decoder
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.results import Expired, Reason, Rejected, Repeated, Result

__all__ = ["RECEIPTS", "Producers"]

RECEIPTS: Final = 64

_read_expiry = decoder(ExpireProducers)


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """A producer with its arrays as stored."""

    name: bytes
    incarnation: int
    last: int
    firsts: list[int]
    counts: list[int]
    idle_ns: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Saved]).decode


class _Producer:
    """One producer. The receipt of sequence s is at (s - 1) mod 64 of both arrays. `idle_ns` is the time
    since which it is idle, 0 before the time of the log moved after its newest batch. `saved` is its last
    encoding; None if it has changed since."""

    __slots__ = ("counts", "firsts", "idle_ns", "incarnation", "last", "saved")

    def __init__(
        self, incarnation: int, last: int, firsts: "array[int]", counts: "array[int]", idle_ns: int = 0
    ) -> None:
        self.incarnation = incarnation
        self.last = last
        self.firsts = firsts
        self.counts = counts
        self.idle_ns = idle_ns
        self.saved: msgspec.Raw | None = None


class Producers(Part):
    """The producers of this shard."""

    name: ClassVar = "producers"
    kinds: ClassVar = {Kind.EXPIRE_PRODUCERS: 1}

    def __init__(self) -> None:
        self._producers: dict[bytes, _Producer] = {}
        # The producers whose `idle_ns` is 0.
        self._busy: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """(id, incarnation, last sequence) of each producer, as `ExpireProducers` names them."""
        for name, producer in self._producers.items():
            yield name, producer.incarnation, producer.last

    def newest(self, name: bytes) -> tuple[int, int, int] | None:
        """(incarnation, first offset, records) of a producer's newest batch; None for an unknown producer."""
        producer = self._producers.get(name)
        if producer is None:
            return None
        place = (producer.last - 1) % RECEIPTS
        return producer.incarnation, producer.firsts[place], producer.counts[place]

    def idle_since(self, time_ns: int) -> Iterator[tuple[bytes, int, int]]:
        """The producers idle since before this time of the log, as `ExpireProducers` names them."""
        for name, producer in self._producers.items():
            if 0 < producer.idle_ns <= time_ns:
                yield name, producer.incarnation, producer.last

    def mark(self, now_ns: int) -> None:
        """Note that the time of the log moved to `now_ns`; all batches so far were accepted before it."""
        if now_ns:
            for name in self._busy:
                self._producers[name].idle_ns = now_ns
                self._producers[name].saved = None
            self._busy.clear()

    def judge(self, name: bytes, incarnation: int, sequence: int) -> Result | None:
        """The result of a batch with this stamp if it is not accepted, otherwise None. Changes nothing."""
        producer = self._producers.get(name)
        if producer is None or incarnation > producer.incarnation:
            return None if sequence == 1 else Rejected(Reason.UNKNOWN_PRODUCER, 0, sequence)
        if incarnation < producer.incarnation:
            return Rejected(Reason.FENCED, producer.incarnation, incarnation)
        behind = producer.last - sequence
        if behind == -1:
            return None
        if behind < 0:
            return Rejected(Reason.GAP, producer.last + 1, sequence)
        if behind >= RECEIPTS:
            return Rejected(Reason.TOO_OLD, producer.last, sequence)
        place = (sequence - 1) % RECEIPTS
        return Repeated(producer.firsts[place], producer.counts[place])

    def accept(self, name: bytes, incarnation: int, sequence: int, first_offset: int, count: int) -> None:
        """Note the offsets of a batch for which `judge` gave None."""
        producer = self._producers.get(name)
        if producer is None or incarnation > producer.incarnation:
            producer = self._producers[name] = _Producer(incarnation, 0, array("Q"), array("I"))
        assert producer.incarnation == incarnation and producer.last + 1 == sequence
        producer.last = sequence
        producer.idle_ns = 0
        producer.saved = None
        self._busy.add(name)
        place = (sequence - 1) % RECEIPTS
        if place == len(producer.firsts):
            producer.firsts.append(first_offset)
            producer.counts.append(count)
        else:
            producer.firsts[place] = first_offset
            producer.counts[place] = count

    def apply(self, entry: Entry, context: Context) -> Result:
        command = _read_expiry(entry)
        if command is None:
            return Rejected(Reason.BAD_PAYLOAD)
        forgotten = 0
        for name, incarnation, last in command.producers:
            producer = self._producers.get(name)
            if producer is not None and (producer.incarnation, producer.last) == (incarnation, last):
                del self._producers[name]
                self._busy.discard(name)
                forgotten += 1
        return Expired(forgotten)

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def digest(self) -> bytes:
        # Most of the producers, maybe many thousands, have not changed since the last checkpoint.
        return _encode([each.saved or _saved(name, each) for name, each in sorted(self._producers.items())])

    def load(self, state: bytes) -> None:
        try:
            producers = {
                each.name: _Producer(
                    each.incarnation,
                    each.last,
                    array("Q", each.firsts),
                    array("I", each.counts),
                    each.idle_ns,
                )
                for each in _decode(state)
            }
        except (msgspec.DecodeError, OverflowError) as error:
            raise BadState(f"the saved producers cannot be read: {error}") from error
        for producer in producers.values():
            kept = min(producer.last, RECEIPTS)
            if len(producer.firsts) != kept or len(producer.counts) != kept:
                raise BadState(
                    f"a saved producer at sequence {producer.last} does not have its {kept} receipts"
                )
        self._producers = producers
        self._busy = {name for name, producer in producers.items() if not producer.idle_ns}


def _saved(name: bytes, producer: _Producer) -> msgspec.Raw:
    """Encode the producer and keep the encoding."""
    firsts, counts = list(producer.firsts), list(producer.counts)
    saved = _Saved(name, producer.incarnation, producer.last, firsts, counts, producer.idle_ns)
    producer.saved = msgspec.Raw(_encode(saved))
    return producer.saved
