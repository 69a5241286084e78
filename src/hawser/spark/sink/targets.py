"""The targets of rows: the topics or the queue, and the partition of each row.

A row with a partition goes there; a row with a key goes where all messages of that key go. The other rows of
a task go to one partition after the other, a batch each.

A small entry of a log costs about as much as a large one. So rows for several partitions wait, and are
divided when there are enough for large batches, or when too many wait in all.
"""

import secrets
from collections.abc import Iterator
from typing import Any, Final

import numpy
import pyarrow
from xxhash import xxh3_64_intdigest

from hawser.cluster import wire
from hawser.cluster.client.publish.partitioner import compression_of
from hawser.cluster.client.transaction.application_batch import Operation
from hawser.errors import UsageError
from hawser.log.entry import Kind
from hawser.record.batch import Compression
from hawser.spark.connection import Connection, connection
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import payloads, rows_of
from hawser.spark.values import check_fingerprint

__all__ = ["Targets", "check_target"]

# The bytes that wait for each partition before rows are divided, and the most partitions that count.
_BYTES_EACH: Final = 1 << 20
_MOST_TIMES: Final = 8
# The bytes that wait in all, for any number of topics.
_MOST_BYTES: Final = 32 << 20


class _Target:
    """A topic or a queue, and the rows that wait for it."""

    def __init__(self, name: str, entry: wire.TopicEntry) -> None:
        self.uuid = entry.uuid
        self._name = name
        self._shards = wire.shards_of(name, entry)
        self._is_queue = entry.kind == "queue"
        self._has_schema = entry.settings.get("schema") is not None
        self._compression = Compression.NONE if self._is_queue else compression_of(name, entry)
        self._turn = secrets.randbelow(len(self._shards))
        # Rows, with the partition of each.
        self._waiting: list[tuple[Any, Any]] = []
        self.waiting_bytes = 0

    def check_values(self, values: Any) -> None:
        """UsageError unless readers in Python can read them: by a schema they decode each value."""
        if self._has_schema and values.null_count:
            kind = "queue" if self._is_queue else "topic"
            raise UsageError(
                f"a row for {kind} {self._name!r} has null in the column value, and the {kind} was made with "
                "a schema, which has no null; leave such rows out with where('value IS NOT NULL'), or write "
                f"to a {kind} without a schema"
            )

    def operations(self, rows: Any, partitions: Any) -> Iterator[Operation]:
        """The batches to stage now; `partitions` is -1 where a row names none, or None if none does."""
        self._turn = (self._turn + 1) % len(self._shards)
        keys = rows.column("key")
        # Later rows must not overtake waiting ones.
        is_whole = partitions is None and (len(self._shards) == 1 or keys.null_count == len(keys))
        if is_whole and not self._waiting:
            yield from self._batches(self._turn, rows)
            return
        placed = self._placed(keys)
        if partitions is not None:
            self._check(partitions)
            placed = numpy.where(partitions < 0, placed, partitions)
        self._waiting.append((rows, placed))
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= _BYTES_EACH * min(len(self._shards), _MOST_TIMES):
            yield from self.rest()

    def rest(self) -> Iterator[Operation]:
        """The batches of all waiting rows."""
        if not self._waiting:
            return
        parts, partitions = zip(*self._waiting, strict=True)
        self._waiting.clear()
        self.waiting_bytes = 0
        placed = numpy.concatenate(partitions)
        order = numpy.argsort(placed, kind="stable")
        found, firsts = numpy.unique(placed[order], return_index=True)
        (rows,) = pyarrow.Table.from_batches(parts).combine_chunks().to_batches()
        rows = rows.take(pyarrow.array(order))
        for partition, first, end in zip(found, firsts, [*firsts[1:], len(order)], strict=True):
            yield from self._batches(int(partition), rows.slice(first, end - first))

    def _batches(self, partition: int, rows: Any) -> Iterator[Operation]:
        kind = Kind.QUEUE_PUT if self._is_queue else Kind.BATCH
        for payload in payloads(rows, self._compression):
            yield Operation(self._name, self._shards[partition], kind, payload)

    def _placed(self, keys: Any) -> Any:
        """The partition of each key, and this turn's where there is none."""
        placed = numpy.full(len(keys), self._turn)
        hashes = map(xxh3_64_intdigest, keys.drop_null().to_pylist())
        numbers = numpy.fromiter(hashes, numpy.uint64, len(keys) - keys.null_count)
        placed[keys.is_valid().to_numpy(zero_copy_only=False)] = numbers % len(self._shards)
        return placed

    def _check(self, partitions: Any) -> None:
        highest = int(partitions.max())
        if highest >= len(self._shards):
            raise UsageError(
                f"a row is for partition {highest} of topic {self._name!r}, which has {len(self._shards)}, "
                "numbered from 0; leave the column partition out to have keys decide"
            )


# Targets that were checked. Spark makes a writer for each micro-batch, and another one for its end.
_checked: set[tuple[str, str, str]] = set()


def check_target(options: Options) -> None:
    """Raise at the driver what tasks would: the topic or queue does not exist, or has values of another
    format. Each target is checked once in a process."""
    name = options.queue or options.topic
    if name is None:
        return
    wanted = (options.endpoints, name, options.value_format)
    if wanted not in _checked:
        _opened(connection(options.endpoints), name, options)
        _checked.add(wanted)


def _opened(cluster: Connection, name: str, options: Options) -> wire.TopicEntry:
    """NotFound or UsageError unless rows can be written there."""
    kind: wire.TopicKind = "topic" if options.queue is None else "queue"
    entry = cluster.open(name, kind)
    if options.is_typed:
        check_fingerprint(name, entry.settings.get("schema"), options.value_format)
    return entry


class Targets:
    """The targets of one task, opened when first needed. All methods block."""

    def __init__(self, cluster: Connection, options: Options) -> None:
        self._cluster = cluster
        self._options = options
        self._only = options.queue or options.topic
        self._targets: dict[str, _Target] = {}

    def application(self, name: str) -> tuple[bytes, str]:
        """The application that counts the batches of `name` for these targets, and its title. Batches for
        another topic or queue count separately, even if it has the name of a deleted one. Rows that name
        their topics share one target."""
        target = self._only
        if target is None:
            return f"{name}@".encode(), f"{name!r} for topics that rows name"
        kind = "topic" if self._options.queue is None else "queue"
        return f"{name}@{self._target(target).uuid}".encode(), f"{name!r} for {kind} {target!r}"

    def operations(self, batch: Any) -> Iterator[Operation]:
        """The batches to stage after these rows, a pyarrow.RecordBatch."""
        rows = rows_of(batch, self._options)
        partitions = _partitions(batch)
        values = batch.column("value")
        if self._only is not None:
            target = self._target(self._only)
            target.check_values(values)
            yield from target.operations(rows, partitions)
            return
        column = batch.column("topic")
        if column.null_count:
            raise UsageError("a row has no topic; give every row one, or name one with option topic")
        names = numpy.array(column.to_pylist(), object)
        for name in sorted(set(names)):
            places = numpy.flatnonzero(names == name)
            part = None if partitions is None else partitions[places]
            target = self._target(name)
            if values.null_count:
                target.check_values(values.take(pyarrow.array(places)))
            yield from target.operations(rows.take(pyarrow.array(places)), part)
        if sum(target.waiting_bytes for target in self._targets.values()) >= _MOST_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Operation]:
        """The batches to stage after the last row."""
        for target in self._targets.values():
            yield from target.rest()

    def _target(self, name: str) -> _Target:
        found = self._targets.get(name)
        if found is None:
            entry = _opened(self._cluster, name, self._options)
            found = self._targets[name] = _Target(name, entry)
        return found


def _partitions(batch: Any) -> Any:
    """Those that the rows name, as numbers; -1 for a row that names none."""
    if "partition" not in batch.schema.names:
        return None
    column = batch.column("partition")
    if column.null_count == len(column):
        return None
    partitions = column.fill_null(-1).to_numpy(zero_copy_only=False)
    if partitions.min() < 0 and (column.fill_null(0).to_numpy(zero_copy_only=False) < 0).any():
        raise UsageError("a row is for a partition below 0; they are numbered from 0, and null is none")
    return partitions
