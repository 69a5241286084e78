"""Registers the pipeline that a file defines with a Connect server, and checks its tables.

Tables that streams fill declare their schemas, so the definitions are the whole catalog: before a run they
are declared in the server's catalog, at their directories. Every run computes the other tables again.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, Table
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from hawser.errors import UsageError
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.directory import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Definitions", "create_database", "declare", "register"]

_ANEW: Final = "make the table anew with --full-refresh"
_CURE: Final = f"give the old type, or {_ANEW}"


class Definitions(SparkConnectGraphElementRegistry):
    """The definitions of one file."""

    def __init__(self, spark: "SparkSession", graph: str) -> None:
        super().__init__(spark, graph)
        self.streamed: dict[str, StreamingTable] = {}
        self.computed: list[str] = []
        self.sinks: list[str] = []
        self._flows: dict[str, _Flow] = {}

    @property
    def tables(self) -> list[str]:
        return [*self.streamed, *self.computed]

    def register_output(self, output: Output) -> None:
        if isinstance(output, StreamingTable):
            if output.schema is None:
                raise UsageError(
                    f"table {output.name} does not declare its columns: write @dp.table(schema="
                    '"id bigint, ..."), because there is no catalog that would remember them'
                )
            _check_format(output)
            self.streamed[output.name] = output
        elif isinstance(output, MaterializedView):
            _check_format(output)
            self.computed.append(output.name)
        elif isinstance(output, Sink):
            self.sinks.append(output.name)
        super().register_output(output)

    def register_flow(self, flow: Flow) -> None:
        def watched() -> "DataFrame":
            frame = flow.func()
            plan = cast(Any, frame)._plan.plan(self._client)
            self._flows[flow.name.rpartition(".")[2]] = _Flow.of(flow.target, plan)
            return frame

        super().register_flow(replace(flow, func=watched))

    def target_of(self, flow: str) -> str:
        """A table or sink that a flow fills."""
        known = self._flows.get(flow)
        return flow if known is None else known.target

    def flows_into(self, table: str) -> list[str]:
        """The names of the flows that fill it."""
        return [name for name, flow in self._flows.items() if flow.target.rpartition(".")[2] == table]

    def tables_before(self, flow: str) -> set[str]:
        """The tables of this pipeline which it reads itself."""
        return self._flows[flow].reads & set(self.tables) if flow in self._flows else set()

    def made_from(self, tables: Iterable[str]) -> list[str]:
        """The tables, and all tables and sinks that get their rows from them, directly or not."""
        found = set(tables)
        flows = self._flows.values()
        while more := {each.target for each in flows if (each.reads | each.mentions) & found} - found:
            found |= more
        return sorted(found)


class _Flow(NamedTuple):
    """A flow: its target, the tables that it reads, by their names without the database, and the words of its
    SQL, in which only Spark can tell which are tables."""

    target: str
    reads: set[str]
    mentions: set[str]

    @classmethod
    def of(cls, target: str, plan: Any) -> "_Flow":
        reads = {text.rpartition(".")[2].strip("`") for text in _texts(plan, "unparsed_identifier")}
        return cls(target, reads, set(re.findall(r"\w+", " ".join(_texts(plan, "query")))))


def _texts(message: Any, name: str) -> Iterator[str]:
    """The values of all fields of this name in a plan, a message of Spark Connect."""
    for field, value in message.ListFields():
        if field.name == name and isinstance(value, str):
            yield value
        elif field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                if hasattr(each, "ListFields"):
                    yield from _texts(each, name)


def register(spark: "SparkSession", graph: str, file: Path) -> Definitions:
    """Run the file, which defines tables in the graph. Errors in it are its own."""
    definitions = Definitions(spark, graph)
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with (
        graph_element_registration_context(definitions),
        add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
        block_session_mutations(),
    ):
        specification.loader.exec_module(module)
    if not definitions.tables:
        raise UsageError(f"{file} defines no table; see @dp.table and @dp.materialized_view")
    return definitions


def create_database(spark: "SparkSession", place: Place) -> None:
    """Create the database of the tables of `place`, unless the server has it."""
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {place.database} LOCATION '{_quoted(place.tables)}'")


def declare(spark: "SparkSession", definitions: Definitions, place: Place) -> None:
    """Declare the existing tables to the server. UsageError if one was filled in another way than it is
    defined now: the run would lose rows of it, or repeat them."""
    for name, table in definitions.streamed.items():
        _check_streamed(place, table, definitions.flows_into(name))
        if place.table(name).is_dir() and not spark.catalog.tableExists(f"{place.database}.{name}"):
            spark.sql(_declaration(place, table))
    for name in definitions.computed:
        if tables.kind(place.directory, name) == "streamed" or place.checkpoints_of(name):
            raise UsageError(
                f"table {name} was filled by a stream and is computed as a whole now, which would remove its "
                f"rows: {_ANEW} {name}"
            )
        if not spark.catalog.tableExists(f"{place.database}.{name}"):
            place.remove(place.table(name))
    place.empty_removed()


def _declaration(place: Place, table: StreamingTable) -> str:
    columns = _type_of(table).toDDL()
    layout = [
        f"{words} ({', '.join(f'`{each}`' for each in names)})"
        for words, names in (("PARTITIONED BY", table.partition_cols), ("CLUSTER BY", table.cluster_by))
        if names
    ]
    location = f"LOCATION '{_quoted(place.table(table.name))}'"
    return " ".join(
        [f"CREATE TABLE {place.database}.`{table.name}` ({columns}) USING parquet", *layout, location]
    )


def _type_of(table: StreamingTable) -> StructType:
    schema = table.schema
    found = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(found, StructType), schema
    return found


def _check_format(table: Table) -> None:
    if table.format not in (None, "parquet"):
        raise UsageError(
            f"table {table.name} has format {table.format!r}; the tables of a pipeline are Parquet, whose "
            "committed files its directory lists. Write other formats from a streaming query of your own"
        )


def _check_streamed(place: Place, table: StreamingTable, flows: list[str]) -> None:
    """The sink skips every batch whose number is in the table's list, and the checkpoint of a flow counts the
    batches: so a table has one flow, and list and checkpoint stay together."""
    name = table.name
    if len(flows) > 1:
        raise UsageError(
            f"table {name} is filled by {len(flows)} flows, {', '.join(flows)}; the rows of all but one "
            "would be lost. Fill it by one flow, from a union"
        )
    if tables.kind(place.directory, name) == "computed":
        raise UsageError(
            f"table {name} was computed as a whole and is filled by a stream now: {_ANEW} {name}"
        )
    known = [each.name for path in place.checkpoints_of(name) for each in path.iterdir()]
    if known and flows and flows[0] not in known:
        raise UsageError(
            f"table {name} was filled by flow {known[0]} and would be by {flows[0]}, which begins from the "
            f"start: keep the flow's name, or {_ANEW} {name}"
        )
    has_rows = tables.has_batches(place.directory, name)
    # A batch is in the list first, then in the checkpoint.
    has_committed = any(any(path.glob("*/*/commits/*")) for path in place.checkpoints_of(name))
    if (has_rows and not known) or (has_committed and not has_rows):
        gone = "directory" if has_committed else "checkpoint"
        raise UsageError(
            f"the {gone} of table {name} is gone, so it cannot go on: put it back, or {_ANEW} {name}"
        )
    _check_columns(place, name, _type_of(table))


def _check_columns(place: Place, name: str, declared: DataType) -> None:
    """Compare the columns with those of the newest file. Columns may be added; existing ones keep their
    type."""
    written = tables.files(place.directory, name) if place.table(name).is_dir() else []
    text = (
        tables.content(max(written, key=lambda each: each.written_ms).path).spark_schema if written else None
    )
    if text is None:
        return
    change = _change(StructType.fromJson(json.loads(text)), declared, name)
    if change is not None:
        raise UsageError(f"{change}: {_CURE} {name}")


def _change(old: DataType, new: DataType, path: str) -> str | None:
    """The first column that could not be read as it was written; None if all can."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        for field in old.fields:
            if field.name not in new.names:
                return f"the column {path}.{field.name} is gone"
            if change := _change(field.dataType, new[field.name].dataType, f"{path}.{field.name}"):
                return change
        return None
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _change(old.elementType, new.elementType, f"{path}[]")
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _change(old.valueType, new.valueType, f"{path}[]")
    if type(old) is type(new) and old.simpleString() == new.simpleString():
        return None
    return f"the column {path} was {old.simpleString()} and would be {new.simpleString()}"


def _quoted(path: Path) -> str:
    """As a text of SQL. Spark takes locations as they are written, not as URIs."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"file:{text}"
