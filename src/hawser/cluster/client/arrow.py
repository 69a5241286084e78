"""Fetched batches as Arrow, with where they are in the topic, and no Python object for a record.

Beside the columns of every batch (`hawser.record.arrow`) there are `partition`, an int32, and `offset`, an
int64.
"""

from functools import cache
from typing import Any

from hawser.record.arrow import schema

__all__ = ["placed", "placed_schema"]


@cache
def placed_schema() -> Any:
    """The columns of what `take_batches` gives."""
    import pyarrow

    places = [
        pyarrow.field("partition", pyarrow.int32(), nullable=False),
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
    ]
    return pyarrow.schema([*schema(), *places])


def placed(batch: Any, partition: int, first_offset: int, skip: int) -> Any:
    """The records of a batch from place `skip` on, with their places."""
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
    """The next power of two, so that few such arrays are made."""
    return 1 << (count - 1).bit_length()
