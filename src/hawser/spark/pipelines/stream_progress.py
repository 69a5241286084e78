"""The progress of a stream, from its checkpoint: the offsets that the batches of a landing have committed,
when each batch began, and the ends that a stream of an audit reads.

A batch writes `offsets/N` before it begins and `commits/N` when its rows are in the table. Spark keeps the
last hundred of them or so.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hawser.errors import Corrupt, UsageError
from hawser.spark.pipelines.auditing.flows import Committed
from hawser.spark.pipelines.ranges import Range
from hawser.spark.source.offsets import Offsets, from_json

__all__ = ["Batch", "Progress", "progress_of", "reached_by"]


class Batch(NamedTuple):
    """A batch that has begun; `began` in seconds since 1970."""

    number: int
    began: float
    is_committed: bool


class Progress(NamedTuple):
    """`committed` ranges begin at 0 where it is not known any more where the landing began. They are of the
    topics with these `uuids`."""

    committed: Committed
    batches: list[Batch]
    uuids: dict[str, str]

    def committed_of(self, uuids: Mapping[str, str]) -> Committed:
        """The progress without topics that have another uuid now."""
        return {
            name: ranges for name, ranges in self.committed.items() if uuids.get(name) == self.uuids[name]
        }


def progress_of(landing: Path) -> Progress:
    """The progress of a landing in this directory. UsageError if it is none."""
    if not (landing / "tables" / "raw").is_dir():
        raise UsageError(f"{landing} has no table of raw records: give the --dir of `hawser pipeline run`")
    checkpoint = _checkpoint(landing, "raw")
    if checkpoint is None:
        return Progress({}, [], {})
    commits = set(_numbers(checkpoint / "commits"))
    found = {}
    for number in _numbers(checkpoint / "offsets"):
        # Spark may remove an old one just now.
        with suppress(FileNotFoundError):
            found[number] = _read(checkpoint / "offsets" / str(number))
    batches = [Batch(number, began, number in commits) for number, (began, _) in sorted(found.items())]
    done = {number: offsets for number, (_, offsets) in found.items() if number in commits}
    committed, uuids = _committed(done)
    return Progress(committed, batches, uuids)


def reached_by(directory: Path, table: str) -> Offsets:
    """The ends of the last batch that the stream into this table has begun; empty before the first one."""
    checkpoint = _checkpoint(directory, table)
    if checkpoint is None or not (batches := _numbers(checkpoint / "offsets")):
        return {}
    return _read(checkpoint / "offsets" / str(max(batches)))[1]


def _checkpoint(directory: Path, table: str) -> Path | None:
    """The checkpoint since the table was last made anew; None if there is none yet."""
    runs = directory.glob(f"checkpoints/_checkpoints/*/*/{table}/{table}/*")
    return max(runs, key=lambda path: int(path.name), default=None)


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]


def _read(path: Path) -> tuple[float, Offsets]:
    try:
        _, settings, offsets = path.read_bytes().splitlines()
        began: dict[str, Any] = msgspec.json.decode(settings)
        return began["batchTimestampMs"] / 1e3, from_json(msgspec.json.decode(offsets))
    except (ValueError, KeyError, UsageError) as error:
        raise Corrupt(f"{path} is no batch of a query that reads topics: {error}") from error


def _committed(batches: dict[int, Offsets]) -> tuple[Committed, dict[str, str]]:
    """The committed offsets of each topic, and its uuid; the last one of topics of one name."""
    found: Committed = {}
    uuids: dict[str, str] = {}
    for number, offsets in sorted(batches.items()):
        is_oldest = number == min(batches)
        for topic, place in offsets.items():
            if uuids.get(topic) != place.uuid:
                uuids[topic], found[topic] = place.uuid, {}
            ranges = found[topic]
            for partition, end in place.partitions.items():
                if partition in ranges:
                    first = ranges[partition].first
                elif is_oldest:
                    first = (place.began or {}).get(partition, 0)
                else:
                    # A topic that joins records its start, and the next batch reads it.
                    first = end
                ranges[partition] = Range(first, end - 1)
    return found, uuids
