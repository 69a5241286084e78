"""A topic's partition: batches in the order of their commits, offsets from 1, retention.

Offsets are dense and count accepted records only: `end - start` is the number of records. The records stay in
the log; the topic knows the entry of each.

Timestamps come from the producers and need not be in order. `at_time` gives an offset before which no
retained record has the timestamp or a later one. If timestamps never fall, the batch at that offset has the
first such record; otherwise an earlier batch, even a trimmed one, may have moved the result forward.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from hawser.log.entry import HEADER_BYTES, Entry, Kind
from hawser.log.state.commands import TrimTo, decoder
from hawser.log.state.groups import Groups
from hawser.log.state.offset_index import Index
from hawser.log.state.part import Blocks, Context, Offsets
from hawser.log.state.producers import Producers
from hawser.log.state.results import Accepted, OutOfRange, Place, Reason, Rejected, Result, Trimmed
from hawser.record.batch import BadBatch, Header

__all__ = ["PAGE_PLACES", "Topic"]

PAGE_PLACES: Final = 4096

_read_trim = decoder(TrimTo)
_BAD = Rejected(Reason.BAD_PAYLOAD)
_encode = msgspec.msgpack.Encoder().encode


class Topic(Offsets):
    """The offsets of one partition."""

    name: ClassVar = "topic"
    kinds: ClassVar = {Kind.BATCH: 1, Kind.TRIM: 1}

    def __init__(self, page_places: int = PAGE_PLACES) -> None:
        self._page_places = page_places

    def begin(self, blocks: Blocks) -> None:
        self._index = Index(blocks, self.name, self._page_places)

    @property
    def start(self) -> int:
        return self._index.start

    @property
    def end(self) -> int:
        return self._index.end

    @property
    def count(self) -> int:
        """The number of records."""
        return self._index.end - self._index.start

    def locate(self, offset: int) -> Place | OutOfRange:
        """The place of the batch with this record."""
        index = self._index
        if index.start <= offset < index.end:
            return index.locate(offset)
        return OutOfRange(index.start, index.end)

    def at_time(self, timestamp_ns: int) -> int:
        """The offset from which to read all records of this time or later; `end` without one. It is the first
        of a batch, or `start`; `Batch.first_at` finds the record itself."""
        return self._index.at_time(timestamp_ns)

    def at_entry(self, index: int) -> int:
        """The first offset whose batch is in entry `index` or a later one; `end` without one.

        Later offsets may be in earlier entries, because a transaction stages its batches before it commits.
        """
        return self._index.at_entry(index)

    @property
    def needed(self) -> int | None:
        return self._index.lowest

    def apply(self, entry: Entry, context: Context) -> Result:
        if entry.kind == Kind.TRIM:
            return self._trim(entry, context)
        try:
            header = Header.read(entry.frame, HEADER_BYTES + entry.transaction_size)
        except BadBatch:
            return _BAD
        return self.publish(header, entry.index, context)

    def publish(self, header: Header, index: int, context: Context) -> Result:
        """Add the batch of entry `index`."""
        name, count = header.producer, header.records
        if not name:
            return Accepted(self._index.append(index, count, header.latest_ns), count)
        producers = context.part(Producers)
        verdict = producers.judge(name, header.incarnation, header.sequence)
        if verdict is not None:
            return verdict
        first = self._index.append(index, count, header.latest_ns)
        producers.accept(name, header.incarnation, header.sequence, first, count)
        return Accepted(first, count)

    def commit_staged(self, index: int, count: int, latest_ns: int) -> None:
        """Add the batch of entry `index` for a transaction; it has no producer, and cannot fail."""
        self._index.append(index, count, latest_ns)

    def _trim(self, entry: Entry, context: Context) -> Result:
        command = _read_trim(entry)
        if command is None:
            return _BAD
        index = self._index
        wanted = max(index.start, min(command.offset, index.end))
        start, holder = wanted, None
        slowest = context.part(Groups).slowest()
        if slowest is not None:
            position, name = slowest
            start = max(index.start, min(wanted, max(position, command.floor)))
            holder = name if start < wanted else None
        index.trim(start)
        return Trimmed(index.start, index.end, holder)

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self._index.save()

    def load(self, state: bytes) -> None:
        self._index.load(state)

    def digest(self) -> bytes:
        return _encode((self.start, self.end, self._index.latest_ns, list(self._index.places())))
