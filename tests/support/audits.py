"""A small world for audits: a host with subscribers and a recorder, a log, and a table, as the rows that an
audit reads. Tests change these rows and ask what the audit says."""

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy
import pyarrow

from hawser.record.recording import recorder_id
from hawser.record.trace import TraceKind, region_number, trace_key
from hawser.spark.pipelines.auditing.collection import Asked, document_of
from hawser.spark.pipelines.auditing.document import Document
from hawser.spark.pipelines.auditing.evidence import mixed
from hawser.spark.pipelines.auditing.lines import Run
from hawser.spark.pipelines.auditing.log_evidence import landed_evidence, log_evidence
from hawser.spark.pipelines.auditing.trace_evidence import trace_evidence
from hawser.spark.pipelines.auditing.verdicts import judge
from hawser.spark.pipelines.ranges import Range

NOW_US: Final = 1_800_000_000 * 10**6
LATE_NS: Final = 600 * 10**9
_PUBLISHER: Final = 1 << 20
_STAMP: Final = pyarrow.timestamp("us", "UTC")
_EVENTS: Final = ("joined", "left", "recovered", "missed", "traced", "lost")


class Record(NamedTuple):
    """In the log. `content` stands for key, value and headers."""

    partition: int
    offset: int
    time_us: int
    size: int
    content: int
    producer: str | None = None
    number: int | None = None


class Row(NamedTuple):
    """In the table."""

    partition: int
    offset: int
    time_us: int
    size: int
    content: int
    landed_us: int


class Step(NamedTuple):
    """In the trace."""

    kind: TraceKind
    number: int
    owner: int
    time_us: int
    value: int
    who: str = ""


class World:
    """Of one topic: partition 0 is recorded from the host and has records of others in between, partition 1
    has those of others only. `trace` has None for each record that was lost."""

    def __init__(self, topic: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.topic = topic
        self.region = str(UUID(int=self.random.getrandbits(128)))
        self.recorder = recorder_id("agent", self.region).decode()
        self.ring = recorder_id("agent", str(UUID(int=self.random.getrandbits(128)))).decode()
        self.trace: list[Step | None] = []
        self.log: list[Record] = []
        self.table: list[Row] = []
        self.committed: dict[tuple[str, int], Range] = {}
        self._ends = {0: 0, 1: 0}

    def size(self) -> int:
        return self.random.choice([1, 2, self.random.randint(3, 60), self.random.randint(60, 300)])

    def fill(self, count: int, subscribers: int = 2) -> None:
        """`count` messages are published, taken, recorded and landed, and others are landed beside them."""
        step_us = self.random.choice([1000, 700_000, 9_000_000])
        times = [NOW_US + each * step_us for each in range(count)]
        sizes = [self.random.randint(0, 50) for _ in range(count)]
        self._happen(times, sizes, subscribers)
        for place in range(count):
            while self.random.random() < 0.2:
                self._append(0, times[place], 7, "somebody", None)
            self._append(0, times[place], sizes[place], self.recorder, place + 1)
        for _ in range(self.size()):
            self._append(1, NOW_US + self.random.randint(0, count) * step_us, 7, None, None)
        self.land()

    def append(self, partition: int, count: int) -> None:
        """Records that are nobody's."""
        for _ in range(count):
            self._append(partition, NOW_US, 7, None, None)

    def _append(
        self, partition: int, time_us: int, size: int, producer: str | None, number: int | None
    ) -> None:
        self._ends[partition] += 1
        content = self.random.getrandbits(63)
        self.log.append(Record(partition, self._ends[partition], time_us, size, content, producer, number))

    def record(self, number: int) -> None:
        """The recorder writes this message once more."""
        known = next(each for each in self.log if each.number == number and each.producer == self.recorder)
        self._append(0, known.time_us, known.size, self.recorder, number)

    def _happen(self, times: Sequence[int], sizes: Sequence[int], subscribers: int) -> None:
        """Subscribers join at any time and leave at any time, or stay; they take all in between."""
        count = len(times)
        joins = [self.random.randint(0, count) if each else 0 for each in range(subscribers)]
        ends = [self.random.choice([count, self.random.randint(join, count)]) for join in joins]
        taken = list(joins)
        for number in range(count + 1):
            if number:
                self.trace.append(
                    Step(TraceKind.PUBLISH, number, _PUBLISHER, times[number - 1], sizes[number - 1])
                )
            for each in range(subscribers):
                if number == joins[each]:
                    self.trace.append(self._member(TraceKind.SUBSCRIBE, number, each))
                while taken[each] < min(ends[each], number) and (
                    number == count or self.random.random() < 0.5
                ):
                    taken[each] += 1
                    self.trace.append(self._take(taken[each], each, times[taken[each] - 1]))
        for each in range(subscribers):
            if self.random.random() < 0.5 or ends[each] < count:
                self.trace.append(self._member(TraceKind.UNSUBSCRIBE, ends[each], each))

    def _take(self, number: int, each: int, time_us: int) -> Step:
        return Step(TraceKind.TAKE, number, 8 + each, time_us, time_us * 1000, f"view-{each}")

    def _member(self, kind: TraceKind, number: int, each: int) -> Step:
        return Step(kind, number, 8 + each, NOW_US, 2, f"view-{each}")

    def land(self) -> None:
        """From some offset of each partition to some other one."""
        for partition in (0, 1):
            records = [each for each in self.log if each.partition == partition]
            if not records:
                continue
            first = self.random.choice([1, self.random.randint(1, len(records))])
            last = self.random.choice([len(records), self.random.randint(first, len(records))])
            self.committed[self.topic, partition] = Range(first, last)
            self.table += [Row(*each[:5], each.time_us + 5) for each in records[first - 1 : last]]

    def trim(self, partition: int, last: int) -> None:
        """The log up to this offset is gone."""
        self.log = [each for each in self.log if each.partition != partition or each.offset > last]

    # What an audit reads.

    def evidence(self) -> list[dict[str, Any]]:
        """The rows of evidence, from batches that are cut anywhere."""
        found: list[dict[str, Any]] = []
        for partition in (0, 1):
            records = [each for each in self.log if each.partition == partition]
            for some in self._cut(records):
                found += _rows(log_evidence([self._log_batch(some)]))
        for rows in self._cut(self.table):
            found += _rows(landed_evidence(LATE_NS)([self._table_batch(rows)]))
        for steps in self._cut(list(enumerate(self.trace, 1))):
            found += _rows(trace_evidence("trace", LATE_NS)([self._trace_batch(steps)]))
        return found

    def _cut(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        cuts = sorted(self.random.randint(0, len(rows)) for _ in range(self.random.randint(0, 3)))
        for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if first < end:
                yield rows[first:end]

    def _log_batch(self, records: Sequence[Record]) -> Any:
        return pyarrow.RecordBatch.from_pydict(
            {
                **self._common(records),
                "producer": pyarrow.array([each.producer for each in records], pyarrow.string()),
                "producer_sequence": pyarrow.array([each.number for each in records], pyarrow.int64()),
                "gap": pyarrow.nulls(len(records), pyarrow.binary()),
            }
        )

    def _table_batch(self, rows: Sequence[Row]) -> Any:
        return pyarrow.RecordBatch.from_pydict(
            {**self._common(rows), "landed_at": _stamps(rows, "landed_us")}
        )

    def _common(self, rows: Sequence[Any]) -> dict[str, Any]:
        offsets = numpy.array([each.offset for each in rows], "i8")
        hashes = mixed(offsets, numpy.array([each.content for each in rows], "i8"))
        return {
            "topic": [self.topic] * len(rows),
            "partition": pyarrow.array([each.partition for each in rows], pyarrow.int32()),
            "offset": pyarrow.array(offsets),
            "timestamp": _stamps(rows, "time_us"),
            "hash": pyarrow.array(hashes.view("i8")),
            "bytes": pyarrow.array([each.size for each in rows], pyarrow.int32()),
        }

    def _trace_batch(self, steps: Sequence[tuple[int, Step | None]]) -> Any:
        """Of a loss there is one record, with the number of the last one that was lost."""
        known = [each for each in steps if each[1] is not None or self._ends_a_loss(each[0])]
        region = region_number(self.region)
        values = [
            b"" if step is None else struct.pack(
                "<8Q", place, step.time_us * 1000, region, step.number, step.owner, step.kind, step.value, 0
            )
            for place, step in known
        ]  # fmt: skip
        keys = [None if step is None else trace_key(self.topic, step.who) for _, step in known]
        return pyarrow.RecordBatch.from_pydict(
            {
                "key": pyarrow.array(keys, pyarrow.binary()),
                "value": pyarrow.array(values, pyarrow.binary()),
                "producer": [self.ring] * len(known),
                "producer_sequence": pyarrow.array([place for place, _ in known], pyarrow.int64()),
            }
        )

    def _ends_a_loss(self, place: int) -> bool:
        return place == len(self.trace) or self.trace[place] is not None


def _stamps(rows: Sequence[Any], name: str) -> Any:
    return pyarrow.array([getattr(each, name) for each in rows], pyarrow.int64()).view(_STAMP)


def _rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def verdicts_of(evidence: Iterable[dict[str, Any]], committed: Any) -> list[dict[str, Any]]:
    """The rows of the table `verdicts`."""
    return [
        {**each._asdict(), "findings": [finding._asdict() for finding in each.findings]}
        for each in judge(map(Run.of, evidence), committed)
    ]


def audited(world: World) -> Document:
    """What `hawser pipeline audit` would write."""
    evidence = world.evidence()
    asked = Asked("hawser://host:1", (world.topic,), "trace", "/landing", 600.0, False, 0.0)
    events = [each for each in evidence if each["what"] in _EVENTS]
    verdicts = verdicts_of(evidence, world.committed)
    return document_of(Path("/audit"), asked, [], verdicts, events, [])
