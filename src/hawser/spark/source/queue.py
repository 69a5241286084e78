"""A query that takes messages from a queue: one claim for each micro-batch.

The offset of the query is its last claim, with the claim's messages and owner. So Spark's checkpoint says
which messages a batch has, and a repeated batch has the same ones. Spark asks for the next offset only when a
batch is done: then the claims up to that batch are committed. Spark asks for partitions after it has noted
the batch: then the query makes sure that the claim is its own. A query that was killed before that has read
nothing.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from hawser.cluster.client.queue.session import MOST_HELD
from hawser.cluster.wire import TopicEntry
from hawser.errors import Closed
from hawser.spark.connection import Connection, connection
from hawser.spark.source.claims import Claim, Claims
from hawser.spark.source.offsets import Range
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split, plan
from hawser.spark.source.schema import check_topics, table_of
from hawser.spark.source.task import read_split

__all__ = ["QueueReader"]

# Spark asks a hundred times a second whether there is something new; the leader is asked less often.
_IDLE_SECONDS: Final = 0.05


@dataclass
class Share(InputPartition):
    """What one task reads."""

    splits: list[Split]


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance lives beside the driver and claims; Spark sends another to the tasks, which reads."""

    def __init__(self, options: Options, schema: StructType) -> None:
        assert options.queue is not None and options.claim is not None
        self._options = options
        self._schema = schema
        self._queue = options.queue
        self._name = options.claim
        self._entry: TopicEntry | None = None
        self._claims: tuple[Connection, str, Claims] | None = None
        self._committed = 0
        # Whether an open claim may exist that this instance does not know.
        self._may_be_open = True
        # The claim that was made or found last.
        self._latest = Claim(0)
        self._target: int | None = None
        self._idle_until = 0.0

    # Beside the driver.

    def _opened(self) -> tuple[Connection, TopicEntry]:
        cluster = connection(self._options.endpoints)
        if self._entry is None:
            self._entry = cluster.open(self._queue, "queue")
            check_topics(self._options, {self._queue: self._entry})
        return cluster, self._entry

    def _claims_of(self, owner: str) -> Claims:
        cluster, entry = self._opened()
        if self._claims is None or self._claims[:2] != (cluster, owner):

            async def make() -> Claims:
                return Claims(cluster.router, cluster.coordinators, self._queue, entry, self._name, owner)

            self._claims = cluster, owner, cluster.call(make())
        return self._claims[2]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        _, entry = self._opened()
        return _to_json(entry, secrets.token_hex(8), Claim(0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        cluster, entry = self._opened()
        self._target = cluster.queue_end(self._queue, entry)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        cluster, entry = self._opened()
        if start["queue"] != entry.uuid:
            raise Closed(
                f"queue {self._queue!r} was deleted and made anew since this query began; begin that anew, "
                "with a new checkpoint"
            )
        claims, before = self._claims_of(start["owner"]), _claim_of(start)
        if before.number > self._committed:
            cluster.call(claims.commit(before))
            self._committed = before.number
        following = None
        if self._may_be_open:
            following = cluster.call(claims.open_claim(before.number + 1))
        # True if making a claim fails.
        self._may_be_open = True
        if following is None:
            most = min(limit.max_rows, MOST_HELD) if isinstance(limit, ReadMaxRows) else MOST_HELD
            bounds = most, self._target, self._options.orphan_seconds
            following = cluster.call(claims.make(before.number + 1, *bounds))
        self._may_be_open = False
        if following is None:
            self._idle_until = time.monotonic() + _IDLE_SECONDS
            return start
        self._latest = following
        return _to_json(entry, start["owner"], following)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        claim = _claim_of(end)
        # A claim of an earlier run may have been returned since. Claims of this run, but for the first one,
        # are its own.
        if claim.number == 1 or claim != self._latest:
            cluster, _ = self._opened()
            cluster.call(self._claims_of(end["owner"]).hold(claim))
        ranges = [Range(self._queue, end["queue"], 0, first, first + count) for first, count in claim.runs]
        splits = plan(ranges, self._options.min_partitions)
        tasks = self._options.min_partitions or 1
        return [Share(splits[turn::tasks]) for turn in range(min(tasks, len(splits)))]

    def commit(self, end: dict[str, Any]) -> None:
        """Claims are committed when Spark asks for more: this is not called for the last batch of a run."""

    def stop(self) -> None:
        """Claims stay as they are, for the next run; Spark seldom calls this."""
        if self._claims is not None:
            cluster, _, claims = self._claims
            cluster.call(claims.close())

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        table = table_of(self._options, self._schema)
        for split in partition.splits:
            yield from read_split(split, self._options, table)


def _to_json(entry: TopicEntry, owner: str, claim: Claim) -> dict[str, Any]:
    return {
        "queue": entry.uuid,
        "owner": owner,
        "claim": claim.number,
        "attempt": claim.attempt,
        "messages": [list(run) for run in claim.runs],
    }


def _claim_of(offset: dict[str, Any]) -> Claim:
    runs = tuple((first, count) for first, count in offset["messages"])
    return Claim(offset["claim"], offset["attempt"], runs)
