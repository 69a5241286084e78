"""Typed values that were not read as they were written. Found by review.

Spark's sink wrote maps whose keys are not strings, and times in zones with offsets of seconds, otherwise than
the source reads them, and a null row of an Arrow value as a row of nulls. The source read null for fields
with names that are not ASCII, and called corrupt what our own codecs wrote: datetimes without a zone, and the
nanoseconds of Arrow.

Every value here goes through the encoder of the sink, or a codec, and through the decoder of the source.
"""

import datetime
import math
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

import hawser
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.record.schema import codec_of
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import check_columns, rows_of
from hawser.spark.source.columns import Chunk, Rows
from hawser.spark.values import type_of_arrow, typed

UTC = datetime.UTC
SOMEWHERE = {"endpoints": "hawser://127.0.0.1:1", "topic": "t"}
FORMATS = ("json", "msgpack", "arrow")
# Its offset from UTC had seconds until 1937.
ZONE = "Europe/Amsterdam"


def options(value_format: str) -> Options:
    return Options.of({**SOMEWHERE, "valueFormat": value_format}, streaming=False)


def arrow_type(kind: DataType, zone: str) -> Any:
    return to_arrow_schema(StructType([StructField("v", kind)]), timezone=zone).field(0).type


def written(value_format: str, column: Any) -> list[bytes]:
    found: list[bytes] = (
        rows_of(pyarrow.record_batch({"value": column}), options(value_format)).column("value").to_pylist()
    )
    return found


def as_read(value_format: str, kind: DataType, values: list[bytes]) -> Any:
    """The column that the source makes of these values."""
    batch = Batch.of([Record(bytes(each), timestamp_ns=1) for each in values])
    rows = Rows("t", "u", 0, [(Chunk(batch), 0, len(values), 1)])
    return typed(value_format, kind, False)(rows)["value"]


def check_columns_of(kind: DataType, value_format: str) -> None:
    check_columns(StructType([StructField("value", kind)]), options(value_format))


# Types of Spark with values as pyarrow takes them.

MOMENTS = st.datetimes()
PLAIN: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), st.integers(-(1 << 7), (1 << 7) - 1)),
    (ShortType(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (IntegerType(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (LongType(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (FloatType(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (DoubleType(), st.floats(allow_nan=False, allow_infinity=False)),
    (DecimalType(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (DecimalType(5, 0), st.integers(-99999, 99999).map(Decimal)),
    (StringType(), st.text(max_size=5)),
    (BinaryType(), st.binary(max_size=5)),
    (DateType(), st.dates()),
    (TimestampType(), st.datetimes(timezones=st.just(UTC))),
    (TimestampNTZType(), MOMENTS),
]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[DataType, st.SearchStrategy[Any]]:
    """A type, and its values without null."""
    which = draw(st.sampled_from(["plain"] * 2 + (["array", "map", "struct"] if depth else [])))
    if which == "plain":
        plain: tuple[DataType, st.SearchStrategy[Any]] = draw(st.sampled_from(PLAIN))
        return plain
    if which == "array":
        kind, values = draw(typed_values(depth - 1))
        return ArrayType(kind), st.lists(st.none() | values, max_size=3)
    if which == "map":
        key, keys = draw(st.sampled_from(PLAIN))
        kind, values = draw(typed_values(depth - 1))
        pairs = st.tuples(keys, st.none() | values)
        return MapType(key, kind), st.lists(pairs, max_size=3, unique_by=lambda pair: repr(pair[0]))
    return draw(structs(depth - 1))


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> tuple[StructType, st.SearchStrategy[Any]]:
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4, unique=True))
    fields = {name: draw(typed_values(depth)) for name in names}
    kind = StructType([StructField(name, kind) for name, (kind, _) in fields.items()])
    return kind, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields.items()})


@settings(max_examples=60)
@given(st.data(), st.sampled_from(FORMATS))
def test_the_source_reads_what_the_sink_wrote(data: st.DataObject, value_format: str) -> None:
    """Of every type that both have: equal, whatever the time zone of the session that writes."""
    kind, values = data.draw(structs())
    whole: DataType = kind
    if value_format == "arrow":
        whole, values = ArrayType(kind), st.lists(values, max_size=3)
    column = pyarrow.array(data.draw(st.lists(values, min_size=1, max_size=3)), arrow_type(whole, ZONE))
    check_columns_of(whole, value_format)
    found = as_read(value_format, whole, written(value_format, column))
    # Not by ==, for which 0.0 is -0.0.
    assert repr(found.to_pylist()) == repr(column.cast(arrow_type(whole, "UTC")).to_pylist())


def test_times_are_the_same_from_any_zone() -> None:
    """An offset of 19 minutes and 32 seconds was written as one of 20 minutes; and in UTC the year is 1."""
    kind = StructType().add("at", TimestampType())
    moments = [datetime.datetime(1930, 1, 1, tzinfo=UTC), datetime.datetime(1, 1, 1, tzinfo=UTC)]
    for zone in (ZONE, "America/New_York", "UTC"):
        column = pyarrow.array([{"at": moment} for moment in moments], arrow_type(kind, zone))
        for value_format in ("json", "msgpack"):
            found = as_read(value_format, kind, written(value_format, column)).to_pylist()
            assert [each["at"] for each in found] == moments


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize(
    "kind",
    [NullType(), VariantType(), CalendarIntervalType(), YearMonthIntervalType()],
    ids=lambda kind: kind.simpleString(),
)
def test_other_types_are_refused_by_name_before_anything_is_written(
    kind: DataType, value_format: str
) -> None:
    inside = StructType().add("in", MapType(StringType(), ArrayType(StructType().add("x", kind))))
    whole = StructType().add("a", LongType()).add("b", inside)
    with pytest.raises(hawser.UsageError, match=r"^value(\[\])?\.b\.in\.value\[\]\.x is "):
        check_columns_of(ArrayType(whole) if value_format == "arrow" else whole, value_format)


def test_only_arrow_has_times_of_day_and_durations() -> None:
    kind = StructType().add("t", TimeType()).add("d", DayTimeIntervalType())
    for value_format in ("json", "msgpack"):
        with pytest.raises(hawser.UsageError, match=r"^value\.t is time"):
            check_columns_of(kind, value_format)
    check_columns_of(ArrayType(kind), "arrow")
    rows = [[{"t": datetime.time(1, 2, 3, 4), "d": datetime.timedelta(-3, 5, 7)}, {"t": None, "d": None}]]
    column = pyarrow.array(rows, arrow_type(ArrayType(kind), ZONE))
    assert as_read("arrow", ArrayType(kind), written("arrow", column)).equals(column)


def test_fields_of_one_name_are_refused() -> None:
    kind = StructType().add("x", LongType()).add("x", StringType())
    for value_format in FORMATS:
        with pytest.raises(hawser.UsageError, match="has the field 'x' more than once"):
            check_columns_of(ArrayType(kind) if value_format == "arrow" else kind, value_format)


DAY = pyarrow.struct([("a", pyarrow.struct([("day", pyarrow.date32())]))])
TEXT = pyarrow.struct([("texts", pyarrow.list_(pyarrow.string()))])
BAD_TEXT = pyarrow.array([b"good", b"\xff"]).cast(pyarrow.string(), safe=False)


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (pyarrow.array([{"a": {"day": 0}}, {"a": {"day": 3_000_000}}], DAY), r"value\.a\.day"),
        (
            pyarrow.StructArray.from_arrays(
                [pyarrow.ListArray.from_arrays([0, 2], BAD_TEXT)], fields=list(TEXT)
            ),
            r"value\.texts\[\]",
        ),
    ],
    ids=["the year 10000", "no text"],
)
def test_what_only_spark_has_is_refused_by_name(column: Any, path: str) -> None:
    for value_format in ("json", "msgpack"):
        with pytest.raises(hawser.UsageError, match=f"something in {path} that cannot be written"):
            written(value_format, column)


def test_a_number_that_json_lacks_is_refused_by_name() -> None:
    kind = pyarrow.struct([("m", pyarrow.map_(pyarrow.float64(), pyarrow.float64()))])
    for pair, place in (((float("nan"), 1.0), "key"), ((1.0, float("inf")), "value")):
        column = pyarrow.array([{"m": [(0.0, 0.0)]}, {"m": [pair]}], kind)
        with pytest.raises(hawser.UsageError, match=rf"JSON has no NaN .* in value\.m\.{place};"):
            written("json", column)
        # The first of them is good by itself.
        assert written("json", column.slice(0, 1)) == [b'{"m":[[0.0,0.0]]}']


def test_a_null_row_in_a_value_of_arrow_is_refused() -> None:
    column = pyarrow.array([[{"x": 1}], [None]], pyarrow.list_(pyarrow.struct([("x", pyarrow.int64())])))
    with pytest.raises(hawser.UsageError, match="null in the place of a row"):
        written("arrow", column)
    assert len(written("arrow", column.slice(0, 1))) == 1


# What our codecs write. Each Python type with the name that the topic is given for it, and how Spark has it.

CODED: list[tuple[Any, str, DataType, st.SearchStrategy[Any]]] = [
    (bool, "boolean", BooleanType(), st.booleans()),
    (int, "bigint", LongType(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (float, "double", DoubleType(), st.floats(allow_nan=False) | st.integers(-9, 9)),
    (str, "string", StringType(), st.text(max_size=5)),
    (bytes, "binary", BinaryType(), st.binary(max_size=5)),
    (datetime.date, "date", DateType(), st.dates()),
    (datetime.datetime, "timestamp", TimestampType(), MOMENTS),
    (datetime.datetime, "timestamp", TimestampType(), st.datetimes(timezones=st.just(UTC))),
    (Annotated[datetime.datetime, Meta(tz=False)], "timestamp_ntz", TimestampNTZType(), MOMENTS),
    (
        Annotated[datetime.datetime, Meta(tz=True)],
        "timestamp",
        TimestampType(),
        st.datetimes(timezones=st.just(UTC)),
    ),
]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(CODED), st.sampled_from(["plain", "list", "dict"])), min_size=1),
    st.data(),
    st.booleans(),
)
def test_the_source_reads_what_a_structure_was(
    chosen: list[tuple[Any, str]], data: st.DataObject, omit_defaults: bool
) -> None:
    fields: list[Any] = []
    texts, kind, value = [], StructType(), {}
    for number, ((python, text, spark, values), shape) in enumerate(chosen):
        name = f"f{number}"
        whole = _shaped(shape, python, text, spark, values)
        default = data.draw(st.none() | values.filter(_is_finite)) if shape == "plain" else None
        fields.append((name, whole[0] | None, default))
        comment = ""
        if omit_defaults and default is not None:
            comment = f"if left out: {msgspec.json.encode(default).decode()}"
        escaped = comment.replace("\\", r"\\").replace("'", r"\'")
        texts.append(f"{name} {whole[1]}" + (f" COMMENT '{escaped}'" if comment else ""))
        kind.add(name, whole[2], metadata={"comment": comment})
        value[name] = data.draw(st.none() | st.just(default) | whole[3])
    structure = msgspec.defstruct("Generated", fields, omit_defaults=omit_defaults)
    codec = codec_of(structure)
    assert codec.fields == ", ".join(texts)
    (found,) = as_read("msgpack", kind, [bytes(codec.encode(structure(**value)))]).to_pylist()
    assert found == pyarrow.array([value], arrow_type(kind, "UTC")).to_pylist()[0]


def _is_finite(value: Any) -> bool:
    """JSON has no infinities."""
    return not isinstance(value, float) or math.isfinite(value)


def _shaped(shape: str, python: Any, text: str, kind: DataType, values: st.SearchStrategy[Any]) -> Any:
    if shape == "list":
        return list[python], f"array<{text}>", ArrayType(kind), st.lists(values, max_size=3)
    if shape == "dict":
        keyed = st.dictionaries(st.text(max_size=3), values, max_size=3)
        return dict[str, python], f"map<string, {text}>", MapType(StringType(), kind), keyed
    return python, text, kind, values


UNITS = ("s", "ms", "us", "ns")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", [None, "UTC", ZONE])
def test_times_of_arrow_in_any_unit_are_read(unit: Any, zone: str | None) -> None:
    """Nanoseconds are the default of pandas. Spark has microseconds, to which they are cut."""
    schema = pyarrow.schema(
        [
            ("at", pyarrow.timestamp(unit, zone)),
            ("many", pyarrow.list_(pyarrow.timestamp(unit, zone))),
            ("by", pyarrow.map_(pyarrow.string(), pyarrow.struct([("at", pyarrow.timestamp(unit, zone))]))),
        ]
    )
    name = "timestamp_ntz" if zone is None else "timestamp"
    codec = codec_of(schema)
    assert codec.fields == f"at {name}, many array<{name}>, by map<string, struct<at: {name}>>"
    number = 1_700_000_000 * 10 ** (3 * UNITS.index(unit)) + 1
    rows = {"at": [number], "many": [[number]], "by": [[("k", {"at": number})]]}
    data = bytes(codec.encode(pyarrow.record_batch(rows, schema)))
    kind = type_of_arrow(data)
    ((row,),) = as_read("arrow", kind, [data]).to_pylist()
    seconds = {"s": 1, "ms": 0.001, "us": 1e-6, "ns": 0}[unit]
    moment = datetime.datetime.fromtimestamp(1_700_000_000, UTC) + datetime.timedelta(seconds=seconds)
    moment = moment.replace(tzinfo=None) if zone is None else moment
    assert row == {"at": moment, "many": [moment], "by": [("k", {"at": moment})]}


ARROW: list[tuple[Any, str, list[Any]]] = [
    (pyarrow.bool_(), "boolean", [True, None]),
    (pyarrow.int8(), "tinyint", [-128, None]),
    (pyarrow.uint8(), "smallint", [255, None]),
    (pyarrow.uint32(), "bigint", [(1 << 32) - 1, None]),
    (pyarrow.float32(), "float", [0.5, None]),
    (pyarrow.large_string(), "string", ["ü", None]),
    (pyarrow.large_binary(), "binary", [b"\0", None]),
    (pyarrow.date32(), "date", [datetime.date(2026, 1, 1), None]),
    (pyarrow.decimal128(7, 2), "decimal(7, 2)", [Decimal("12.50"), None]),
    (pyarrow.large_list(pyarrow.int16()), "array<smallint>", [[1, None], [], None]),
]
SPARK: dict[str, DataType] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "bigint": LongType(),
    "float": FloatType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "decimal(7, 2)": DecimalType(7, 2),
    "array<smallint>": ArrayType(ShortType()),
}


@pytest.mark.parametrize(("kind", "text", "values"), ARROW, ids=[text for _, text, _ in ARROW])
def test_columns_of_arrow_are_read_by_the_types_that_were_stored(
    kind: Any, text: str, values: list[Any]
) -> None:
    schema = pyarrow.schema([("x", kind)])
    codec = codec_of(schema)
    assert codec.fields == f"x {text}"
    data = [bytes(codec.encode(pyarrow.record_batch({"x": part}, schema))) for part in (values, [])]
    spark = ArrayType(StructType().add("x", SPARK[text]))
    assert as_read("arrow", spark, data).to_pylist() == [[{"x": value} for value in values], []]


@pytest.mark.parametrize(
    "schema",
    [
        pyarrow.schema([("x", pyarrow.int8()), ("x", pyarrow.int8())]),
        pyarrow.schema([("x", pyarrow.decimal128(5, -2))]),
        pyarrow.schema([("x", pyarrow.struct([]))]),
        pyarrow.schema([("x", pyarrow.uint64())]),
    ],
    ids=["one name twice", "a negative scale", "nothing", "unsigned"],
)
def test_columns_that_spark_has_no_types_for_are_not_named(schema: Any) -> None:
    assert codec_of(schema).fields is None


def test_columns_that_spark_has_no_types_for_are_told() -> None:
    schema = pyarrow.schema([("id", pyarrow.uint64()), ("name", pyarrow.string())])
    data = bytes(codec_of(schema).encode(pyarrow.record_batch({"id": [1 << 63], "name": ["a"]}, schema)))
    with pytest.raises(hawser.UsageError, match=r"id: uint64, name: string.*valueSchema"):
        type_of_arrow(data)
    kind = ArrayType(StructType().add("id", DecimalType(20, 0)))
    assert as_read("arrow", kind, [data]).to_pylist() == [[{"id": Decimal(1 << 63)}]]


def test_a_field_that_must_be_there_is_asked_for() -> None:
    """Spark does not look whether what cannot be null is: it would read anything."""
    kind = StructType().add("id", LongType(), nullable=False).add("ids", ArrayType(LongType(), False))
    assert as_read("json", kind, [b'{"id": 1}']).to_pylist() == [{"id": 1, "ids": None}]
    for value in (b"{}", b'{"id": null}', b'{"id": 1, "ids": [null]}'):
        with pytest.raises(hawser.Corrupt):
            as_read("json", kind, [value])


def test_schemas_of_arrow_and_of_spark_agree() -> None:
    """As `type_of_arrow` says: the types are those of Spark's own rules."""
    schema = pyarrow.schema([("x", pyarrow.int64()), ("at", pyarrow.timestamp("ns", "UTC"))])
    data = bytes(codec_of(schema).encode(pyarrow.record_batch({"x": [1], "at": [1]}, schema)))
    assert type_of_arrow(data) == ArrayType(from_arrow_schema(schema))
