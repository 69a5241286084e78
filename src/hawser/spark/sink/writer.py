"""The two phases of a written batch: tasks prepare rows, the driver decides.

The checkpoint identifies the query: tasks read the query and the batch from the properties of their job, and
report both to the driver with what they have prepared. So the decision names the query that wrote the rows.
Spark sets the same properties for a batch that is written in `foreachBatch`.
"""

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hawser.cluster.client.transaction.application_batch import (
    ApplicationBatch,
    BatchBranch,
    BatchDecision,
    Operation,
    decide_batch,
    drop_branches,
    query_batches,
)
from hawser.errors import Fenced, HawserError, OffsetOutOfRange, TransactionAborted, UsageError
from hawser.spark.connection import connection
from hawser.spark.python_workers import set_imports_aside
from hawser.spark.sink.checkpoint import source_of
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import check_columns
from hawser.spark.sink.targets import Targets
from hawser.transaction.identity import ONCE

__all__ = ["BatchWriter", "StreamWriter"]

_log = logging.getLogger("hawser.spark.sink")

# The properties of a streaming job, as Spark names them.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

# The source of a batch of foreachBatch whose version is its number there; that of a stream is a digest.
_MICRO_BATCH: Final = b"micro-batch"

# The bytes of rows that a task collects before it stages them.
_PORTION_BYTES: Final = 4 << 20


@dataclass
class Written(WriterCommitMessage):
    """The branch of this batch that an attempt has prepared; None if it had no rows. If the batch was decided
    before, the branch is not there. `is_micro_batch` says whether the number of the batch is that of the
    query's micro-batch."""

    batch: ApplicationBatch
    branch: bytes | None
    is_micro_batch: bool


class _Writing:
    """The part that batch and stream writers share."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def _targets(self) -> Targets:
        return Targets(connection(self._options.endpoints), self._options)

    def _write(self, batch: ApplicationBatch, targets: Targets, parts: Iterator[Any]) -> Written:
        """In a task: stage the rows and have them prepared, unless the batch is decided already."""
        cluster = connection(self._options.endpoints)
        branch = BatchBranch(cluster.router, cluster.coordinators, batch, _attempt(batch))
        # A batch that is written once cannot have been decided.
        asks = batch.query != ONCE
        asked = cluster.begin(query_batches(cluster.router, cluster.coordinators, batch)) if asks else None
        undecided = 0
        try:
            for part in parts:
                if not part.num_rows:
                    continue
                if asked is not None:
                    undecided, asked = cluster.result(asked).undecided, None
                if undecided <= batch.number:
                    for portion in _portions(targets.operations(part)):
                        cluster.call(branch.stage(portion))
            for portion in _portions(targets.rest()):
                cluster.call(branch.stage(portion))
            is_prepared = not branch.is_empty and cluster.call(branch.prepare(self._options.orphan_seconds))
        except BaseException:
            # Spark may end this process now, and the next attempt begins at once. Without a connection
            # nothing is staged, or it is withdrawn already.
            if cluster.is_usable:
                cluster.call(branch.withdraw())
            raise
        set_imports_aside()
        # Rows that came too late are part of the report.
        has_rows = is_prepared or not branch.is_empty or undecided > batch.number
        is_micro_batch = asks and batch.number == _micro_batch()[1]
        return Written(batch, branch.name if has_rows else None, is_micro_batch)

    def _decide(self, messages: Sequence[Any], source: bytes = b"") -> None:
        """At the driver: commit what the tasks have prepared, unless the batch is decided already. Fenced if
        that was another batch of the same number, as far as can be told."""
        batch = _only_batch(messages)
        cluster = connection(self._options.endpoints)
        router, coordinators = cluster.router, cluster.coordinators
        if not cluster.call(decide_batch(router, coordinators, batch, _branches(messages), source)):
            decided = cluster.call(query_batches(router, coordinators, batch))
            if _is_micro_batch(messages):
                _check_checkpoint(batch, decided, source)
            _log.warning(
                "%s was written before and is skipped, with all rows of this run; the next batch is %d. That "
                "is a repeat if a driver ended before Spark noted the batch, or a program wrote it again%s",
                batch.text,
                decided.undecided,
                f" (query {batch.query.decode()})" if batch.query else "",
            )
        set_imports_aside()

    def _drop(self, messages: Sequence[Any]) -> None:
        """Drop prepared branches, as far as possible; the next decision, or their time-out, drops the
        rest."""
        batches = {message.batch for message in messages if message is not None}
        for batch in batches:
            branches = _branches([each for each in messages if each is not None and each.batch == batch])
            try:
                cluster = connection(self._options.endpoints)
                cluster.call(drop_branches(cluster.router, cluster.coordinators, batch, branches))
            except HawserError as error:
                _log.warning("what was written of %s is not dropped yet: %s", batch.text, error)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Spark makes one for each micro-batch, and another one for its end."""

    def write(self, iterator: Iterator[Any]) -> Written:
        query, number = _micro_batch()
        if query is None or number is None:
            raise UsageError(
                f"this Spark does not tell its tasks the query ({_QUERY}) and the batch ({_BATCH}), so rows "
                "cannot be written exactly once; use PySpark 4.2 or newer"
            )
        targets = self._targets()
        application, title = targets.application(self._options.application or query)
        return self._write(ApplicationBatch(application, query.encode(), number, title), targets, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        assert all(message.batch.number == batchId for message in messages), (messages, batchId)
        batch, cluster = _only_batch(messages), connection(self._options.endpoints)
        _check_gap(batch, cluster.call(query_batches(cluster.router, cluster.coordinators, batch)))
        self._decide(messages, source_of(self._options.checkpoint, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._drop(messages)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Made at the driver, sent to the tasks and used again for the end. Without `txnAppId` it is written
    once, under a random name; with it, once for each version and target."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._once = ApplicationBatch(f"batch:{secrets.token_hex(16)}".encode(), ONCE, 0)

    def write(self, iterator: Iterator[Any]) -> Written:
        targets, name = self._targets(), self._options.application
        if name is None:
            return self._write(self._once, targets, iterator)
        application, title = targets.application(name)
        # The query that calls foreachBatch, if one does.
        query, _ = _micro_batch()
        batch = ApplicationBatch(application, (query or "").encode(), self._options.version or 0, title)
        return self._write(batch, targets, iterator)

    def commit(self, messages: list[Any]) -> None:
        # An empty batch without txnAppId needs no decision: no later run can ask for it.
        if _branches(messages) or self._options.application is not None:
            self._decide(messages, _MICRO_BATCH if _is_micro_batch(messages) else b"")

    def abort(self, messages: list[Any]) -> None:
        self._drop(messages)


def _micro_batch() -> tuple[str | None, int | None]:
    """The query that this task works for and the number of its micro-batch, as far as Spark tells them."""
    context = TaskContext.get()
    if context is None:
        return None, None
    number = context.getLocalProperty(_BATCH)
    return context.getLocalProperty(_QUERY), None if number is None else int(number)


def _is_micro_batch(messages: Sequence[Any]) -> bool:
    return all(message.is_micro_batch for message in messages)


def _check_checkpoint(batch: ApplicationBatch, decided: BatchDecision, source: bytes) -> None:
    """Fenced if this batch, which was decided before, is not the one that was: a query runs only its last
    micro-batch again, with the same offsets. In foreachBatch a version may be the micro-batch's number by
    chance; if the last one that was decided was so, too, this micro-batch is older than that."""
    last, why = decided.undecided - 1, ""
    if batch.number + 1 < decided.undecided and (source != _MICRO_BATCH or decided.source):
        why = f"and so were those up to {last}: the checkpoint is older than what this query wrote"
    elif len({source, decided.source} - {b"", _MICRO_BATCH}) == 2:
        why = (
            f"from other offsets of its sources: the digest of those was {decided.source.hex()}, and that of "
            f"offsets/{batch.number} in this checkpoint is {source.hex()}. So another query has a copy of "
            "this checkpoint, or it is older than what this query wrote"
        )
    if why:
        raise Fenced(
            f"{batch.text} was written before, {why}. Rows that it reads now would be taken for repeats. Go "
            "on from the newest checkpoint, or begin with a new one (and another txnAppId, if it has one)"
        )


def _check_gap(batch: ApplicationBatch, decided: BatchDecision) -> None:
    """OffsetOutOfRange if batches before this one were decided and are not any more: a stream decides each of
    its batches, empty ones, too. Its first one for a target may have any number."""
    first, last = decided.undecided, batch.number - 1
    if 0 < first <= last:
        gone = f"batch {first} is" if first == last else f"batches {first} to {last} are"
        raise OffsetOutOfRange(
            f"{batch.text} was not written: {gone} missing there, as after a restored backup. To write them "
            "again, go on from a checkpoint of the time of the backup, or begin with a new one behind the "
            f"rows of batch {first - 1}. To leave them out, give the stream another txnAppId"
        )


def _only_batch(messages: Sequence[Any]) -> ApplicationBatch:
    """The batch that all tasks have written."""
    batch, *others = {message.batch for message in messages}
    if others:
        raise TransactionAborted(
            f"{batch.text} was not written: the topic or queue was deleted and made anew meanwhile. It may "
            "be written again"
        )
    assert isinstance(batch, ApplicationBatch), batch
    return batch


def _attempt(batch: ApplicationBatch) -> bytes:
    """A readable name that no other attempt has."""
    context = TaskContext.get()
    assert context is not None
    place = f"{batch.number}.{context.partitionId()}.{context.attemptNumber()}.{context.taskAttemptId()}"
    return f"{place}.{secrets.token_hex(8)}".encode()


def _portions(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """The batches a few at a time: no more in memory than can be in flight."""
    portion: list[Operation] = []
    portion_bytes = 0
    for operation in operations:
        portion.append(operation)
        portion_bytes += len(operation.payload)
        if portion_bytes >= _PORTION_BYTES:
            yield portion
            portion, portion_bytes = [], 0
    if portion:
        yield portion


def _branches(messages: Sequence[Any]) -> list[bytes]:
    return [message.branch for message in messages if message is not None and message.branch is not None]
