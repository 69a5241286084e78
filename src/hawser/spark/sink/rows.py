"""Rows as messages, from Arrow: no Python object for a row but for its headers, or a typed value.

| column | type | |
|---|---|---|
| value | binary or string | or typed, see below; null is a record without a value |
| key | binary or string | optional; null is none |
| headers | array<struct<key string, value binary>> | optional; null is none |
| topic | string | needed unless an option names a topic or a queue |
| partition | int | optional; null leaves it to the key |

A value is typed if it is a struct, which becomes an object of JSON or MessagePack, or an array of structs,
which becomes a stream of Arrow batches: as the source reads them. Other columns of the source are left out.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy
import pyarrow
import pyarrow.compute
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
from hawser.record.arrow import offsets_of, one_time, schema
from hawser.record.batch import Batch, Compression
from hawser.record.batch_body import encode_header_pairs
from hawser.record.record import NULL_HEADER
from hawser.spark.sink.options import Options
from hawser.spark.values import check_kind

__all__ = ["check_columns", "payloads", "rows_of"]

_BYTES: Final = (BinaryType, StringType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_LEFT_OUT: Final = frozenset({"offset", "timestamp", "timestampType", "producer", "producer_sequence"})
# The size of a batch, in bytes, unless one message is larger.
_BATCH_BYTES: Final = 1 << 20
# The size of an empty row in a batch.
_ROW_BYTES: Final = 4


def check_columns(asked: StructType, options: Options) -> None:
    """UsageError unless these columns can be messages."""
    columns = {field.name: field.dataType for field in asked.fields}
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
        if options.is_typed:
            check_kind(kind, options.value_format)
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


def rows_of(batch: Any, options: Options) -> Any:
    """The messages of a pyarrow.RecordBatch with columns that were checked: as another one, with the columns
    of every batch (`hawser.record.arrow`)."""
    names, count = batch.schema.names, batch.num_rows
    column = batch.column("value")
    none = pyarrow.nulls(count, pyarrow.binary())
    headers = batch.column("headers") if "headers" in names else none
    values = _VALUES[options.value_format](column)
    if column.null_count:
        values = pyarrow.compute.if_else(column.is_valid(), values, pyarrow.scalar(b"", values.type))
    columns = [
        batch.column("key").cast(pyarrow.binary()) if "key" in names else none,
        values,
        _headers(headers, column),
        one_time(time.time_ns(), count),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema())


def payloads(rows: Any, compression: Compression) -> Iterator[bytes]:
    """Messages, as `rows_of` gives them, as batches in their order."""
    binaries = (rows.column(name) for name in ("key", "value", "headers"))
    ends = sum(offsets_of(each)[0].to_numpy() for each in binaries)
    ends = ends + _ROW_BYTES * numpy.arange(rows.num_rows + 1)
    first = 0
    while first < rows.num_rows:
        end = int(numpy.searchsorted(ends, ends[first] + _BATCH_BYTES, "right")) - 1
        end = max(end, first + 1)
        part = rows.slice(first, end - first)
        first = end
        if compression is Compression.NONE:
            yield bytes(Batch.bare_of_arrow(part).data)
        else:
            yield bytes(Batch.of_arrow(part, compression=compression).data)


def _headers(column: Any, values: Any) -> Any:
    """The headers of each row; a row without a value gets the header that marks it."""
    if column.null_count == len(column) and not values.null_count:
        return pyarrow.nulls(len(column), pyarrow.binary())
    rows = zip(column.to_pylist(), values.is_valid().to_pylist(), strict=True)
    return pyarrow.array(
        [_encoded_headers(pairs or [], has_value) for pairs, has_value in rows], pyarrow.binary()
    )


def _encoded_headers(pairs: Any, has_value: bool) -> bytes | None:
    if any(pair is None or pair["key"] is None or pair["value"] is None for pair in pairs):
        raise UsageError(f"the headers {pairs!r} cannot be written: neither a key nor its value is null")
    found = [(pair["key"], pair["value"]) for pair in pairs]
    if any(key == NULL_HEADER for key, _ in found):
        raise UsageError(
            f"a row has the header {NULL_HEADER!r}, which only a row without a value has; give it null in "
            "the column value, and leave the header out"
        )
    if not has_value:
        found.append((NULL_HEADER, b""))
    return encode_header_pairs(found) if found else None


def _raw(column: Any) -> Any:
    return column.cast(pyarrow.binary())


def _json(column: Any) -> Any:
    for path, leaf in _leaves(column, "value"):
        is_float = pyarrow.types.is_floating(leaf.type)
        if is_float and pyarrow.compute.all(pyarrow.compute.is_finite(leaf)).as_py() is False:
            raise UsageError(
                f"JSON has no NaN and no Infinity, and a value of a batch has one in {path}; replace it, for "
                "example with nanvl(), or give valueFormat=msgpack"
            )
    return _encoded(msgspec.json.encode, column)


def _msgpack(column: Any) -> Any:
    return _encoded(msgspec.msgpack.encode, column)


def _encoded(encode: Callable[[Any], bytes], column: Any) -> Any:
    # Python's time zones have no times near the ends of its calendar, and formats no offsets with seconds.
    column = column.cast(_in_utc(column.type))
    convert = _converter(column.type)
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise _unwritable(column, error) from error
    if convert is not None:
        values = map(convert, values)
    return pyarrow.array(list(map(encode, values)), pyarrow.binary())


def _unwritable(column: Any, error: Exception) -> UsageError:
    """Report values that only Spark has: a time after the year 9999, or text that is not UTF-8."""
    place = "value"
    for path, leaf in _leaves(column, "value"):
        try:
            leaf.to_pylist()
        except (OverflowError, ValueError):
            place = path
            break
    return UsageError(
        f"a value of a batch has something in {place} that cannot be written ({error}); dates and times are "
        "of the years 1 to 9999, and strings are UTF-8: replace it, or cast the column to string or binary"
    )


def _in_utc(kind: Any) -> Any:
    """The type with all times in UTC."""
    if pyarrow.types.is_timestamp(kind) and kind.tz is not None:
        return pyarrow.timestamp(kind.unit, "UTC")
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pyarrow.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pyarrow.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """The function that makes dicts of the maps in a value of this type, because pyarrow gives a map as a
    list of pairs; None if nothing is to be made. Maps whose keys are no strings stay lists of pairs."""
    if pyarrow.types.is_map(kind):
        convert = _converter(kind.item_type)
        if not (pyarrow.types.is_string(kind.key_type) or pyarrow.types.is_large_string(kind.key_type)):
            if convert is None:
                return None
            return lambda pairs: None if pairs is None else [(key, convert(value)) for key, value in pairs]
        change = convert or (lambda value: value)
        return lambda pairs: None if pairs is None else {key: change(value) for key, value in pairs}
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        convert_one = _converter(kind.value_type)
        if convert_one is None:
            return None
        return lambda values: None if values is None else list(map(convert_one, values))
    if not pyarrow.types.is_struct(kind):
        return None
    found = {field.name: _converter(field.type) for field in kind}
    fields = {name: convert for name, convert in found.items() if convert is not None}
    if not fields:
        return None
    return lambda value: (
        None if value is None else value | {name: convert(value[name]) for name, convert in fields.items()}
    )


def _leaves(column: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The arrays of plain values in a column, each with the path to it."""
    kind = column.type
    if pyarrow.types.is_struct(kind):
        for field, part in zip(kind, column.flatten(), strict=True):
            yield from _leaves(part, f"{path}.{field.name}")
    elif pyarrow.types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        yield from _leaves(column.keys.slice(first, last - first), f"{path}.key")
        yield from _leaves(column.items.slice(first, last - first), f"{path}.value")
    elif pyarrow.types.is_list(kind):
        yield from _leaves(column.flatten(), f"{path}[]")
    else:
        yield path, column


def _streams(column: Any) -> Any:
    """Each list of rows as a stream of one Arrow batch."""
    if column.flatten().null_count:
        raise UsageError(
            "a value of a batch has null in the place of a row, and Arrow has no such rows; leave them out "
            "with filter(value, row -> row IS NOT NULL)"
        )
    found: list[bytes | None] = []
    for place in range(len(column)):
        if not column[place].is_valid:
            found.append(None)
            continue
        rows = pyarrow.RecordBatch.from_struct_array(column[place].values)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        found.append(sink.getvalue().to_pybytes())
    return pyarrow.array(found, pyarrow.binary())


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "raw": _raw,
    "json": _json,
    "msgpack": _msgpack,
    "arrow": _streams,
}
