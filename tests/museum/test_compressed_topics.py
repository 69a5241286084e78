"""Compressed topics that stopped every query of Spark at the same place for good. Found by review.

Tasks gathered 8 MiB of compressed batches for one Arrow batch. Unpacked, they were more than a batch of the
log may have, or more than an Arrow column holds.
"""

from collections.abc import Iterator

import pyarrow
import pyarrow.compute
import pyarrow.ipc
import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructType

from hawser.cluster.client.subscribe.range_reader import BatchSlice
from hawser.record.arrow import one_time, schema
from hawser.record.batch import Batch, Compression
from hawser.record.record import Record
from hawser.spark.source import task
from hawser.spark.source.columns import Table, full_schema
from hawser.spark.source.offsets import Range
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split
from hawser.spark.source.schema import table_of

MIB = 1 << 20
OPTIONS = Options.of({"endpoints": "hawser://127.0.0.1:1", "subscribe": "t"}, streaming=False)
ROWS = ArrayType(StructType().add("x", BinaryType()))
RAW = Table(full_schema(OPTIONS, BinaryType()), None)


def zeros(size: int, count: int) -> Batch:
    """As the sink writes them: the bare records may be more than a batch that is not compressed has."""
    none = pyarrow.nulls(count, pyarrow.binary())
    values = pyarrow.array([bytes(size)] * count, pyarrow.binary())
    columns = [none, values, none, one_time(1, count)]
    return Batch.of_arrow(
        pyarrow.RecordBatch.from_arrays(columns, schema=schema()), compression=Compression.ZSTD
    )


def read(
    monkeypatch: pytest.MonkeyPatch, batch: Batch, copies: int, options: Options = OPTIONS, table: Table = RAW
) -> Iterator[pyarrow.RecordBatch]:
    """A partition with so many copies of a batch, as a task reads it."""
    parts = [BatchSlice(batch, 0, batch.count, 1 + batch.count * each) for each in range(copies)]
    monkeypatch.setattr(task, "_found", lambda *_: iter([parts]))
    return task.read_split(Split(Range("t", "u", 0, 1, 1 + batch.count * copies), 0), options, table)


@pytest.mark.parametrize(
    ("size", "count", "copies"),
    [(MIB // 2, 1, 200), (MIB, 32, 3), (70 * MIB, 1, 2), (30 * MIB, 3, 1)],
    ids=["small ones", "large batches", "a large record", "a few large records"],
)
def test_a_batch_for_spark_is_bounded_by_what_it_takes_in_memory(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int, copies: int
) -> None:
    offsets: list[int] = []
    for found in read(monkeypatch, zeros(size, count), copies):
        assert found.num_rows == 1 or found.num_rows * size <= 8 * MIB
        assert pyarrow.compute.binary_length(found.column("value")).unique().to_pylist() == [size]
        offsets += found.column("offset").to_pylist()
    assert offsets == list(range(1, count * copies + 1))


def test_values_that_are_compressed_arrow_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is small in the log, and a hundred of them are too much for one batch."""
    sink = pyarrow.BufferOutputStream()
    rows = pyarrow.record_batch({"x": pyarrow.array([bytes(MIB)], pyarrow.binary())})
    with pyarrow.ipc.new_stream(
        sink, rows.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_batch(rows)
    batch = Batch.of([Record(sink.getvalue().to_pybytes(), timestamp_ns=1)] * 100)
    options = OPTIONS._replace(value_format="arrow")
    table = table_of(options, StructType().add("offset", LongType()).add("value", ROWS))
    offsets: list[int] = []
    for found in read(monkeypatch, batch, 1, options, table):
        assert found.column("value").nbytes < 40 * MIB
        offsets += found.column("offset").to_pylist()
    assert offsets == list(range(1, 101))
