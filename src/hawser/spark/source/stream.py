"""A streaming query: the new records of some topics, one micro-batch after the other.

One instance lives beside the driver while the query runs and gives the offsets of the next micro-batch. Spark
sends another one to the tasks. Both may be lost at any time: the whole state is in the offsets, which Spark
keeps in the checkpoint, and in the cluster.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from hawser.cluster.wire import TopicEntry
from hawser.errors import Closed, HawserError
from hawser.spark.connection import Connection, connection
from hawser.spark.source.offsets import (
    Bounded,
    Loss,
    Offsets,
    Patience,
    Range,
    advance,
    begun,
    clipped,
    ends,
    from_json,
    has_new,
    is_at,
    losses,
    ranges,
    rewound,
    to_json,
    weights,
    with_terms,
)
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split, beginning, lost, plan
from hawser.spark.source.positions import Mark
from hawser.spark.source.schema import check_topics, table_of
from hawser.spark.source.task import read_split

__all__ = ["StreamReader"]

_log = logging.getLogger("hawser.spark.source")

# Sampled sizes of a partition's records are used for this long.
_SIZE_SECONDS: Final = 10.0

# The list of topics is used for this long; their ends are asked for each time.
_KNOWN_SECONDS: Final = 1.0
# Spark asks a hundred times a second whether there is something new; leaders are asked less often.
_IDLE_SECONDS: Final = 0.05


class RecordSizes:
    """The sizes of the records of partitions, sampled now and then."""

    def __init__(self) -> None:
        self._known: dict[Range, tuple[float, int]] = {}

    def bytes_of(self, behind: Iterable[Range], cluster: Connection) -> list[int]:
        """About how many bytes each range has; 0 while that is unknown."""
        now = time.monotonic()
        known, self._known = self._known, {}
        found = []
        for each in behind:
            partition = each._replace(first=0, end=0)
            until, size = known.get(partition, (now, 0))
            if until <= now:
                until, size = now + _SIZE_SECONDS, _record_bytes(each, cluster)
            self._known[partition] = until, size
            found.append(size * each.records)
        return found


def _record_bytes(wanted: Range, cluster: Connection) -> int:
    try:
        return cluster.record_bytes([wanted])[0]
    except HawserError as error:
        _log.debug("the lag of topic %s is not known in bytes: %s", wanted.topic, error)
        return 0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._topics: dict[str, TopicEntry] = {}
        self._known_until = 0.0
        self._waited_for: set[str] = set()
        self._told: set[Loss] = set()
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._reached: Offsets = {}
        self._sizes = RecordSizes()
        self._idle_until = 0.0
        self._mark: Mark | None = None
        # Counts micro-batches. A query that starts again for each of them still reaches every turn.
        self._turn = secrets.randbelow(1 << 20)
        self._patience: Patience | None = None
        if options.min_offsets is not None:
            self._patience = Patience(options.min_offsets, options.max_delay_seconds)

    @property
    def _cluster(self) -> Connection:
        return connection(self._options.endpoints)

    # Beside the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        bounds = self._look()
        start = begun(beginning(self._options, self._cluster, self._topics, bounds))
        return to_json(with_terms(start, bounds))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._known_until = 0.0
        self._target = ends(self._look())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        offsets = from_json(start)
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        bounds = self._look(offsets)
        self._latest = ends(bounds)
        self._reached = offsets
        for loss in losses(self._asked_for(offsets), bounds):
            if self._options.fail_on_data_loss or not (loss.is_range or loss in self._told):
                lost(loss.text, self._options.fail_on_data_loss)
                self._told.add(loss)
        going_on = rewound(offsets, bounds)
        self._hold(going_on)
        if self._target is not None:
            bounds = clipped(bounds, self._target)
        elif going_on == offsets and self._waits(offsets, bounds, limit):
            self._idle_until = time.monotonic() + _IDLE_SECONDS
            return start
        following = self._advance(going_on, bounds, limit)
        if is_at(following, offsets):
            self._idle_until = time.monotonic() + _IDLE_SECONDS
            return start
        self._turn += 1
        self._reached = following
        return to_json(with_terms(following, bounds))

    def _waits(self, offsets: Offsets, bounds: dict[str, Bounded], limit: ReadLimit) -> bool:
        """Whether a micro-batch of what there is would have too few records. Trigger.Once reads all there is:
        it gives ReadAllAvailable in place of the default. A new topic or partition does not wait: its records
        count only when it is in the offsets."""
        if self._patience is None or isinstance(limit, ReadAllAvailable):
            return False
        records = sum(each.records for each in ranges(offsets, ends(bounds)))
        return self._patience.waits(records, time.monotonic(), is_due=has_new(offsets, bounds))

    def _advance(self, offsets: Offsets, bounds: dict[str, Bounded], limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return advance(offsets, bounds, limit.max_rows, {}, self._turn)
        if isinstance(limit, ReadMaxBytes):
            behind = list(ranges(offsets, ends(bounds)))
            found = weights(behind, limit.max_bytes, self._cluster.record_bytes)
            return advance(offsets, bounds, limit.max_bytes, found, self._turn)
        return advance(offsets, bounds, None, {})

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The ends of the topics, and how much of each is not in the last micro-batch."""
        report = to_json(self._latest)
        for place in report.values():
            place["lag"] = {"records": 0, "bytes": 0}
        behind = list(ranges(self._reached, self._latest))
        for each, size in zip(behind, self._sizes.bytes_of(behind, self._cluster), strict=True):
            lag = report[each.topic]["lag"]
            lag["records"] += each.records
            lag["bytes"] += size
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options, between = self._options, ranges(from_json(start), from_json(end))
        return list(plan(between, options.min_partitions, options.max_records))

    def commit(self, end: dict[str, Any]) -> None:
        if self._mark is not None:
            self._mark.move(self._living(from_json(end)))

    def stop(self) -> None:
        """Nothing to release in the cluster; Spark seldom calls this."""

    def _hold(self, offsets: Offsets) -> None:
        """Place the position before anything is read: from then on retention waits for the query."""
        if self._options.group is not None and self._mark is None:
            self._mark = Mark(self._cluster, self._options.group)
            self._mark.hold(self._living(offsets))

    def _living(self, offsets: Offsets) -> Offsets:
        """The offsets without deleted topics."""
        return {
            name: place
            for name, place in offsets.items()
            if name in self._topics and self._topics[name].uuid == place.uuid
        }

    def _asked_for(self, offsets: Offsets) -> Offsets:
        """The offsets without topics that the query leaves out: the query loses nothing if those are
        deleted."""
        return {name: place for name, place in offsets.items() if self._options.wants(name)}

    def _look(self, offsets: Offsets | None = None) -> dict[str, Bounded]:
        """The topics as they are now. If a topic that is asked for and in the offsets is absent, wait for it:
        the answering node may not know it yet. If it does not appear, do not wait again until it was seen."""
        if time.monotonic() >= self._known_until:
            self._learn()
        self._waited_for -= self._topics.keys()
        expected = {} if offsets is None else self._asked_for(offsets)
        for name in expected.keys() - self._topics.keys() - self._waited_for:
            entry = self._cluster.topic(name)
            if entry is None:
                self._waited_for.add(name)
            else:
                self._topics[name] = entry
        try:
            return self._cluster.bounds(self._topics, self._options)
        except Closed:
            # Deleted, and perhaps created anew, meanwhile.
            self._learn()
            return self._cluster.bounds(self._topics, self._options)

    def _learn(self) -> None:
        # A topic that was there and is gone is a reported loss.
        self._topics = self._cluster.topics(self._options, all_of_them=not self._topics)
        check_topics(self._options, self._topics)
        self._known_until = time.monotonic() + _KNOWN_SECONDS

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Split)
        return read_split(partition, self._options, table_of(self._options, self._schema))
