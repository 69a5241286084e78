"""Items that wait to be published, and the batches in flight that they are sent in."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from hawser.cluster.client.errors import copy_of
from hawser.cluster.wire import Publish, QueuePut, encode
from hawser.errors import HawserError
from hawser.record.batch import Batch
from hawser.record.rows import Records, Rows

__all__ = ["InFlightBatch", "Item", "fail", "size_of"]

# The approximate size of a record without its value, key and headers.
_RECORD_BYTES: Final = 32


class Item:
    """Messages with one receipt, and the future of their caller."""

    __slots__ = ("deadline", "future", "nbytes", "records", "seconds")

    def __init__(self, records: Records, future: Any, seconds: float, now: float) -> None:
        self.records = records
        self.nbytes = size_of(records)
        self.future = future
        self.seconds = seconds
        self.deadline = now + seconds

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has gone: before it is sent nothing else ends its future."""
        return bool(self.future.done())

    @property
    def was_cancelled_here(self) -> bool:
        """As `is_cancelled`, for futures of this loop alone. A thread reports its cancellation itself, and
        reading its future takes a lock."""
        return type(self.future) is not Future and bool(self.future.done())


def size_of(records: Records) -> int:
    """The approximate size of records in a batch."""
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
    """A stamped batch that is not acknowledged. `doubt`: it may have been written. `oldest` is the oldest
    unacknowledged sequence when the batch was last sent."""

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
        return self.batch.stamp.sequence

    def stamped(self, batch: Batch, shard: str) -> None:
        self.batch = batch
        self.body = encode(self.request(shard, bytes(batch.data)))


def fail(item: Item, error: HawserError) -> None:
    """Give the caller a copy of the error, unless it has a result."""
    if not item.future.done():
        item.future.set_exception(copy_of(error))
