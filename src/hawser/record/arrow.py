"""Conversion of batches to and from Arrow; the only module here that needs pyarrow, when it is called.

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
from hawser.record.batch_body import (
    HEADERS,
    KEYS,
    SOME_HEADERS,
    SOME_KEYS,
    Binaries,
    Columns,
    decode_headers,
    make_records,
)
from hawser.record.ipc_size import unpacked_bytes
from hawser.record.record import BadBatch, Record

__all__ = [
    "check_headers",
    "decode",
    "encode",
    "encode_bare",
    "from_columns",
    "offsets_of",
    "one_time",
    "records",
    "schema",
    "timestamps",
]

MAX_UNPACKED_BYTES: Final = 256 << 20

_CODECS: Final = {1: "lz4", 2: "zstd"}


@cache
def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError as error:
        raise UsageError("Arrow batches need pyarrow; run: pip install 'hawser-bus[arrow]'") from error
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
    """(IPC message, earliest and latest timestamp) of a pyarrow.RecordBatch; UsageError for other data."""
    _check(batch)
    if compression and batch.nbytes > MAX_UNPACKED_BYTES:
        raise UsageError(
            f"a batch has at most {MAX_UNPACKED_BYTES} bytes before compression, not {batch.nbytes}; "
            "send it as several"
        )
    message = _compressed(batch, compression) if compression else batch.serialize()
    return memoryview(message), *_bounds(batch)


def _check(batch: Any) -> None:
    pa = _pyarrow()
    if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema()):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema())
        raise UsageError(f"a batch is a pyarrow.RecordBatch with the columns {columns}; cast yours to those")
    if not batch.num_rows or batch.column("value").null_count or batch.column("timestamp").null_count:
        raise UsageError("a batch has at least one record, and each has a value and a timestamp")


def _bounds(batch: Any) -> tuple[int, int]:
    """The earliest and the latest timestamp."""
    pa = _pyarrow()
    bounds = pa.compute.min_max(batch.column("timestamp").view(pa.int64()))
    return bounds["min"].as_py(), bounds["max"].as_py()


def _compressed(batch: Any, compression: int) -> Any:
    """The compressed IPC message of a batch, cut out of a stream, because only streams can be compressed."""
    pa = _pyarrow()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODECS[compression], use_threads=False)
    with pa.ipc.new_stream(sink, schema(), options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue()[schema().serialize().size : end]


def encode_bare(batch: Any) -> tuple[int, int, int, list[Any]]:
    """As `batch_body.encode`, of a pyarrow.RecordBatch, whose buffers except offsets are not copied;
    UsageError for other data."""
    assert sys.byteorder == "little", "the buffers of a batch are little-endian"
    _check(batch)
    earliest, latest = _bounds(batch)
    count = batch.num_rows
    columns, fixed, validities, data = 0, [], [], []
    if earliest != latest:
        times = batch.column("timestamp")
        fixed.append(times.buffers()[1].slice(8 * times.offset, 8 * count))
    for name, present, with_holes in (
        ("value", 0, 0),
        ("key", KEYS, SOME_KEYS),
        ("headers", HEADERS, SOME_HEADERS),
    ):
        array = batch.column(name)
        if array.null_count < count:
            columns |= present | (with_holes if array.null_count else 0)
            validities += [_validity(array)] if array.null_count else []
            offsets, bounds = offsets_of(array)
            fixed.append(offsets.buffers()[1].slice(4 * offsets.offset, 4 * (count + 1)))
            _, _, found = array.buffers()
            data.append(b"" if found is None else found.slice(bounds[0], bounds[1] - bounds[0]))
    return columns, earliest, latest, fixed + validities + data


def offsets_of(array: Any) -> tuple[Any, tuple[int, int]]:
    """The offsets of an array of binaries, from 0 on, and the range of its data that they cover."""
    pa = _pyarrow()
    _, places, _ = array.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, places], offset=array.offset)
    first, last = offsets[0], offsets[-1].as_py()
    if first.as_py():
        offsets = pa.compute.subtract(offsets, first)
    return offsets, (first.as_py(), last)


def _validity(array: Any) -> bytes:
    """One bit for each item."""
    count: int = len(array)
    place, skipped = divmod(array.offset, 8)
    validity = memoryview(array.buffers()[0])[place : place + ((skipped + count + 7) >> 3)]
    bits: int = int.from_bytes(validity, "little") >> skipped & (1 << count) - 1
    return bits.to_bytes((count + 7) >> 3, "little")


def decode(body: memoryview, count: int, compression: int) -> Any:
    """The pyarrow.RecordBatch of an IPC message, without a copy of uncompressed buffers; BadBatch if it does
    not have `count` records or is too large when uncompressed."""
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
    """The pyarrow.RecordBatch of a bare body, without a copy; BadBatch if its offsets are invalid."""
    assert sys.byteorder == "little", "the buffers of a batch are little-endian"
    pa = _pyarrow()
    count = columns.records
    if columns.timestamp_ns is not None:
        timestamps = one_time(columns.timestamp_ns, count)
    else:
        timestamps = pa.Array.from_buffers(_time(), count, [None, pa.py_buffer(columns.timestamps)])
    try:
        binaries = [_array(each, count) for each in (columns.keys, columns.values, columns.headers)]
        batch = pa.RecordBatch.from_arrays([*binaries, timestamps], schema=schema())
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBatch(f"the bare body of a batch cannot be read: {error}") from error
    return batch


def one_time(timestamp_ns: int, count: int) -> Any:
    """A column of equal timestamps."""
    pa = _pyarrow()
    # Takes a tenth of the time of pyarrow.repeat.
    times = timestamp_ns.to_bytes(8, "little", signed=True) * count
    return pa.Array.from_buffers(_time(), count, [None, pa.py_buffer(times)])


def _time() -> Any:
    return schema().field("timestamp").type


def _array(binaries: Binaries | None, count: int) -> Any:
    pa = _pyarrow()
    if binaries is None:
        return pa.nulls(count, pa.binary())
    validity = None if binaries.validity is None else pa.py_buffer(binaries.validity)
    buffers = [validity, pa.py_buffer(binaries.offsets), pa.py_buffer(binaries.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def records(batch: Any) -> Iterator[Record]:
    """The records of a checked pyarrow.RecordBatch; all headers are checked before the first."""
    headers = list(map(decode_headers, batch.column("headers").to_pylist()))
    values, keys = batch.column("value").to_pylist(), batch.column("key").to_pylist()
    return make_records(values, keys, headers, timestamps(batch))


def timestamps(batch: Any) -> list[int]:
    """The timestamps of a checked pyarrow.RecordBatch."""
    times: list[int] = batch.column("timestamp").view(_pyarrow().int64()).to_pylist()
    return times


def check_headers(batch: Any) -> None:
    """Raises BadBatch if a record has invalid headers."""
    column = batch.column("headers")
    if column.null_count < len(column):
        for each in column.to_pylist():
            decode_headers(each)
