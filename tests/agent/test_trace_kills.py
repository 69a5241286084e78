"""The agent, the traced publisher and the leader killed -9 at random, many times: the trace in the cluster is
the ring, record for record, and what happened without a record is a position that is said to be lost."""

import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hawser
from hawser.agent.recording import TraceRecorder
from hawser.memory import Domain
from hawser.memory.trace_ring import open_ring
from hawser.record.trace import RECORD_BYTES, TraceRecord, split_trace_key, trace_records
from hawser.testing import LocalBus
from tests.agent.recorded import at_work, check_tiling, rows_of, until_recorded
from tests.agent.recording_worker import NAME, TOPIC
from tests.agent.test_recording_kills import Note, Storm, Worker
from tests.support.processes import cluster_processes

TRACE = "trace-of-the-storm"
# More than happens here, so that the ring still has everything at the end.
RING_RECORDS = 1 << 20


class AgentProcess(Worker):
    """The whole agent: it records the topic, too."""

    def __init__(self, domain: str, url: str) -> None:
        super().__init__("recording_worker")
        self._command = [sys.executable, "-m", "hawser", "agent", "--url", domain, "--name", NAME]
        self._command += ["--record", TOPIC, "--trace", TRACE, "--to", url, "--log-level", "error"]


class TracedStorm(Storm):
    """A storm over a topic that is traced."""

    def make(self, owner: hawser.Bus) -> None:
        self.topic: hawser.Topic[Any] = owner.topic(
            TOPIC, slot_size=64, history=0, depth=4000, max_publishers=32, trace="metadata"
        )

    def workers(self, role: str) -> tuple[Worker, Worker]:
        publisher, _ = super().workers("record")
        return publisher, AgentProcess(self.domain, self.cluster.url)

    def judge(self) -> dict[str, object]:
        figures = super().judge()
        ring = open_ring(Domain.of_url(self.domain))
        with at_work(TraceRecorder(self.domain, TRACE, self.cluster.url, name=NAME)) as last:
            until_recorded(last, ring.head)
        rows = rows_of(self.cluster.url, TRACE)
        records, lost = check_tiling(rows)
        assert records + lost == ring.head <= ring.records
        found = b"".join(row.record.value for row in rows)
        assert found == whole(ring)
        keys = {row.record.key for row in rows if row.record.key is not None}
        assert {split_trace_key(key)[0] for key in keys} == {TOPIC}
        published = self.check_publishes(list(trace_records(found)), lost)
        return {**figures, "trace records": records, "of publishes": published, "trace lost": lost}

    def check_publishes(self, records: list[TraceRecord], lost: int) -> int:
        """How many are traced: each once, and of those that are not no more than was lost."""
        published = Counter(each.sequence for each in records if each.what == "publish")
        assert max(published.values()) == 1
        head = self.topic.info().head
        assert published.keys() <= set(range(1, head + 1))
        assert head - len(published) <= lost
        return len(published)


def whole(ring: Any) -> bytes:
    """Every record that the ring has."""
    parts, position = list[bytes](), 0
    while position < ring.head:
        first, data = ring.read(position, 10_000)
        parts.append(data)
        position = first + len(data) // RECORD_BYTES
    return b"".join(parts)


def attack(directory: Path, seconds: float, least_deaths: int) -> dict[str, object]:
    seed = Random().randrange(1 << 32)
    with LocalBus() as local, cluster_processes(directory) as cluster:
        storm = TracedStorm(cluster, local)
        random = Random(seed)
        while storm.recorder.deaths <= least_deaths:
            storm.run(random, seconds, 0)
        return {"seed": seed, **storm.judge()}


@pytest.mark.slow
def test_the_trace_survives_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", str(RING_RECORDS))
    for name, value in attack(tmp_path, 15, 1).items():
        record_property(name, value)


@pytest.mark.soak
def test_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak_seconds: float, record_property: Note
) -> None:
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", str(1 << 23))
    for name, value in attack(tmp_path, min(soak_seconds, 120), 2).items():
        record_property(name, value)
