"""The offsets of a topic that a table has: exact, and read from little more than the footers of its files.

A task writes one range of one partition, so the bounds and the row count in the footer of nearly every file
say which offsets it has. The offsets of other files are read.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hawser.errors import NotFound, UsageError
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.ranges import Range, doubled, holes

__all__ = ["Coverage", "Range", "coverage"]


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a partition in a table. `missing` are the ranges between the first and the last that it
    does not have, `doubled` those it has more than once. A topic that was deleted and created anew has
    another uuid, and offsets of its own."""

    topic: str
    topic_uuid: str
    partition: int
    records: int
    first: int
    last: int
    missing: list[Range]
    doubled: list[Range]

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.doubled


class _Source(NamedTuple):
    """The partition of the offsets; the fields are columns."""

    topic: str
    topic_uuid: str
    partition: int


def coverage(directory: Path, table: str) -> list[Coverage]:
    """The coverage of each partition that has rows in the table. The table has the columns topic, topic_uuid,
    partition and offset."""
    found: dict[_Source, list[Range]] = {}
    try:
        files = tables.files(directory, table)
    except NotFound:
        files = []
    for file in files:
        for source, span in _spans(file.path):
            found.setdefault(source, []).append(span)
    return [_coverage(source, spans) for source, spans in sorted(found.items())]


def _spans(path: Path) -> Iterator[tuple[_Source, Range]]:
    content = tables.content(path)
    if content.rows == 0:
        return
    bounds = [content.bounds.get(name) for name in (*_Source._fields, "offset")]
    if all(bounds):
        *places, (first, last) = bounds  # type: ignore[misc]
        one_place = all(least == greatest for least, greatest in places)  # type: ignore[misc]
        # As many rows as offsets from the first to the last: a range, unless one is missing and one double.
        # A task writes what it reads in order, so that cannot be within a file.
        if one_place and last - first + 1 == content.rows:
            yield _Source(*(least for least, _ in places)), Range(first, last)  # type: ignore[misc]
            return
    yield from _spans_by_reading(path)


def _spans_by_reading(path: Path) -> Iterator[tuple[_Source, Range]]:
    import pyarrow.parquet

    names = [*_Source._fields, "offset"]
    if absent := set(names) - set(pyarrow.parquet.read_schema(path).names):
        raise UsageError(
            f"{path} has no column {', '.join(sorted(absent))}: an earlier version landed it. Take another "
            "directory, or make the table anew with --full-refresh raw --force, which deletes what the "
            "topics no longer have"
        )
    rows = pyarrow.parquet.read_table(path, columns=names)
    for *place, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield _Source(*place), Range(offset, offset)


def _coverage(source: _Source, spans: Iterable[Range]) -> Coverage:
    ordered = sorted(spans)
    first = ordered[0].first
    return Coverage(
        topic=source.topic,
        topic_uuid=source.topic_uuid,
        partition=source.partition,
        records=sum(span.size for span in ordered),
        first=first,
        last=max(span.last for span in ordered),
        missing=holes(ordered, first),
        doubled=doubled(ordered),
    )
