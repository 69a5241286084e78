"""Updates of a pipeline: each lands the records since the last one, then ends.

An update may be killed at any moment. The tables have what its flows committed, and the next update does the
rest. Spark's checkpoints and the lists of committed files prevent that a row comes twice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

from hawser.errors import NotFound, UsageError
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.directory import Place
from hawser.spark.pipelines.registration import Definitions, create_database, declare, register
from hawser.spark.pipelines.tables import DataFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


from hawser import errors
from hawser.errors import HawserError, Unavailable

__all__ = ["Event", "Order", "Pipeline", "failure_of"]

_FLOW: Final = re.compile(r"Flow (?:\S+\.)?(?P<name>\w+) (?:is|has) (?P<state>[A-Z]+)\b")


class Event(NamedTuple):
    """A flow into this table has reached a state: QUEUED, RUNNING, COMPLETED, FAILED, ..."""

    table: str
    state: str


class Pipeline:
    """The pipeline of `file` in `place`, by a session of a Connect server. `conf` are settings for the file
    and for Spark, by their names."""

    def __init__(self, spark: "SparkSession", place: Place, file: Path, conf: Mapping[str, str]) -> None:
        self._spark = spark
        self._place = place
        self._file = file
        self._conf = dict(conf)
        for name, value in self._conf.items():
            spark.conf.set(name, value)

    def define(self) -> "Update":
        """The next update, not begun yet. Errors of the file are raised as they are, those of Spark as errors
        of Hawser."""
        try:
            create_database(self._spark, self._place)
            graph = create_dataflow_graph(
                self._spark,
                default_catalog=None,
                default_database=self._place.database,
                sql_conf=self._conf,
            )
            definitions = register(self._spark, graph, self._file)
        except PySparkException as error:
            raise failure_of(error, []) from error
        return Update(self._spark, self._place, graph, definitions)


class Update:
    """One update."""

    def __init__(self, spark: "SparkSession", place: Place, graph: str, definitions: Definitions) -> None:
        self._spark = spark
        self._place = place
        self._graph = graph
        self.definitions = definitions

    def forget(self, tables: Sequence[str], force: bool) -> list[str]:
        """Make these tables anew in this update, and those made from them; return all of them. UsageError
        if there is no such table, or, without `force`, if a sink would get rows again."""
        for name in tables:
            if name not in self.definitions.tables:
                raise UsageError(
                    f"there is no table {name!r}; there are {', '.join(self.definitions.tables)}"
                )
        affected = self.definitions.made_from(tables)
        sinks = [name for name in affected if name in self.definitions.sinks]
        if sinks and not force:
            raise UsageError(
                f"{', '.join(sinks)} would get every row again, made from {', '.join(tables)}: give --force "
                "if that is what you want"
            )
        gone = [name for name in affected if name not in sinks]
        self._place.forget(gone)
        for name in gone:
            self._spark.sql(f"DROP TABLE IF EXISTS {self._place.database}.`{name}`")
        return affected

    def run(self, tell: Callable[[Event], None]) -> None:
        """Returns when every flow has landed what there was when it began. HawserError if one could not; what
        the others landed stays."""
        faults: list[str] = []
        order = Order(self.definitions, self._place.directory)
        try:
            declare(self._spark, self.definitions, self._place)
            for answer in start_run(
                self._spark,
                self._graph,
                full_refresh=None,
                full_refresh_all=False,
                refresh=None,
                dry=False,
                storage=f"file:{self._place.checkpoints}",
            ):
                if "pipeline_event_result" in answer:
                    message = answer["pipeline_event_result"].event.message
                    if "FAILED" in message:
                        faults.append(message)
                    if match := _FLOW.match(message):
                        if match["state"] == "STARTING":
                            order.starts(match["name"])
                        tell(Event(self.definitions.target_of(match["name"]), match["state"]))
        except PySparkException as error:
            raise failure_of(error, faults) from error
        order.check()


class Order:
    """Whether each table was filled after those it is made from.

    The files decide, not the states of flows: Spark starts a flow once those before it are done, and may
    report that they are done later. The report of a start comes a moment after the start; rows that come in
    that moment count as found.
    """

    def __init__(self, definitions: Definitions, directory: Path) -> None:
        self._definitions = definitions
        self._directory = directory
        # By flow and table.
        self._found: dict[tuple[str, str], frozenset[DataFile]] = {}

    def starts(self, flow: str) -> None:
        """Note what the tables that this flow reads have when it starts."""
        for source in self._definitions.tables_before(flow):
            self._found[flow, source] = self._committed(source)

    def check(self) -> None:
        """UsageError if one of them got more since: what the table lacks would come with the next update, and
        it would never be up to date."""
        for (flow, source), found in self._found.items():
            if found != self._committed(source):
                table = self._definitions.target_of(flow)
                raise UsageError(
                    f"table {table} was filled before {source}, from which it is made, was done: it lacks "
                    "rows that come with the next update. Spark loses the order after withColumn; make the "
                    f"columns of {table} with select"
                )

    def _committed(self, table: str) -> frozenset[DataFile]:
        try:
            return frozenset(tables.files(self._directory, table))
        except (NotFound, FileNotFoundError):
            return frozenset()


# An error of Hawser, raised in one of Spark's Python processes, at the end of a traceback.
_OURS: Final = re.compile(r"hawser\.errors\.(?P<kind>\w+): (?P<text>[^\n]+)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+(?:Exception|Error): )?(?P<text>.+)$", re.MULTILINE)
_CLASS: Final = re.compile(r"^(?:\([\w.$]+\) )?(?:[\w.$]+(?:Exception|Error): )*")


def failure_of(error: PySparkException, faults: list[str]) -> HawserError:
    """The error to raise: Hawser's own error at the root, if there is one."""
    told = "\n".join([*faults, str(error)])
    ours = _OURS.search(told)
    if ours is not None:
        kind = getattr(errors, ours["kind"], HawserError)
        assert issubclass(kind, HawserError)
        return kind(ours["text"].strip())
    if "StatusCode.UNAVAILABLE" in told or "Connection refused" in told:
        return Unavailable("Spark is gone; run the pipeline again, and it continues where it was")
    causes = _CAUSE.findall(told)
    text = causes[-1] if causes else next(line for line in told.splitlines() if line.strip())
    return HawserError(f"Spark: {_CLASS.sub('', text.strip())}")
