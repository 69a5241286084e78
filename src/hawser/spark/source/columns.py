"""Rows as Arrow, from the batches of the log: no Python object for a row unless its headers are asked for.

| column | type | |
|---|---|---|
| key | binary | null where a record has none |
| value | binary | or typed, see values.py; null where a record has none |
| topic | string | |
| topic_uuid | string | with includeTopicUuid; a topic that is deleted and created anew has another one |
| partition | int | |
| offset | bigint | dense, from 1 |
| timestamp | timestamp | of the producer, cut to microseconds |
| timestampType | int | as in Kafka: 0, the time is the producer's; never 1, the time of the log |
| headers | array<struct<key string, value binary>> | with includeHeaders; null where a record has none |
| producer | string | null where a batch has none |
| producer_sequence | bigint | of a recorder: the offset of the sample in its region; else of the batch |
| _corrupt_record | binary | with mode PERMISSIVE: a value that is not what it should be |

What the schema of a query does not have is not built; without key, value, headers and timestamp the records
are not even decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hawser.errors import UsageError
from hawser.record.batch import Batch, Format
from hawser.record.batch_body import HEADERS, decode_header_pairs, decode_headers
from hawser.record.ipc_size import unpacked_bytes
from hawser.record.record import NULL_HEADER
from hawser.record.recording import GAP_HEADER, is_recorder
from hawser.spark.source.options import Options

__all__ = ["CORRUPT", "Chunk", "Rows", "Table", "TooLarge", "check_schema", "full_schema"]

CORRUPT: Final = "_corrupt_record"
# The records of smaller bare batches are joined one by one: Arrow costs more for each than it gains.
_FEW: Final = 24
_FEW_BYTES: Final = 1 << 20

# What Kafka calls CreateTime.
_OF_PRODUCER: Final = 0

_NANOSECONDS: Final = pyarrow.timestamp("ns", "UTC")
_MICROSECONDS: Final = pyarrow.timestamp("us", "UTC")

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "topic_uuid": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
    "producer": StringType(),
    "producer_sequence": LongType(),
}


class _Option(NamedTuple):
    name: str
    is_given: Callable[[Options], bool]


_OPTIONAL: Final = {
    "topic_uuid": _Option("includeTopicUuid", lambda options: options.with_topic_uuid),
    "headers": _Option("includeHeaders", lambda options: options.with_headers),
}
# Spark need not check the others for null, row by row.
_NULLABLE: Final = frozenset({"key", "value", "headers", "producer", "producer_sequence", CORRUPT})


def full_schema(options: Options, value: DataType) -> StructType:
    """All columns that these options give, with values of this type."""
    types = {**_TYPES, "value": value}
    for name, option in _OPTIONAL.items():
        if not option.is_given(options):
            del types[name]
    if options.is_permissive:
        types[CORRUPT] = BinaryType()
    return StructType([StructField(name, kind, name in _NULLABLE) for name, kind in types.items()])


def check_schema(schema: StructType, options: Options) -> None:
    """UsageError unless each column is one of ours, of its type."""
    known = dict(_TYPES)
    if options.is_permissive:
        known[CORRUPT] = BinaryType()
    for field in schema.fields:
        if field.name not in known:
            hint = "; give mode=PERMISSIVE for it" if field.name == CORRUPT else ""
            raise UsageError(
                f"a topic has no column {field.name!r}; it has {', '.join(known)}{hint}. "
                "Fields of typed values are in the column value"
            )
        option = _OPTIONAL.get(field.name)
        if option is not None and not option.is_given(options):
            raise UsageError(f"the column {field.name} needs option {option.name}=true")
        if field.name == "value" and options.is_typed:
            continue
        if not _same(field.dataType, known[field.name]):
            raise UsageError(
                f"column {field.name} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; ask for it as it is and cast it afterwards"
            )


def _same(one: DataType, other: DataType) -> bool:
    """Whether two types are equal apart from nullability."""
    return one.simpleString() == other.simpleString()


class Chunk:
    """A batch of the log, decoded once however many rows are taken from it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @cached_property
    def arrow(self) -> Any:
        return self.batch.to_arrow()

    @cached_property
    def unpacked_bytes(self) -> int:
        """The size of its records in memory; they may be stored compressed to a fraction of it."""
        header = self.batch.header
        if not header.compression:
            return len(self.batch.data)
        size, _ = unpacked_bytes(memoryview(self.batch.data)[header.body :])
        return max(1, size)

    @cached_property
    def has_no_headers(self) -> bool:
        """Whether the header of the batch says that; an Arrow body does not."""
        header = self.batch.header
        return header.format == Format.BARE and not header.columns & HEADERS

    @property
    def is_few(self) -> bool:
        """Whether its records are joined with others one by one. A joined record has each header key once, so
        batches with headers are not joined."""
        is_small = self.batch.count < _FEW and len(self.batch.data) <= _FEW_BYTES
        return is_small and self.has_no_headers

    @cached_property
    def is_gap(self) -> bool:
        """Whether it is a gap record, for samples that were lost before they could be recorded."""
        header = self.batch.header
        if header.records != 1 or not is_recorder(header.producer):
            return False
        (record,) = self.batch.records()
        return not record.value and GAP_HEADER in record.headers


class Rows:
    """Some records of one partition that become one Arrow batch: of each chunk `count` from place `skip`."""

    def __init__(
        self, topic: str, topic_uuid: str, partition: int, parts: Sequence[tuple[Chunk, int, int, int]]
    ) -> None:
        self.topic = topic
        self.topic_uuid = topic_uuid
        self.partition = partition
        self._parts = parts
        self._chunks = [chunk for chunk, *_ in parts]
        self._skips = numpy.array([skip for _, skip, _, _ in parts], "i8")
        self._counts = numpy.array([count for _, _, count, _ in parts], "i8")
        self._offsets = numpy.array([offset for *_, offset in parts], "i8")
        self.count = int(self._counts.sum())

    def cut(self, first: int, end: int) -> "Rows":
        """The rows from place `first` up to but not including place `end`."""
        parts, place = [], 0
        for chunk, skip, count, offset in self._parts:
            before, behind = max(0, first - place), max(0, place + count - end)
            if before + behind < count:
                parts.append((chunk, skip + before, count - before - behind, offset + before))
            place += count
        return Rows(self.topic, self.topic_uuid, self.partition, parts)

    @cached_property
    def _bodies(self) -> list[Any]:
        """The columns that are in the log, as pyarrow.RecordBatches."""
        batches: list[Any] = []
        few: list[Any] = []
        for chunk, skip, count in zip(self._chunks, self._skips, self._counts, strict=True):
            if chunk.is_few:
                few += list(chunk.batch.records())[skip : skip + count]
                continue
            batches += _put_together(few)
            few = []
            batches.append(chunk.arrow.slice(skip, count))
        return batches + _put_together(few)

    def _column(self, name: str) -> Any:
        """One column, of all rows."""
        parts = [body.column(name) for body in self._bodies]
        return parts[0] if len(parts) == 1 else pyarrow.concat_arrays(parts)

    def _spread(self, values: Any) -> Any:
        """A column whose value is the same for all rows of a chunk."""
        return numpy.repeat(values, self._counts)

    @cached_property
    def _places(self) -> Any:
        """The place of each row among those of its chunk that are here, from 0."""
        return numpy.arange(self.count, dtype="i8") - self._spread(numpy.cumsum(self._counts) - self._counts)

    @cached_property
    def offsets(self) -> Any:
        first, last = self._offsets[0], self._offsets[-1] + self._counts[-1]
        if last - first == self.count:
            return numpy.arange(first, last, dtype="i8")
        return self._spread(self._offsets) + self._places

    @cached_property
    def gaps(self) -> set[int]:
        """The places of the rows that are gap records."""
        firsts = numpy.cumsum(self._counts) - self._counts
        return {int(first) for first, chunk in zip(firsts, self._chunks, strict=True) if chunk.is_gap}

    def key(self) -> Any:
        return self._column("key")

    @cached_property
    def _is_absent(self) -> Any:
        """Of each row, whether the record has no value: its value is empty, and so is a header that says so.
        With any other value both are what a user wrote."""
        absent = numpy.zeros(self.count, bool)
        if all(chunk.has_no_headers for chunk in self._chunks):
            return absent
        headers = self._column("headers")
        if headers.null_count == len(headers):
            return absent
        sizes = [pyarrow.compute.binary_length(body.column("value")) for body in self._bodies]
        is_empty = pyarrow.compute.equal(pyarrow.concat_arrays(sizes), 0)
        places = numpy.flatnonzero(pyarrow.compute.and_(is_empty, headers.is_valid()).to_numpy(False))
        absent[places] = [
            decode_headers(headers[int(place)].as_py()).get(NULL_HEADER) == b"" for place in places
        ]
        return absent

    def value(self) -> Any:
        """The keys; null where a record has none."""
        values, absent = self._column("value"), self._is_absent
        if not absent.any():
            return values
        return pyarrow.compute.if_else(pyarrow.array(absent), pyarrow.scalar(None, values.type), values)

    def timestamp(self) -> Any:
        headers = [chunk.batch.header for chunk in self._chunks]
        if any(each.earliest_ns != each.latest_ns for each in headers):
            return self._column("timestamp").cast(_MICROSECONDS, safe=False)
        # Messages that were published together have one time, which is cut once.
        times = pyarrow.array([each.earliest_ns for each in headers], _NANOSECONDS)
        cut = times.cast(_MICROSECONDS, safe=False).view(pyarrow.int64())
        return pyarrow.array(self._spread(cut.to_numpy())).view(_MICROSECONDS)

    def timestamp_types(self) -> Any:
        return _repeated(_OF_PRODUCER, pyarrow.int32(), self.count)

    def headers(self) -> Any:
        column = self._column("headers")
        kind = _ARROW_HEADERS
        if column.null_count == len(column):
            return pyarrow.nulls(len(column), kind)
        rows = [
            [
                {"key": k, "value": v}
                for k, v in decode_header_pairs(each)
                if not (is_absent and k == NULL_HEADER and not v)
            ]
            or None
            for each, is_absent in zip(column.to_pylist(), self._is_absent, strict=True)
        ]
        return pyarrow.array(rows, kind)

    def topic_names(self) -> Any:
        return _repeated(self.topic, pyarrow.string(), self.count)

    def topic_uuids(self) -> Any:
        return _repeated(self.topic_uuid, pyarrow.string(), self.count)

    def partitions(self) -> Any:
        return _repeated(self.partition, pyarrow.int32(), self.count)

    def offset(self) -> Any:
        return pyarrow.array(self.offsets)

    def producer(self) -> Any:
        names = [chunk.batch.header.producer for chunk in self._chunks]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        texts = [name.decode(errors="replace") if name else None for name in numbers]
        if len(texts) == 1:
            return _repeated(texts[0], pyarrow.string(), self.count)
        places = self._spread([numbers[name] for name in names])
        return pyarrow.array(texts, pyarrow.string()).take(pyarrow.array(places))

    def producer_sequence(self) -> Any:
        headers = [chunk.batch.header for chunk in self._chunks]
        recorders = [is_recorder(each.producer) for each in headers]
        firsts = numpy.array(
            [
                each.incarnation + skip if of_recorder else each.sequence
                for each, skip, of_recorder in zip(headers, self._skips, recorders, strict=True)
            ],
            "i8",
        )
        numbers = self._spread(firsts)
        if any(recorders):
            numbers += self._spread(recorders) * self._places
        absent = [not each.producer for each in headers]
        return pyarrow.array(numbers, mask=self._spread(absent) if any(absent) else None)


_BUILDERS: Final[dict[str, Callable[[Rows], Any]]] = {
    "key": Rows.key,
    "value": Rows.value,
    "topic": Rows.topic_names,
    "topic_uuid": Rows.topic_uuids,
    "partition": Rows.partitions,
    "offset": Rows.offset,
    "timestamp": Rows.timestamp,
    "timestampType": Rows.timestamp_types,
    "headers": Rows.headers,
    "producer": Rows.producer,
    "producer_sequence": Rows.producer_sequence,
}
_ARROW_HEADERS: Final = (
    to_arrow_schema(StructType([StructField("h", _HEADERS)]), timezone="UTC").field(0).type
)


@lru_cache(maxsize=16)
def _repeated(value: "str | int | None", kind: Any, count: int) -> Any:
    """Most batches of a task have as many rows as the last one."""
    return pyarrow.repeat(pyarrow.scalar(value, kind), count)


def _put_together(records: list[Any]) -> list[Any]:
    return [Batch.of(records).to_arrow()] if records else []


class TooLarge(Exception):
    """The typed values of some rows take too much memory for one Arrow batch; those of the first `rows` do
    not."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"the values of the first {rows} rows are enough for one batch")
        self.rows = rows


class Table:
    """Rows as the Arrow batches of a schema. `typed` makes the columns value and _corrupt_record."""

    def __init__(self, schema: StructType, typed: Callable[[Rows], dict[str, Any]] | None) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._typed = typed

    def of(self, rows: Rows) -> Iterator[Any]:
        """The rows as pyarrow.RecordBatches: one, or several if their typed values are too large for one."""
        while True:
            try:
                batch = self._batch(rows)
            except TooLarge as error:
                yield self._batch(rows.cut(0, error.rows))
                rows = rows.cut(error.rows, rows.count)
            else:
                yield batch
                return

    def _batch(self, rows: Rows) -> Any:
        names = self._schema.names
        made: dict[str, Any] = {}
        if self._typed is not None and ("value" in names or CORRUPT in names):
            made = self._typed(rows)
        arrays = [made[name] if name in made else _BUILDERS[name](rows) for name in names]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)
