"""Fetched messages as users get them: a sample for each, or Arrow batches without a Python object a record.

An Arrow batch has the columns of every batch (`hawser.record.arrow`), and `partition`, an int32, and
`offset`, an int64.
"""

from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self

from hawser.record.arrow import schema
from hawser.record.record import Record

__all__ = ["FetchedSample", "placed", "placed_schema"]


class FetchedSample:
    """A message of a partition, in memory of its own: nothing needs to be released."""

    __slots__ = ("lost_before", "offset", "partition", "publisher", "_decode", "_record")

    def __init__(
        self,
        record: Record,
        partition: int,
        offset: int,
        publisher: str,
        lost_before: int,
        decode: Callable[[Any], Any] | None,
    ) -> None:
        self._record = record
        self.partition = partition
        self.offset = offset
        self.publisher = publisher
        self.lost_before = lost_before
        self._decode = decode

    @property
    def data(self) -> memoryview:
        """The message, read-only."""
        return memoryview(self._record.value)

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def headers(self) -> dict[str, bytes]:
        return dict(self._record.headers)

    @property
    def timestamp_ns(self) -> int:
        """When it was published, by the publisher's clock."""
        return self._record.timestamp_ns

    @property
    def value(self) -> Any:
        """The message decoded by the topic's schema; its bytes without one."""
        return self._record.value if self._decode is None else self._decode(self)

    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """A read-only numpy array over the message."""
        from hawser.record.payload import as_array

        return as_array(self._record.value, dtype, shape)

    def arrow(self) -> Any:
        """The Arrow data in the message."""
        from hawser.record.payload import as_arrow

        return as_arrow(self._record.value)

    def release(self) -> None:
        """Does nothing on a cluster; here for programs that run in both scopes."""

    def __bytes__(self) -> bytes:
        return self._record.value

    def __len__(self) -> int:
        return len(self._record.value)

    def __bool__(self) -> Literal[True]:
        """An empty message is true, too."""
        return True

    def __eq__(self, other: object) -> bool:
        """Identity; comparing with bytes or text is a TypeError, because False would hide a mistake."""
        if isinstance(other, bytes | bytearray | memoryview | str):
            raise TypeError(
                f"a message cannot be compared with {type(other).__name__}; compare bytes(it), or its value"
            )
        return self is other

    __hash__ = object.__hash__

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self._record.value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Sample {self.offset} of partition {self.partition}, {len(self)} bytes>"


@cache
def placed_schema() -> Any:
    """The schema of the batches of `take_batches`."""
    import pyarrow

    places = [
        pyarrow.field("partition", pyarrow.int32(), nullable=False),
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
    ]
    return pyarrow.schema([*schema(), *places])


def placed(batch: Any, partition: int, first_offset: int, skip: int) -> Any:
    """The records of a batch from place `skip` on, with their partition and offsets."""
    import pyarrow
    import pyarrow.compute

    count = batch.num_rows
    offsets = pyarrow.compute.add(_numbers(_rounded(count)).slice(0, count), first_offset)
    partitions = pyarrow.repeat(pyarrow.scalar(partition, pyarrow.int32()), count)
    columns = [*batch.columns, partitions, offsets]
    return pyarrow.RecordBatch.from_arrays(columns, schema=placed_schema()).slice(skip)


@cache
def _numbers(count: int) -> Any:
    import array

    import pyarrow

    return pyarrow.Array.from_buffers(
        pyarrow.int64(), count, [None, pyarrow.py_buffer(array.array("q", range(count)))]
    )


def _rounded(count: int) -> int:
    """The next power of two, so that few such arrays are cached."""
    return 1 << (count - 1).bit_length()
