"""Which offsets of a topic are in a table: exactly, and without reading more than the ends of its files.

A task writes one range of one partition, so nearly every file says with its bounds and its number of rows all
there is to say. Of one that does not, the offsets are read.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from hawser.errors import NotFound
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.ranges import Range, doubled, holes

__all__ = ["Coverage", "Range", "coverage"]


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What a table has of a partition. `missing` are the ranges between the first and the last that it does
    not have, `doubled` those it has more than once."""

    topic: str
    partition: int
    records: int
    first: int
    last: int
    missing: list[Range]
    doubled: list[Range]

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.doubled


def coverage(directory: Path, table: str) -> list[Coverage]:
    """Of each partition that has rows in the table, which has the columns topic, partition and offset."""
    found: dict[tuple[str, int], list[Range]] = {}
    try:
        files = tables.files(directory, table)
    except NotFound:
        files = []
    for file in files:
        for topic, partition, span in _spans(file.path):
            found.setdefault((topic, partition), []).append(span)
    return [_coverage(topic, partition, spans) for (topic, partition), spans in sorted(found.items())]


def _spans(path: Path) -> Iterator[tuple[str, int, Range]]:
    content = tables.content(path)
    if content.rows == 0:
        return
    bounds = [content.bounds.get(name) for name in ("topic", "partition", "offset")]
    if all(bounds):
        (topic, last_topic), (partition, last_partition), (first, last) = bounds  # type: ignore[misc]
        one_place = topic == last_topic and partition == last_partition
        # As many rows as offsets from the first to the last: a range, unless one is missing and one double.
        # A task writes what it reads in order, so that cannot be within a file.
        if one_place and last - first + 1 == content.rows:
            yield topic, partition, Range(first, last)
            return
    yield from _spans_by_reading(path)


def _spans_by_reading(path: Path) -> Iterator[tuple[str, int, Range]]:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path, columns=["topic", "partition", "offset"])
    for topic, partition, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield topic, partition, Range(offset, offset)


def _coverage(topic: str, partition: int, spans: Iterable[Range]) -> Coverage:
    ordered = sorted(spans)
    first = ordered[0].first
    return Coverage(
        topic=topic,
        partition=partition,
        records=sum(span.size for span in ordered),
        first=first,
        last=max(span.last for span in ordered),
        missing=holes(ordered, first),
        doubled=doubled(ordered),
    )
