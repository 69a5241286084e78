"""Typed values: JSON, MessagePack or Arrow in the values of a topic become columns.

A value of JSON or MessagePack is an object, and the column `value` a struct of its fields. A value of Arrow
is a stream of batches, and the column an array of structs, one for each of their rows: so a message is a row
in every format, with the offset it has. Fields that the schema does not have are left out; those that a
value does not have are null, or what their comment in the schema says: `COMMENT 'if left out: 1'`.

A time without a zone is read as UTC where the schema has a timestamp. Nanoseconds are cut to microseconds,
because Spark has no finer ones. A map whose keys are not strings is a list of pairs in JSON and MessagePack.

A value that is not what the schema says fails the query, with the place where it is (mode FAILFAST), or is
null, with its bytes in the column `_corrupt_record` (mode PERMISSIVE). None is left out. A record without a
value and the record that stands for a gap are null, and not corrupt for that.
"""

from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Final, Required, TypedDict

import msgspec
import pyarrow
import pyarrow.compute
import pyarrow.ipc
from msgspec import Meta
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from hawser.errors import Corrupt, UsageError
from hawser.record.sql_fields import IF_LEFT_OUT
from hawser.spark.source.columns import CORRUPT, Rows, TooLarge

__all__ = ["check_fingerprint", "check_kind", "type_of_arrow", "typed"]

_PLAIN: Final[dict[type[DataType], Any]] = {
    StringType: str,
    BinaryType: bytes,
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    DateType: date,
    # pyarrow takes one without a zone for UTC.
    TimestampType: datetime,
    TimestampNTZType: Annotated[datetime, Meta(tz=False)],
}
# What happens with a value that does not have the type of the schema.
_POISON: Final = (ValueError, OverflowError, RecursionError, OSError, pyarrow.ArrowException)
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
# Types that only Arrow has.
_OF_ARROW: Final = frozenset({DayTimeIntervalType, TimeType})


def check_fingerprint(topic: str, schema: Any, value_format: str) -> None:
    """UsageError if the topic was made with a schema of another format."""
    kind = schema.partition(":")[0] if isinstance(schema, str) else value_format
    if kind != value_format:
        raise UsageError(
            f"topic {topic!r} carries values of the schema {schema!r}; read it with valueFormat={kind} or "
            f"raw, not {value_format}"
        )


def check_kind(kind: DataType, value_format: str, path: str = "value") -> None:
    """UsageError names the first part of this type that values of the format cannot have."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            if kind.names.count(field.name) > 1:
                raise UsageError(
                    f"{path} has the field {field.name!r} more than once, and a value of {value_format} has "
                    "it once; give the fields different names"
                )
            check_kind(field.dataType, value_format, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        check_kind(kind.elementType, value_format, f"{path}[]")
    elif isinstance(kind, MapType):
        check_kind(kind.keyType, value_format, f"{path}.key")
        check_kind(kind.valueType, value_format, f"{path}.value")
    elif type(kind) not in (*_BITS, *_PLAIN, *(_OF_ARROW if value_format == "arrow" else ())):
        raise UsageError(
            f"{path} is {kind.simpleString()}, which values of {value_format} do not have; cast it, for "
            "example to string, or write and read the values raw"
        )


def type_of_arrow(value: Any) -> DataType:
    """The type of the column for topics whose values look like this one."""
    with pyarrow.ipc.open_stream(value) as stream:
        schema = stream.schema
    try:
        return ArrayType(from_arrow_schema(schema))
    except PySparkTypeError as error:
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise UsageError(
            f"Spark has no types for some columns of these values ({columns}); name those to read, and the "
            'types to read them as, with option("valueSchema", "id bigint, name string")'
        ) from error


def typed(
    value_format: str, kind: DataType, is_permissive: bool, most_bytes: int | None = None
) -> Callable[[Rows], dict[str, Any]]:
    """What makes the typed columns of some rows. With `most_bytes` it raises TooLarge if values of Arrow take
    more than that in memory."""
    arrow_type = to_arrow_schema(StructType([StructField("value", kind)]), timezone="UTC").field(0).type
    gather: Callable[[list[Any], Any], Any] = pyarrow.array
    if value_format == "arrow":
        decode, gather = _arrow_decoder(kind, arrow_type), _lists
    else:
        decode = _decoder(value_format, kind)

    def make(rows: Rows) -> dict[str, Any]:
        raw = rows.value().to_pylist()
        values: list[Any] = [None] * len(raw)
        corrupt: list[bytes | None] = [None] * len(raw)

        def refuse(place: int, error: Exception) -> None:
            if not is_permissive:
                raise Corrupt(_told(rows, place, value_format, error)) from error
            values[place], corrupt[place] = None, raw[place]

        size = 0
        for place, data in enumerate(raw):
            try:
                if data is not None and (data or place not in rows.gaps):
                    values[place] = decode(data)
            except _POISON as error:
                refuse(place, error)
            if most_bytes is not None and isinstance(values[place], pyarrow.Array):
                size += values[place].nbytes
                if size > most_bytes and place:
                    raise TooLarge(place)
        try:
            column = gather(values, arrow_type)
        except _POISON:
            # One of them is more than its type can hold, such as a decimal with too many digits.
            for place, value in enumerate(values):
                try:
                    gather([value], arrow_type)
                except _POISON as error:
                    refuse(place, error)
            column = gather(values, arrow_type)
        return {"value": column, CORRUPT: pyarrow.array(corrupt, pyarrow.binary())}

    return make


def _told(rows: Rows, place: int, value_format: str, error: Exception) -> str:
    return (
        f"topic {rows.topic!r}, partition {rows.partition}, offset {rows.offsets[place]}: the value is not "
        f"{value_format} of the schema ({error}); correct the schema, or read with mode=PERMISSIVE and see "
        f"the column {CORRUPT}"
    )


def _decoder(value_format: str, kind: DataType) -> Callable[[bytes], Any]:
    if not isinstance(kind, StructType):
        raise UsageError(
            f"values of {value_format} are objects: the column value is a struct of their fields, not "
            f"{kind.simpleString()}; for others read them raw"
        )
    check_kind(kind, value_format)
    structure = _structure(kind)
    module: Any = msgspec.json if value_format == "json" else msgspec.msgpack
    decode: Callable[[bytes], Any] = module.Decoder(structure).decode
    fill = _filler(kind)
    if fill is None:
        return decode

    def decode_and_fill(data: bytes) -> Any:
        value = decode(data)
        fill(value)
        return value

    return decode_and_fill


def _filler(kind: DataType) -> Callable[[Any], None] | None:
    """What adds the fields that a value of this type left out and that are not null then; None if there are
    no such fields."""
    if isinstance(kind, StructType):
        return _filler_of_fields(kind)
    if isinstance(kind, ArrayType):
        inner = _filler(kind.elementType)
        return None if inner is None else partial(_fill_all, inner)
    if isinstance(kind, MapType):
        if _filler(kind.keyType) is not None:
            raise UsageError(
                f"the keys of {kind.simpleString()} have fields with the comment {IF_LEFT_OUT!r}; leave the "
                "comment out, or read the values raw"
            )
        inner = _filler(kind.valueType)
        return None if inner is None else partial(_fill_map, inner)
    return None


def _filler_of_fields(kind: StructType) -> Callable[[Any], None] | None:
    defaults = {each.name: _default(each) for each in kind.fields if _may_be_left_out(each)}
    inner = {each.name: found for each in kind.fields if (found := _filler(each.dataType)) is not None}
    if not inner and not defaults:
        return None

    def fill(value: Any) -> None:
        for name, default in defaults.items():
            value.setdefault(name, default)
        for name, fill_it in inner.items():
            if value.get(name) is not None:
                fill_it(value[name])

    return fill


def _fill_all(fill: Callable[[Any], None], values: Iterable[Any]) -> None:
    for each in values:
        if each is not None:
            fill(each)


def _fill_map(fill: Callable[[Any], None], value: Any) -> None:
    _fill_all(fill, value.values() if isinstance(value, dict) else (item for _, item in value))


def _may_be_left_out(field: StructField) -> bool:
    return str((field.metadata or {}).get("comment", "")).startswith(IF_LEFT_OUT)


def _default(field: StructField) -> Any:
    """What the field is if a value leaves it out."""
    text = field.metadata["comment"].removeprefix(IF_LEFT_OUT)
    try:
        return msgspec.json.decode(text, type=_optional(field.dataType, field.nullable))
    except msgspec.DecodeError as error:
        raise UsageError(
            f"the comment {field.metadata['comment']!r} of field {field.name!r} does not end in JSON of the "
            f"type {field.dataType.simpleString()} ({error}); correct it, or leave it out"
        ) from error


def _structure(kind: DataType) -> Any:
    """The Python type that a value is decoded as and checked by. It allows null where the type does."""
    if isinstance(kind, StructType):
        fields = {field.name: _field(field) for field in kind.fields}
        # msgspec 0.22 finds a field by a name that is not ASCII only if the name was encoded before.
        msgspec.json.encode(kind.names)
        return TypedDict("Value", fields, total=False)  # type: ignore[operator]
    if isinstance(kind, ArrayType):
        return list[_optional(kind.elementType, kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, MapType):
        item = _optional(kind.valueType, kind.valueContainsNull)
        if isinstance(kind.keyType, StringType):
            return dict[str, item]  # type: ignore[valid-type]
        return list[tuple[_structure(kind.keyType), item]]  # type: ignore[misc]
    bits = _BITS.get(type(kind))
    if bits is not None:
        return Annotated[int, Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    return _PLAIN[type(kind)]


def _field(field: StructField) -> Any:
    kind = _optional(field.dataType, field.nullable)
    return kind if field.nullable or _may_be_left_out(field) else Required[kind]


def _optional(kind: DataType, is_nullable: bool) -> Any:
    return _structure(kind) | None if is_nullable else _structure(kind)


def _arrow_decoder(kind: DataType, arrow_type: Any) -> Callable[[bytes], Any]:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        raise UsageError(
            f"a value of arrow has rows: the column value is array<struct<...>>, not {kind.simpleString()}"
        )
    wanted = pyarrow.schema(list(arrow_type.value_type))
    options = [pyarrow.compute.CastOptions(each.type, allow_time_truncate=True) for each in wanted]

    def decode(data: bytes) -> Any:
        with pyarrow.ipc.open_stream(data) as stream:
            table = stream.read_all()
        missing = [name for name in wanted.names if name not in table.column_names]
        if missing:
            raise ValueError(f"its columns are {', '.join(table.column_names)}, without {', '.join(missing)}")
        try:
            found = table.select(wanted.names)
        except KeyError as error:
            raise ValueError(str(error)) from error
        columns = [column.cast(options=each) for column, each in zip(found.columns, options, strict=True)]
        return pyarrow.table(columns, names=wanted.names).cast(wanted).to_struct_array().combine_chunks()

    return decode


def _lists(values: list[Any], arrow_type: Any) -> Any:
    """An array of the rows of each value, which stay in Arrow."""
    places = [0, *accumulate(0 if each is None else len(each) for each in values)]
    nothing = pyarrow.array([], arrow_type.value_type)
    rows = pyarrow.concat_arrays([nothing, *(each for each in values if each is not None)])
    absent = pyarrow.array([each is None for each in values], pyarrow.bool_())
    return pyarrow.ListArray.from_arrays(
        pyarrow.array(places, pyarrow.int32()), rows, type=arrow_type, mask=absent
    )
