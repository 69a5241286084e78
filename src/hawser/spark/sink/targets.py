"""Where rows go: the topics or the queue that were named, and the partition of each row.

A row with a partition goes there, one with a key where everybody's messages of that key go. The others of a
task go to one partition after the other, a batch each.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import numpy
from xxhash import xxh3_64_intdigest

from hawser.cluster import wire
from hawser.cluster.client.branching import Operation
from hawser.cluster.client.producers import compression_of
from hawser.errors import UsageError
from hawser.log.entry import Kind
from hawser.record.batch import Compression
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import Rows, rows_of
from hawser.spark.source.connection import Connection
from hawser.spark.source.values import check_fingerprint

__all__ = ["Targets"]


class _Target:
    """A topic or a queue."""

    def __init__(self, name: str, entry: wire.TopicEntry) -> None:
        self._name = name
        self._shards = wire.shards_of(name, entry)
        self._is_queue = entry.kind == "queue"
        self._compression = Compression.NONE if self._is_queue else compression_of(name, entry)
        self._turn = secrets.randbelow(len(self._shards))

    def operations(self, rows: Rows, partitions: Any) -> Iterator[Operation]:
        """What stages these rows; `partitions` is -1 where a row names none, or None if none does."""
        kind = Kind.QUEUE_PUT if self._is_queue else Kind.BATCH
        for partition, part in self._split(rows, partitions):
            for payload in part.payloads(self._compression):
                yield Operation(self._name, self._shards[partition], kind, payload)

    def _split(self, rows: Rows, partitions: Any) -> Iterator[tuple[int, Rows]]:
        count = len(self._shards)
        self._turn = (self._turn + 1) % count
        if partitions is None:
            if count == 1 or rows.keys is None:
                yield self._turn, rows
                return
            partitions = numpy.full(len(rows.values), -1)
        self._check(partitions)
        if rows.keys is not None:
            placed = [self._turn if key is None else xxh3_64_intdigest(key) % count for key in rows.keys]
            partitions = numpy.where(partitions < 0, placed, partitions)
        else:
            partitions = numpy.where(partitions < 0, self._turn, partitions)
        for partition in numpy.unique(partitions):
            yield int(partition), rows.take(numpy.flatnonzero(partitions == partition))

    def _check(self, partitions: Any) -> None:
        highest = int(partitions.max())
        if highest >= len(self._shards):
            raise UsageError(
                f"a row is for partition {highest} of topic {self._name!r}, which has {len(self._shards)}, "
                "numbered from 0; leave the column partition out to have keys decide"
            )


class Targets:
    """Those of one task, opened when the first row comes for them. Everything waits."""

    def __init__(self, cluster: Connection, options: Options) -> None:
        self._cluster = cluster
        self._options = options
        self._targets: dict[str, _Target] = {}

    def operations(self, batch: Any) -> Iterator[Operation]:
        """What stages the rows of a pyarrow.RecordBatch."""
        rows = rows_of(batch, self._options)
        partitions = _partitions(batch)
        only = self._options.queue or self._options.topic
        if only is not None:
            yield from self._target(only).operations(rows, partitions)
            return
        column = batch.column("topic")
        if column.null_count:
            raise UsageError("a row has no topic; give every row one, or name one with option topic")
        names = numpy.array(column.to_pylist(), object)
        for name in sorted(set(names)):
            places = numpy.flatnonzero(names == name)
            part = None if partitions is None else partitions[places]
            yield from self._target(name).operations(rows.take(places), part)

    def _target(self, name: str) -> _Target:
        found = self._targets.get(name)
        if found is None:
            kind: wire.TopicKind = "topic" if self._options.queue is None else "queue"
            entry = self._cluster.open(name, kind)
            if self._options.is_typed:
                check_fingerprint(name, entry.settings.get("schema"), self._options.value_format)
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
