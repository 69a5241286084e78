"""What a task does, and what the driver decides.

Who a query is says its checkpoint: tasks read it, with the batch and the run, from the properties of their
job, and tell it the driver with what they have prepared. So the decision names the query that the rows were
written by, whatever the driver believes.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hawser.cluster.client.branching import ApplicationBatch, BatchBranch, decide_batch, drop_branches
from hawser.errors import HawserError, UsageError
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import check_columns
from hawser.spark.sink.targets import Targets
from hawser.spark.source.connection import connection
from hawser.spark.source.workers import set_imports_aside

__all__ = ["BatchWriter", "StreamWriter"]

_log = logging.getLogger("hawser.spark.sink")

# As Spark names them for the tasks of a stream.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What an attempt has prepared: a branch of this batch, or nothing if it had no rows or came too late."""

    batch: ApplicationBatch
    branch: bytes | None


class _Writing:
    """What both kinds of writers do."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def _write(self, batch: ApplicationBatch, parts: Iterator[Any]) -> Written:
        """In a task: stage the rows and have them prepared."""
        options = self._options
        cluster = connection(options.endpoints)
        branch = BatchBranch(cluster.router, cluster.homes, batch, _attempt(batch))
        targets = Targets(cluster, options)
        try:
            for part in parts:
                if part.num_rows:
                    cluster.call(branch.stage(list(targets.operations(part))))
            is_prepared = not branch.is_empty and cluster.call(branch.prepare(options.orphan_seconds))
        except BaseException:
            cluster.begin(branch.withdraw())
            raise
        set_imports_aside()
        return Written(batch, branch.name if is_prepared else None)

    def _decide(self, batch: ApplicationBatch, messages: Sequence[Any]) -> None:
        cluster = connection(self._options.endpoints)
        cluster.call(decide_batch(cluster.router, cluster.homes, batch, _branches(messages)))
        set_imports_aside()

    def _drop(self, messages: Sequence[Any]) -> None:
        """Best effort: what is left of them is dropped by the next decision, or in its time."""
        batches = {message.batch for message in messages if message is not None}
        for batch in batches:
            branches = _branches([each for each in messages if each is not None and each.batch == batch])
            try:
                cluster = connection(self._options.endpoints)
                cluster.call(drop_branches(cluster.router, cluster.homes, batch, branches))
            except HawserError as error:
                _log.warning("what was written of %s is not dropped yet: %s", batch.text, error)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Made anew for each micro-batch, and again for its end."""

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        number = context.getLocalProperty(_BATCH) if context is not None else None
        if query is None or number is None:
            raise UsageError(
                f"this Spark does not tell its tasks the query ({_QUERY}) and the batch ({_BATCH}), so rows "
                "cannot be written exactly once; use PySpark 4.2 or newer"
            )
        application = self._options.application or query
        return self._write(ApplicationBatch(application.encode(), query.encode(), int(number)), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        batches = {message.batch for message in messages}
        assert len(batches) == 1, batches
        (batch,) = batches
        assert batch.number == batchId, (batch, batchId)
        self._decide(batch, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._drop(messages)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Planned by the driver, carried to the tasks and used again for the end. Under a name of its own it is
    written once, whatever it is called; under the user's, once for each version."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        application = options.application or f"batch:{secrets.token_hex(16)}"
        self._batch = ApplicationBatch(application.encode(), b"", options.version or 0)

    def write(self, iterator: Iterator[Any]) -> Written:
        return self._write(self._batch, iterator)

    def commit(self, messages: list[Any]) -> None:
        # Without a name of the user's nobody will ask what became of nothing.
        if _branches(messages) or self._options.application is not None:
            self._decide(self._batch, messages)

    def abort(self, messages: list[Any]) -> None:
        self._drop(messages)


def _attempt(batch: ApplicationBatch) -> bytes:
    """A name that no other attempt has, and that people can read."""
    context = TaskContext.get()
    assert context is not None
    place = f"{batch.number}.{context.partitionId()}.{context.attemptNumber()}.{context.taskAttemptId()}"
    return f"{place}.{secrets.token_hex(8)}".encode()


def _branches(messages: Sequence[Any]) -> list[bytes]:
    return [message.branch for message in messages if message is not None and message.branch is not None]
