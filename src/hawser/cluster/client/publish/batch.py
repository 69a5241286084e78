"""Messages on their way: what waits for a partition, and the batches it is sent in."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from hawser.cluster.client.errors import copy_of
from hawser.cluster.wire import Publish, QueuePut, encode
from hawser.errors import HawserError
from hawser.record.batch import Batch
from hawser.record.rows import Records, Rows

__all__ = ["InFlightBatch", "Item", "fail", "size_of"]

# What a record takes beside its value, key and headers, about.
_RECORD_BYTES: Final = 32


class Item:
    """Messages that belong together, and who waits for their receipt."""

    __slots__ = ("deadline", "future", "nbytes", "records", "seconds")

    def __init__(self, records: Records, future: Any, seconds: float, now: float) -> None:
        self.records = records
        self.nbytes = size_of(records)
        self.future = future
        self.seconds = seconds
        self.deadline = now + seconds

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has gone: before it is sent, only that ends its future."""
        return bool(self.future.done())

    @property
    def was_cancelled_here(self) -> bool:
        """As `is_cancelled`, for futures of this loop alone. A thread reports its own cancellation, and a
        look at its future takes a lock."""
        return type(self.future) is not Future and bool(self.future.done())


def size_of(records: Records) -> int:
    """What they take in a batch, about."""
    nbytes = _RECORD_BYTES * len(records)
    if isinstance(records, Rows):
        nbytes += sum(map(len, records.values)) + sum(map(len, filter(None, records.keys)))
        return nbytes + sum(map(_header_bytes, filter(None, records.headers)))
    for value, key, headers, _ in records:
        nbytes += len(value)
        if key is not None:
            nbytes += len(key)
        if headers:
            nbytes += _header_bytes(headers)
    return nbytes


def _header_bytes(headers: Mapping[str, bytes]) -> int:
    return sum([len(name) + len(text) for name, text in headers.items()])


class InFlightBatch:
    """A batch that was stamped. In doubt: it may have landed. `oldest` is the oldest sequence that was not
    acknowledged when the batch was sent last."""

    __slots__ = ("batch", "body", "deadline", "doubt", "items", "oldest", "request")

    def __init__(
        self,
        items: list[Item],
        batch: Batch,
        shard: str,
        request: type[Publish] | type[QueuePut] = Publish,
    ) -> None:
        self.items = items
        self.request = request
        self.deadline = min(item.deadline for item in items)
        self.doubt = False
        self.oldest = 0
        self.stamped(batch, shard)

    @property
    def sequence(self) -> int:
        """Its number within the incarnation."""
        return self.batch.stamp.sequence

    def stamped(self, batch: Batch, shard: str) -> None:
        self.batch = batch
        self.body = encode(self.request(shard, bytes(batch.data)))


def fail(item: Item, error: HawserError) -> None:
    """Tell whoever waits, unless that is settled, with an error of its own."""
    if not item.future.done():
        item.future.set_exception(copy_of(error))
