"""Rows as messages, from Arrow: no Python object for a row but for its key, its headers, or a typed value.

| column | type | |
|---|---|---|
| value | binary or string | or typed, see below; never null |
| key | binary or string | optional; null is none |
| headers | array<struct<key string, value binary>> | optional; null is none |
| topic | string | needed unless an option names a topic or a queue |
| partition | int | optional; null leaves it to the key |

A value is typed if it is a struct, which becomes an object of JSON or MessagePack, or an array of structs,
which becomes a stream of Arrow batches: as the source reads them. Other columns of the source are left out.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy
import pyarrow
import pyarrow.ipc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from hawser.errors import UsageError
from hawser.record.batch import Batch, Compression
from hawser.record.record import NO_HEADERS
from hawser.spark.sink.options import Options

__all__ = ["Rows", "check_columns", "rows_of"]

_BYTES: Final = (BinaryType, StringType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_LEFT_OUT: Final = frozenset({"offset", "timestamp", "producer", "producer_sequence"})
# A batch has about so many bytes at most, unless one message is larger.
_BATCH_BYTES: Final = 1 << 20


def check_columns(schema: StructType, options: Options) -> None:
    """UsageError unless these columns can be messages."""
    columns = {field.name: field.dataType for field in schema.fields}
    if "value" not in columns:
        raise UsageError(
            f"the sink writes the column value, and there are only {', '.join(columns)}; give one that name, "
            'or make one: selectExpr("to_json(struct(*)) AS value")'
        )
    _check_value(columns["value"], options)
    for name, kind in columns.items():
        if name == "value" or name in _LEFT_OUT:
            continue
        if name not in _COLUMNS:
            raise UsageError(
                f"the sink has no column {name!r}; it takes value, {', '.join(_COLUMNS)}. Leave it out, or "
                "put it into the value"
            )
        wanted = _COLUMNS[name]
        if not wanted(kind):
            raise UsageError(f"column {name} is {kind.simpleString()}; cast it to {_WANTED[name]}")
    named = options.topic is not None or options.queue is not None
    if not named and "topic" not in columns:
        raise UsageError('the sink needs option("topic", ...), option("queue", ...) or a column topic')
    if options.queue is not None and "partition" in columns:
        raise UsageError("a queue has no partitions; leave the column partition out")


def _check_value(kind: DataType, options: Options) -> None:
    struct = kind.elementType if isinstance(kind, ArrayType) else kind
    fits = {
        "raw": isinstance(kind, _BYTES),
        "json": isinstance(kind, StructType),
        "msgpack": isinstance(kind, StructType),
        "arrow": isinstance(kind, ArrayType) and isinstance(struct, StructType),
    }
    if fits[options.value_format]:
        return
    wanted = {"raw": "binary or string", "arrow": "array<struct<...>>"}.get(options.value_format, "a struct")
    raise UsageError(
        f"with valueFormat={options.value_format} the column value is {wanted}, not {kind.simpleString()}; "
        "cast it, or give another valueFormat"
    )


_COLUMNS: Final[dict[str, Callable[[DataType], bool]]] = {
    "key": lambda kind: isinstance(kind, _BYTES),
    "headers": lambda kind: kind.simpleString() == _HEADERS,
    "topic": lambda kind: isinstance(kind, StringType),
    "partition": lambda kind: isinstance(kind, IntegerType),
}
_WANTED: Final = {"key": "binary", "headers": _HEADERS, "topic": "string", "partition": "int"}


class Rows(NamedTuple):
    """Some messages: arrays of Arrow, and lists of what is needed one by one. Without keys or headers there
    are none of them."""

    values: Any
    keys: list[bytes | None] | None
    headers: list[Any] | None

    def take(self, places: Any) -> "Rows":
        """Those at these places."""
        return Rows(
            self.values.take(pyarrow.array(places)),
            None if self.keys is None else [self.keys[place] for place in places],
            None if self.headers is None else [self.headers[place] for place in places],
        )

    def slice(self, first: int, count: int) -> "Rows":
        end = first + count
        return Rows(
            self.values.slice(first, count),
            None if self.keys is None else self.keys[first:end],
            None if self.headers is None else self.headers[first:end],
        )

    def payloads(self, compression: Compression) -> Iterator[bytes]:
        """The messages as batches, in order."""
        count = len(self.values)
        offsets, _ = _buffers(self.values)
        first = 0
        while first < count:
            end = int(numpy.searchsorted(offsets, int(offsets[first]) + _BATCH_BYTES, "right")) - 1
            end = max(end, first + 1)
            batch = self.slice(first, end - first)._batch()
            first = end
            if compression is not Compression.NONE:
                batch = Batch.of_arrow(batch.to_arrow(), compression=compression)
            yield bytes(batch.data)

    def _batch(self) -> Batch:
        count = len(self.values)
        offsets, data = _buffers(self.values)
        keys = self.keys if self.keys is not None else [None] * count
        headers = self.headers if self.headers is not None else [NO_HEADERS] * count
        return Batch.of_columns([time.time_ns()] * count, offsets.tobytes(), data, keys, headers)


def _buffers(values: Any) -> tuple[Any, bytes]:
    """The offsets of an array of binaries, from 0, and its data."""
    _, places, data = values.buffers()
    offsets = numpy.frombuffer(places, "<i4")[values.offset : values.offset + len(values) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], b"" if data is None else data[first:last].to_pybytes()


def rows_of(batch: Any, options: Options) -> Rows:
    """The messages of a pyarrow.RecordBatch with columns that were checked."""
    names = batch.schema.names
    column = batch.column("value")
    if column.null_count:
        place = column.is_null().index(True).as_py()
        raise UsageError(
            f"row {place} of a batch has no value{_named(batch, place)}; a message always has one: leave "
            "such rows out, or write something for them with coalesce()"
        )
    values = _VALUES[options.value_format](column)
    keys = batch.column("key").cast(pyarrow.binary()).to_pylist() if "key" in names else None
    headers = None
    if "headers" in names and batch.column("headers").null_count < batch.num_rows:
        headers = [_headers(each) for each in batch.column("headers").to_pylist()]
    return Rows(values, None if keys is None or keys.count(None) == len(keys) else keys, headers)


def _named(batch: Any, place: int) -> str:
    key = batch.column("key")[place].as_py() if "key" in batch.schema.names else None
    return "" if key is None else f" (key {key!r})"


def _headers(pairs: Any) -> Any:
    if not pairs:
        return NO_HEADERS
    found = {pair["key"]: pair["value"] for pair in pairs if pair is not None}
    if len(found) < len(pairs) or None in found or None in found.values():
        raise UsageError(
            f"the headers {pairs!r} cannot be written: each has a key of its own, and neither that nor its "
            "value is null"
        )
    return found


def _raw(column: Any) -> Any:
    return column.cast(pyarrow.binary())


def _encoded(encode: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    return lambda column: pyarrow.array(list(map(encode, column.to_pylist())), pyarrow.binary())


def _streams(column: Any) -> Any:
    """Each list of rows as a stream of one Arrow batch."""
    found = []
    for place in range(len(column)):
        rows = pyarrow.RecordBatch.from_struct_array(column[place].values)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        found.append(sink.getvalue().to_pybytes())
    return pyarrow.array(found, pyarrow.binary())


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "raw": _raw,
    "json": _encoded(msgspec.json.encode),
    "msgpack": _encoded(msgspec.msgpack.encode),
    "arrow": _streams,
}
