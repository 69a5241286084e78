"""Reads the tables of a pipeline without Spark: their committed files and rows.

A streaming query writes files and then, in one rename, the list of its batch's files, `_spark_metadata/N`;
every tenth list is a `.compact` one with all files up to it. Files that no list names belong to failed
attempts and do not count. A table that is computed as a whole has no lists; it exists when `_SUCCESS` does.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from hawser.errors import Corrupt, NotFound

__all__ = ["Content", "DataFile", "content", "count", "files", "has_batches", "kind", "read"]

_LISTS: Final = "_spark_metadata"


class DataFile(NamedTuple):
    """A committed file, and the time of its writing in milliseconds since 1970."""

    path: Path
    written_ms: int


class Content(NamedTuple):
    """The footer of a file. `bounds` are the least and the greatest value of each column that
    has no nulls and whose values have an order; `spark_schema` is what Spark wrote it by."""

    rows: int
    bounds: dict[str, tuple[Any, Any]]
    spark_schema: str | None


class _Entry(msgspec.Struct):
    path: str
    modification_time: int = msgspec.field(name="modificationTime")
    action: str


def read(directory: Path, table: str, columns: Sequence[str] | None = None) -> Any:
    """The committed rows as a pyarrow.Table, in no particular order; one without columns while there are
    none. Columns by which a table is partitioned are not in it. NotFound if there is no such table."""
    import pyarrow
    import pyarrow.parquet

    found = [pyarrow.parquet.read_table(each.path, columns=columns) for each in files(directory, table)]
    return pyarrow.concat_tables(found, promote_options="permissive") if found else pyarrow.table({})


def count(directory: Path, table: str) -> int:
    """How many rows are committed; 0 if there is no such table yet, or if it is just being made anew. Cheap:
    a file is looked at once."""
    try:
        return sum(content(each.path).rows for each in files(directory, table))
    except (NotFound, FileNotFoundError):
        return 0


def kind(directory: Path, table: str) -> Literal["streamed", "computed"] | None:
    """How the table was filled: by streams, or by a query that computes it as a whole; None if it is
    empty."""
    place = directory / "tables" / table
    if (place / _LISTS).is_dir():
        return "streamed"
    return "computed" if place.is_dir() and any(place.iterdir()) else None


def has_batches(directory: Path, table: str) -> bool:
    """Whether a stream has committed a batch to the table, even one without rows."""
    lists = directory / "tables" / table / _LISTS
    return lists.is_dir() and any(each.name[0] != "." for each in lists.iterdir())


def files(directory: Path, table: str) -> list[DataFile]:
    """The committed files. NotFound if there is no such table."""
    place = directory / "tables" / table
    if not place.is_dir():
        raise NotFound(f"{directory} has no table {table!r}; `hawser pipeline run` makes it")
    if (place / _LISTS).is_dir():
        return [
            DataFile(_path_in(place, each.path), each.modification_time) for each in _listed(place / _LISTS)
        ]
    if not (place / "_SUCCESS").exists():
        return []
    # A partitioned table has directories; unfinished files are in one, too.
    found = (path for path in sorted(place.rglob("*.parquet")) if "_temporary" not in path.parts)
    return [DataFile(path, path.stat().st_mtime_ns // 1_000_000) for path in found]


@lru_cache(maxsize=65536)
def content(path: Path) -> Content:
    """The content of a committed file, which never changes."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    bounds = {}
    for place, column in enumerate(metadata.schema):
        found = [group.column(place).statistics for group in groups]
        if found and all(each is not None and each.has_min_max and each.null_count == 0 for each in found):
            bounds[column.path] = min(each.min for each in found), max(each.max for each in found)
    schema = (metadata.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    return Content(metadata.num_rows, bounds, None if schema is None else schema.decode())


def _listed(lists: Path) -> list[_Entry]:
    """The files that the lists name. A compaction may remove a list meanwhile: then reading starts again."""
    while True:
        try:
            return list(_entries(lists))
        except FileNotFoundError:
            if not lists.is_dir():
                return []


def _entries(lists: Path) -> Iterator[_Entry]:
    names = [path.name for path in lists.iterdir()]
    compacted = max((int(name.partition(".")[0]) for name in names if _is_compact(name)), default=-1)
    if compacted >= 0:
        yield from _entries_of(lists / f"{compacted}.compact")
    for batch in sorted(int(name) for name in names if name.isdecimal()):
        if batch > compacted:
            yield from _entries_of(lists / str(batch))


def _is_compact(name: str) -> bool:
    number, _, kind = name.partition(".")
    return kind == "compact" and number.isdecimal()


def _entries_of(path: Path) -> Iterator[_Entry]:
    version, *lines = path.read_bytes().splitlines()
    if version != b"v1":
        raise Corrupt(f"{path} is a list of version {version!r}; this Hawser reads v1")
    for line in lines:
        entry = msgspec.json.decode(line, type=_Entry)
        if entry.action == "add":
            yield entry


def _path_in(table: Path, uri: str) -> Path:
    """The path of a file that a list names by a URI, in which some characters are escaped. A partitioned
    table has directories, such as day=2026-01-31."""
    _, found, inner = unquote(uri).rpartition(f"/{table.parent.name}/{table.name}/")
    if not found:
        raise Corrupt(f"a list of {table} names {uri}, which is not a file of this table")
    return table / inner
