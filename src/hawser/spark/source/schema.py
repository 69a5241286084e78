"""The schema of a query: its columns, and the type of its values."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import BinaryType, DataType, StructType

from hawser.cluster.wire import TopicEntry
from hawser.errors import UsageError
from hawser.spark.connection import connection
from hawser.spark.source.columns import Table, check_schema, full_schema
from hawser.spark.source.offsets import ends, ranges, starts
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split
from hawser.spark.source.task import read_split
from hawser.spark.values import check_fingerprint, type_of_arrow, typed

__all__ = ["check_topics", "schema_of", "table_of"]

# Arrow streams in values may be compressed: a batch for Spark has about so many bytes of them in memory.
_MOST_TYPED_BYTES: Final = 32 << 20


def schema_of(options: Options) -> StructType | str:
    """The columns of a query whose user gave no schema; as text if the types of its values are text, which
    only Spark itself can read."""
    if not options.is_typed:
        return full_schema(options, BinaryType())
    fields = options.value_schema if options.value_schema is not None else _fields_of_topics(options)
    if fields is not None:
        struct = f"struct<{fields}>"
        value = f"array<{struct}>" if options.value_format == "arrow" else struct
        columns = full_schema(options, BinaryType())
        return ", ".join(
            f"{field.name} {value if field.name == 'value' else field.dataType.simpleString()}"
            for field in columns.fields
        )
    if options.value_format == "arrow" and not options.is_local and options.queue is None:
        return full_schema(options, _type_of_first(options))
    raise UsageError(
        f"valueFormat={options.value_format} needs the fields of the values, and the topics were made "
        "without a schema, with different ones, or with one that SQL cannot write: give "
        'option("valueSchema", "id bigint, name string"), or '
        'schema("value struct<id: bigint, name: string>, offset bigint")'
    )


def _fields_of_topics(options: Options) -> str | None:
    """The fields that the topics were created with, if they are the same for all."""
    if options.is_local:
        return None
    found = {entry.settings.get("fields") for entry in connection(options.endpoints).topics(options).values()}
    fields = found.pop() if len(found) == 1 else None
    return fields if isinstance(fields, str) else None


def _type_of_first(options: Options) -> DataType:
    """The type of the first value: Arrow values contain their schema."""
    cluster = connection(options.endpoints)
    bounds = cluster.bounds(cluster.topics(options), options)
    table = Table(StructType().add("value", BinaryType()), None)
    for each in ranges(starts(bounds), ends(bounds)):
        first = Split(each._replace(end=each.first + 1), 0)
        for batch in read_split(first, options._replace(fail_on_data_loss=False), table):
            if batch.column("value")[0].is_valid:
                return type_of_arrow(batch.column("value")[0].as_py())
    raise UsageError(
        "valueFormat=arrow takes the columns from the first message, and there is none yet; give them with "
        'option("valueSchema", "id bigint, name string")'
    )


def check_topics(options: Options, topics: Mapping[str, TopicEntry]) -> None:
    """UsageError if one of the topics was created with a schema of another format."""
    if options.is_typed:
        for name, entry in topics.items():
            check_fingerprint(name, entry.settings.get("schema"), options.value_format)


def table_of(options: Options, schema: StructType) -> Table:
    """The table that makes rows of this schema; UsageError if none can."""
    check_schema(schema, options)
    if not options.is_typed or "value" not in schema.names:
        return Table(schema, None)
    kind = schema["value"].dataType
    return Table(schema, typed(options.value_format, kind, options.is_permissive, _MOST_TYPED_BYTES))
