"""Records as columns, for lists of records inside a process.

A tuple for each of thousands of records costs more than writing them, because Python's garbage collector
counts and repeatedly visits tuples.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from hawser.record.batch_body import make_records
from hawser.record.record import Record

__all__ = ["Records", "Rows"]


class Rows:
    """Records as columns of values, keys, headers and timestamps of equal length, which do not change."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None],
        headers: Sequence[Mapping[str, bytes]],
        timestamps: Sequence[int],
    ) -> None:
        assert len(values) == len(keys) == len(headers) == len(timestamps)
        self.values = values
        self.keys = keys
        self.headers = headers
        self.timestamps = timestamps

    @classmethod
    def of(cls, records: "Records") -> "Rows":
        """The columns of at least one record."""
        if isinstance(records, Rows):
            return records
        columns: Any = zip(*records, strict=True)
        return cls(*columns)

    @classmethod
    def joined(cls, parts: Sequence["Records"]) -> "Records":
        """The concatenation of these records."""
        if len(parts) == 1:
            return parts[0]
        if set(map(type, parts)) != {Rows}:
            return _chained(parts)
        rows = cast("Sequence[Rows]", parts)
        return cls(
            _chained(part.values for part in rows),
            _chained(part.keys for part in rows),
            _chained(part.headers for part in rows),
            _chained(part.timestamps for part in rows),
        )

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Record]:
        return make_records(self.values, self.keys, self.headers, self.timestamps)


# Few records are faster as a sequence.
Records = Sequence[Record] | Rows


def _chained(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))
