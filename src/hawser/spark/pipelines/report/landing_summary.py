"""The summary of a landing, from its tables: whether it is complete, how much landed, how late."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from hawser.errors import NotFound
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.coverage import Coverage, Range, coverage
from hawser.spark.pipelines.topics import PartitionEnds

__all__ = ["Latency", "Minute", "Partition", "Summary", "summarize"]

_TABLES: Final = ("raw", "typed", "bad", "late", "gaps", "minutes")
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
# Latency is measured on the newest records: so many are enough for percentiles.
_MOST_RECORDS: Final = 1_000_000


class Minute(msgspec.Struct, frozen=True):
    """Records of a minute in all partitions; `at` in seconds since 1970."""

    at: int
    records: int
    bytes: int


class Latency(msgspec.Struct, frozen=True):
    """From the time of a record to the end of the file it landed in, in seconds; of the newest `records`."""

    records: int
    percentiles: dict[str, float]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The landed records of a partition, and the end of the topic when the run began; `behind` is None if the
    end is not known. `is_deleted` is set if the run found another topic of this name."""

    landed: Coverage
    end: int
    behind: int | None
    is_deleted: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page. `to_come` are the records that the topics had when the run began, and the table
    has not: none, once an update has succeeded."""

    directory: str
    written: str
    seconds: float
    verdict: str
    is_whole: bool
    to_come: int
    records: int
    rows: dict[str, int]
    partitions: list[Partition]
    unread: list[PartitionEnds]
    minutes: list[Minute]
    latency: Latency | None
    gap_samples: int


def summarize(directory: Path, ends: Sequence[PartitionEnds], began: float) -> Summary:
    """The summary of a run that began at that time, when the topics had these ends."""
    known = {(each.topic_uuid, each.partition): each for each in ends}
    names = {each.topic for each in ends}
    found = [
        _from_start(each, known.get((each.topic_uuid, each.partition))) for each in coverage(directory, "raw")
    ]
    partitions = [
        _partition(each, known.get((each.topic_uuid, each.partition)), each.topic in names) for each in found
    ]
    landed = {(each.topic_uuid, each.partition) for each in found}
    unread = [each for key, each in known.items() if key not in landed and each.end > each.start]
    to_come = sum(each.behind or 0 for each in partitions) + sum(each.end - each.start for each in unread)
    return Summary(
        directory=str(directory),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - began, 1),
        verdict=_verdict(partitions, to_come),
        is_whole=all(each.is_whole for each in found),
        to_come=to_come,
        records=sum(each.records for each in found),
        rows={
            name: tables.count(directory, name) for name in _TABLES if (directory / "tables" / name).exists()
        },
        partitions=partitions,
        unread=unread,
        minutes=_minutes(directory),
        latency=_latency(directory),
        gap_samples=_gap_samples(directory),
    )


def _from_start(landed: Coverage, ends: PartitionEnds | None) -> Coverage:
    """Add what the topic still has before the first landed record, because a landing begins at the start."""
    if ends is None or ends.end == 0 or landed.first <= ends.start:
        return landed
    missing = [Range(ends.start, landed.first - 1), *landed.missing]
    return msgspec.structs.replace(landed, missing=missing)


def _partition(landed: Coverage, ends: PartitionEnds | None, is_asked_for: bool) -> Partition:
    if ends is None or ends.end == 0:
        return Partition(landed=landed, end=0, behind=None, is_deleted=ends is None and is_asked_for)
    behind = max(0, ends.end - 1 - landed.last)
    return Partition(landed=landed, end=ends.end, behind=behind, is_deleted=False)


def _verdict(partitions: Sequence[Partition], to_come: int) -> str:
    missing = sum(each.size for one in partitions for each in one.landed.missing)
    doubled = sum(each.size for one in partitions for each in one.landed.doubled)
    if missing or doubled:
        return f"{missing:,} records missing, {doubled:,} double"
    if to_come:
        return f"whole so far, {to_come:,} records to come"
    deleted = sorted({each.landed.topic for each in partitions if each.is_deleted})
    but = f"; of the deleted {', '.join(deleted)} as far as it was landed" if deleted else ""
    return f"whole: every record once{but}"


def _minutes(directory: Path) -> list[Minute]:
    rows = _read(directory, "minutes", ["minute", "records", "bytes"])
    if not rows.num_rows:
        return []
    summed = rows.group_by("minute").aggregate([("records", "sum"), ("bytes", "sum")]).sort_by("minute")
    columns = (summed.column(name).to_pylist() for name in ("minute", "records_sum", "bytes_sum"))
    return [Minute(int(at.timestamp()), records, size) for at, records, size in zip(*columns, strict=True)]


def _latency(directory: Path) -> Latency | None:
    import numpy
    import pyarrow.parquet

    found: list[Any] = []
    records = 0
    for file in sorted(_files(directory, "raw"), key=lambda each: each.written_ms, reverse=True):
        if records >= _MOST_RECORDS:
            break
        column = pyarrow.parquet.read_table(file.path, columns=["timestamp"]).column("timestamp")
        found.append(file.written_ms / 1e3 - column.cast("int64").to_numpy() / 1e6)
        records += len(column)
    if not records:
        return None
    values = numpy.percentile(numpy.concatenate(found), _PERCENTILES)
    return Latency(
        records,
        {f"{name:g}": round(float(value), 3) for name, value in zip(_PERCENTILES, values, strict=True)},
    )


def _gap_samples(directory: Path) -> int:
    """Each once, also where two gaps of a recorder name it. A gap without possible bounds is not counted. The
    copy of a gap may have no producer."""
    columns = ["producer", "first_missing", "last_missing"]
    rows = _read(directory, "gaps", columns)
    if not rows.num_rows:
        return 0
    samples = 0
    last_producer, reached = None, 0
    gaps = [
        (producer or "", first, last)
        for producer, first, last in zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
        if first is not None and last is not None and 0 < first <= last
    ]
    for producer, first, last in sorted(gaps):
        if producer != last_producer:
            last_producer, reached = producer, 0
        samples += max(0, last - max(reached, first - 1))
        reached = max(reached, last)
    return samples


def _read(directory: Path, table: str, columns: list[str]) -> Any:
    import pyarrow

    try:
        return tables.read(directory, table, columns)
    except NotFound:
        return pyarrow.table({})


def _files(directory: Path, table: str) -> list[tables.DataFile]:
    try:
        return tables.files(directory, table)
    except NotFound:
        return []
