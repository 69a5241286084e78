"""The audit of many messages, and of twice as many: a recorded topic, its trace of publishes and takes, and
the table of its landing.

The benchmark writes all three in the formats of recorders and Spark, because only the audit is measured.
Spark and the nodes share all cores.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.agent.recording.target import Target
from hawser.bench.cluster.servers import hawser_servers, place_on_disk
from hawser.bench.plan import Plan
from hawser.bench.report import Row, at_most
from hawser.cluster.client.client import addresses_of
from hawser.record.batch import Batch
from hawser.record.record import Stamp
from hawser.record.recording import recorder_id
from hawser.record.trace import RECORD_BYTES, TraceKind, region_number, trace_key

MESSAGES: Final = 10_000_000
MOST_SECONDS: Final = 180.0
VALUE_BYTES: Final = 100
BATCH: Final = 20_000
# A minute has three million messages.
STEP_NS: Final = 20_000
TOPIC: Final = "audited"
TRACE: Final = "trace"
OWNER: Final = 1 << 16 | 1


def audit(plan: Plan) -> Iterator[Row]:
    """The time from the command to the verdict; no rows if Spark cannot run."""
    try:
        from hawser.spark.requirements import check_packages

        check_packages()
    except hawser.UsageError as error:
        plan.tell(f"audit is left out: {error}")
        return
    whole = plan.scaled(MESSAGES)
    with hawser_servers() as servers, place_on_disk() as directory:
        seconds = []
        with _Evidence(servers.url, directory / "landing") as evidence:
            for count in (whole // 2, whole):
                plan.tell(f"evidence of {count:,} messages")
                evidence.grow(count)
                plan.tell(f"audit of {count:,} messages")
                seconds.append(_audit(servers.url, evidence, directory / str(count)))
    half, full = seconds
    targets = (
        at_most(f"ten million in {MOST_SECONDS:g} s", full * MESSAGES / whole, MOST_SECONDS),
        at_most("linear: 2.2 times as long for twice as many", full / half, 2.2),
    )
    name = f"audit: {whole:,} messages, {5 * whole:,} pieces of evidence"
    yield Row(name, full * 1e9, "ns", {f"{whole // 2:,} messages": half * 1e9}, targets)


def _audit(url: str, evidence: _Evidence, directory: Path) -> float:
    command = [sys.executable, "-m", "hawser", "pipeline", "audit", "--url", url, "--dir", str(directory)]
    command += ["--topic", TOPIC, "--trace", TRACE, "--landing", str(evidence.landing), "--complete"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    told = msgspec.json.decode((directory / "audit.json").read_bytes()) if done.returncode == 0 else {}
    if told.get("messages") != evidence.count or not told["is_proven"]:
        raise RuntimeError(f"the audit of {evidence.count:,} messages failed: {done.stderr[-2000:]}")
    return seconds


class _Evidence:
    """`count` messages of one region: published and taken by one subscriber, recorded, landed."""

    def __init__(self, url: str, landing: Path) -> None:
        self.landing = landing
        self.count = 0
        self._region = str(uuid.uuid4())
        # Nodes refuse times in the future.
        self._start_ns = time.time_ns() - MESSAGES * STEP_NS
        self._files = 0
        # Random bytes, so that compression gains nothing; the same for all messages.
        self._values = random.randbytes(VALUE_BYTES * BATCH)
        self._stop = threading.Event()
        self._log = self._target(url, TOPIC, recorder_id("bench", self._region))
        self._trace = self._target(url, TRACE, recorder_id("bench", str(uuid.uuid4())))

    def _target(self, url: str, topic: str, producer: bytes) -> tuple[Target, bytes]:
        target = Target(addresses_of(url), topic, "topic", {"replication": 1}, None, producer, self._stop)
        target.producer_state()
        return target, producer

    def grow(self, count: int) -> None:
        """Write evidence up to `count` messages."""
        while self.count < count:
            self._add(min(BATCH, count - self.count))
        self._commit()

    def _add(self, count: int) -> None:
        first = self.count + 1
        times = [self._start_ns + number * STEP_NS for number in range(first, first + count)]
        values = self._values[: count * VALUE_BYTES]
        self._publish(self._log, first, times, VALUE_BYTES, values, [None] * count)
        keys = [trace_key(TOPIC, "publisher"), trace_key(TOPIC, "subscriber")] * count
        both = [time_ns for time_ns in times for _ in range(2)]
        self._publish(self._trace, 2 * first - 1, both, RECORD_BYTES, self._records(first, times), keys)
        self._land(first, times, values)
        self.count += count

    def _publish(
        self,
        target: tuple[Target, bytes],
        first: int,
        times: list[int],
        size: int,
        values: bytes,
        keys: Sequence[bytes | None],
    ) -> None:
        offsets = array("i", range(0, len(values) + 1, size)).tobytes()
        stamp = Stamp(target[1], first, 1)
        batch = Batch.of_columns(array("q", times), offsets, values, keys, (), stamp)
        landed = target[0].publish(batch, 0)
        if landed is None or not landed.is_new:
            raise RuntimeError(f"a batch from {first} on was not accepted: {landed}")

    def _records(self, first: int, times: list[int]) -> bytes:
        """A publish and a take record of each message in turn; the audit does not read their checks."""
        import numpy

        words: Any = numpy.zeros((2 * len(times), RECORD_BYTES // 8), "<u8")
        words[:, 0] = numpy.arange(2 * first - 1, 2 * first - 1 + len(words))
        words[0::2, 1] = times
        words[1::2, 1] = numpy.array(times) + 5_000 + numpy.arange(len(times)) % 997 * 100
        words[:, 2] = region_number(self._region)
        words[:, 3] = numpy.repeat(numpy.arange(first, first + len(times)), 2)
        words[:, 4] = OWNER
        words[0::2, 5] = int(TraceKind.PUBLISH)
        words[1::2, 5] = int(TraceKind.TAKE)
        words[0::2, 6] = VALUE_BYTES
        words[1::2, 6] = times
        return bytes(words.tobytes())

    def _land(self, first: int, times: list[int], values: bytes) -> None:
        import pyarrow
        import pyarrow.parquet

        count = len(times)
        place = self.landing / "tables" / "raw"
        place.mkdir(parents=True, exist_ok=True)
        stamps = pyarrow.array([time_ns // 1000 for time_ns in times], pyarrow.int64())
        stamp_type = pyarrow.timestamp("us", "UTC")
        size = VALUE_BYTES
        columns = {
            "topic": pyarrow.repeat(TOPIC, count),
            "partition": pyarrow.repeat(pyarrow.scalar(0, pyarrow.int32()), count),
            "offset": pyarrow.array(range(first, first + count), pyarrow.int64()),
            "key": pyarrow.nulls(count, pyarrow.binary()),
            "value": pyarrow.array([values[at : at + size] for at in range(0, count * size, size)]),
            "timestamp": stamps.view(stamp_type),
            "landed_at": pyarrow.repeat(pyarrow.scalar(times[-1] // 1000, stamp_type), count),
        }
        self._files += 1
        pyarrow.parquet.write_table(pyarrow.table(columns), place / f"part-{self._files}.parquet")

    def _commit(self) -> None:
        """Commit as Spark does: the list of files, and the offsets of a batch."""
        place = self.landing / "tables" / "raw"
        lists = place / "_spark_metadata"
        lists.mkdir(exist_ok=True)
        entries = [
            {"path": path.as_uri(), "size": path.stat().st_size, "isDir": False, "modificationTime": 1}
            | {"blockReplication": 1, "blockSize": 1 << 25, "action": "add"}
            for path in sorted(place.glob("*.parquet"))
        ]
        (lists / "0").write_bytes(b"\n".join([b"v1", *map(msgspec.json.encode, entries)]))
        checkpoint = self.landing / "checkpoints" / "_checkpoints" / "catalog" / "bench" / "raw" / "raw" / "0"
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        offsets = {TOPIC: {"uuid": "", "0": self.count + 1, "began": {"0": 1}}}
        lines = [b"v1", msgspec.json.encode({"batchTimestampMs": 0}), msgspec.json.encode(offsets)]
        (checkpoint / "offsets" / "0").write_bytes(b"\n".join(lines))
        (checkpoint / "commits" / "0").write_bytes(b"v1\n{}")

    def __enter__(self) -> _Evidence:
        return self

    def __exit__(self, *raised: object) -> None:
        for target, _ in (self._log, self._trace):
            target.close()
