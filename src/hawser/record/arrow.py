"""Batches as Arrow, both ways; the only part of batches that needs pyarrow, and only when it is called.

| column | type | holes |
|---|---|---|
| key | binary | where a record has none |
| value | binary | none |
| headers | binary, a MessagePack map of strings to binaries | where a record has none |
| timestamp | timestamp[ns, UTC] | none |
"""

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from hawser.errors import UsageError
from hawser.record.bare import Binaries, Columns, decode_headers, make_records
from hawser.record.record import BadBatch, Record
from hawser.record.unpacked import unpacked_bytes

__all__ = ["check_headers", "decode", "encode", "from_columns", "records", "schema", "timestamps"]

MAX_UNPACKED_BYTES: Final = 256 << 20

_CODECS: Final = {1: "lz4", 2: "zstd"}


@cache
def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError as error:
        raise UsageError("Arrow batches need pyarrow; install hawser[arrow]") from error
    return pyarrow


@cache
def schema() -> Any:
    """The columns of every batch."""
    pa = _pyarrow()
    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", pa.binary()),
            pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False),
        ]
    )


def encode(batch: Any, compression: int) -> tuple[memoryview, int, int]:
    """(IPC message, earliest and latest timestamp) of a pyarrow.RecordBatch; UsageError if it is no batch."""
    pa = _pyarrow()
    if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema()):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema())
        raise UsageError(f"a batch is a pyarrow.RecordBatch with the columns {columns}; cast yours to those")
    if not batch.num_rows or batch.column("value").null_count or batch.column("timestamp").null_count:
        raise UsageError("a batch has at least one record, and each has a value and a timestamp")
    if compression and batch.nbytes > MAX_UNPACKED_BYTES:
        raise UsageError(
            f"a batch has at most {MAX_UNPACKED_BYTES} bytes before compression, not {batch.nbytes}; "
            "send it as several"
        )
    message = _compressed(batch, compression) if compression else batch.serialize()
    bounds = pa.compute.min_max(batch.column("timestamp").view(pa.int64()))
    return memoryview(message), bounds["min"].as_py(), bounds["max"].as_py()


def _compressed(batch: Any, compression: int) -> Any:
    """The IPC message of a batch; only a stream can be compressed, so it is cut out of one."""
    pa = _pyarrow()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODECS[compression], use_threads=False)
    with pa.ipc.new_stream(sink, schema(), options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue()[schema().serialize().size : end]


def decode(body: memoryview, count: int, compression: int) -> Any:
    """The pyarrow.RecordBatch of an IPC message, over its bytes where they are not compressed; BadBatch if it
    is not one of `count` records, or larger than a batch may become."""
    pa = _pyarrow()
    size, compressed = unpacked_bytes(body)
    if size > MAX_UNPACKED_BYTES:
        raise BadBatch(f"an Arrow body becomes {size} bytes; a batch has at most {MAX_UNPACKED_BYTES}")
    if compressed != bool(compression):
        raise BadBatch("an Arrow body is compressed and its header says that it is not, or the other way")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema())
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError, ValueError, EOFError) as error:
        raise BadBatch(f"the Arrow body of a batch cannot be read: {error}") from error
    if batch.num_rows != count:
        raise BadBatch(f"the Arrow body of a batch has {batch.num_rows} records, its header says {count}")
    if batch.column("value").null_count or batch.column("timestamp").null_count:
        raise BadBatch("a record in the Arrow body of a batch has no value or no timestamp")
    return batch


def from_columns(columns: Columns) -> Any:
    """The pyarrow.RecordBatch of a bare body, over its bytes; BadBatch if its offsets do not fit."""
    assert sys.byteorder == "little", "the buffers of a batch are little-endian"
    pa = _pyarrow()
    count = columns.records
    kind = schema().field("timestamp").type
    times = columns.timestamps
    if columns.timestamp_ns is not None:
        # A tenth of the time of pyarrow.repeat.
        times = memoryview(columns.timestamp_ns.to_bytes(8, "little", signed=True) * count)
    timestamps = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(times)])
    try:
        binaries = [_array(each, count) for each in (columns.keys, columns.values, columns.headers)]
        batch = pa.RecordBatch.from_arrays([*binaries, timestamps], schema=schema())
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBatch(f"the bare body of a batch cannot be read: {error}") from error
    return batch


def _array(binaries: Binaries | None, count: int) -> Any:
    pa = _pyarrow()
    if binaries is None:
        return pa.nulls(count, pa.binary())
    validity = None if binaries.validity is None else pa.py_buffer(binaries.validity)
    buffers = [validity, pa.py_buffer(binaries.offsets), pa.py_buffer(binaries.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def records(batch: Any) -> Iterator[Record]:
    """Each record of a checked pyarrow.RecordBatch; its headers are checked before the first."""
    headers = list(map(decode_headers, batch.column("headers").to_pylist()))
    values, keys = batch.column("value").to_pylist(), batch.column("key").to_pylist()
    return make_records(values, keys, headers, timestamps(batch))


def timestamps(batch: Any) -> list[int]:
    """The timestamp of each record of a checked pyarrow.RecordBatch."""
    times: list[int] = batch.column("timestamp").view(_pyarrow().int64()).to_pylist()
    return times


def check_headers(batch: Any) -> None:
    """BadBatch if the headers of one of its records are none."""
    column = batch.column("headers")
    if column.null_count < len(column):
        for each in column.to_pylist():
            decode_headers(each)
