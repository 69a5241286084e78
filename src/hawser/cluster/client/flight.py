"""Messages on their way: what waits for a partition, and the batches it is sent in."""

from typing import Any, Final

from hawser.cluster.wire import Publish, encode
from hawser.errors import HawserError
from hawser.record.batch import Batch
from hawser.record.record import Record

__all__ = ["Flight", "Item", "fail"]

# What a record takes beside its value, about.
_RECORD_BYTES: Final = 32


class Item:
    """Messages that belong together, and who waits for their receipt."""

    __slots__ = ("deadline", "future", "nbytes", "records", "seconds")

    def __init__(self, records: list[Record], future: Any, seconds: float, now: float) -> None:
        self.records = records
        self.nbytes = sum([len(each[0]) for each in records]) + _RECORD_BYTES * len(records)
        self.future = future
        self.seconds = seconds
        self.deadline = now + seconds


class Flight:
    """A batch that was stamped. In doubt: it may have landed."""

    __slots__ = ("batch", "body", "deadline", "doubt", "items")

    def __init__(self, items: list[Item], batch: Batch, shard: str) -> None:
        self.items = items
        self.deadline = min(item.deadline for item in items)
        self.doubt = False
        self.stamped(batch, shard)

    def stamped(self, batch: Batch, shard: str) -> None:
        self.batch = batch
        self.body = encode(Publish(shard, bytes(batch.data)))


def fail(item: Item, error: HawserError) -> None:
    """Tell whoever waits, unless that is settled."""
    if not item.future.done():
        item.future.set_exception(error)
