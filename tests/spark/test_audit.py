"""Audits of a real host, cluster and landing: complete if all is there, exact if not, the same if killed."""

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hawser.record.record import Record
from hawser.record.trace import TraceKind, trace_records
from hawser.spark.pipelines.auditing.document import Document, Problem
from hawser.spark.pipelines.auditing.scope import Scope, widened
from hawser.spark.pipelines.server import server
from hawser.spark.pipelines.stream_progress import reached_by
from hawser.spark.source.offsets import Place, to_json
from hawser.testing import LocalBus
from tests.agent.recorded import Row, rows_of
from tests.agent.support import Agent
from tests.spark.auditing import LIMIT_SECONDS, Audit, doctored, gap, publish_stamped
from tests.spark.landing import Landing
from tests.spark.test_landing_kills import _java_of, _lives
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.source import wait_for
from tests.support.spark import SMALL, need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FRAMES = 300
ORDERS = 1000
PARTITIONS = 5
SUBSCRIBERS = ("dropped", "doubled", "both", "swapped", "late", "lost")
JOBS, DONE = 20, 15
HOUR_NS = 3600 * 10**9
TOPICS = ("--topic", "orders", "--topic", "camera")


class Scene:
    """A host that publishes, and is recorded and traced into a cluster, and a landing of that."""

    def __init__(self, directory: Path, cluster: RunningCluster, remote: str) -> None:
        self.directory, self.url, self.remote = directory, cluster.url, remote
        self.bus = cluster.connect("tests")
        for name in ("camera", "trace", "other-camera", "other-trace"):
            self.bus.topic(name, replication=1)
        self.orders = self.bus.topic("orders", partitions=PARTITIONS, replication=1)
        words = [b"%d" % number for number in range(ORDERS)]
        self.orders.publish_many(words, keys=words)
        with LocalBus() as local:
            self._play(local)
        self.landing = Landing(directory / "landing", cluster.url, remote)
        self.landing.run("--topic", "orders", "--topic", "camera")

    def publish_more(self, count: int) -> None:
        """Into partition 0."""
        rows = self.landing.rows("raw", "topic", "partition", "key")
        key = next(row["key"] for row in rows if (row["topic"], row["partition"]) == ("orders", 0))
        self.orders.publish_many([b"more"] * count, keys=[key] * count)

    def _play(self, local: LocalBus) -> None:
        frames = local.connect("publisher").topic("camera", trace="metadata", history=FRAMES)
        topics = [local.connect(name).topic("camera", create=False) for name in SUBSCRIBERS]
        subscriptions = [topic.subscribe() for topic in topics]
        jobs = local.connect("worker").queue("jobs", trace="metadata")
        traces = ["--record", "camera", "--trace", "trace", "--to", self.url]
        with Agent(local, self.directory, *traces) as agent:
            for number in range(FRAMES):
                frames.publish(b"frame %d" % number)
            # The recorder is there: it will not get the place, and with it the name, of one who leaves.
            until(lambda: len(rows_of(self.url, "camera")) == FRAMES, "the recording", agent.figures)
            for subscription in subscriptions:
                for _ in range(FRAMES):
                    assert subscription.take(timeout=60) is not None
                subscription.close()
            for number in range(JOBS):
                jobs.put(b"%d" % number)
            for _ in range(DONE):
                job = jobs.get(timeout=60)
                assert job is not None
                job.accept()
            # Everything up to here, of the last thing that happened on.
            until(lambda: _accepted(self.url) == DONE, "the trace", agent.figures)
            assert agent.stop() == 0

    def audit(self, name: str, *arguments: str, is_remote: bool = True) -> Audit:
        return Audit(self.directory / name, self.url, self.remote if is_remote else None, *arguments)


def _accepted(url: str) -> int:
    values = b"".join(row.record.value for row in rows_of(url, "trace"))
    return sum(record.kind == TraceKind.ACCEPT for record in trace_records(values))


@pytest.fixture(scope="module")
def scene(module_path: Path) -> Iterator[Scene]:
    need_java()
    with (
        RunningCluster(module_path / "cluster", nodes=1) as cluster,
        server("local[2]", module_path, module_path / "spark.log", SMALL) as running,
    ):
        yield Scene(module_path, cluster, running.url)


def _told(document: Document) -> dict[str, Any]:
    """All that does not depend on when and where it was made."""
    told = msgspec.to_builtins(document)
    assert isinstance(told, dict)
    return {name: told[name] for name in told if name not in ("written", "seconds", "directory")}


def test_killed_and_run_again_it_says_the_same(scene: Scene, record_property: Any) -> None:
    """Also if it was asked about other topics on the way."""
    rest = ("--trace", "trace", "--landing", str(scene.landing.directory))
    small = ("--conf", "spark.hawser.batch.records=200")
    killed = scene.audit("killed", "--topic", "orders", *rest, *small, is_remote=False)
    with subprocess.Popen(killed.command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: killed.rows("log_runs") + killed.rows("trace_runs"), "evidence", LIMIT_SECONDS)
        java = _java_of(process.pid)
        assert java is not None
        process.kill()
        wait_for(lambda: not _lives(java), "the end of Spark")
    assert not (killed.directory / "audit.json").exists()
    scene.publish_more(10)
    other = scene.audit("killed", "--topic", "camera", *rest, *small).run()
    assert {line.topic for line in other.lines} == {"camera", "jobs"}
    again = scene.audit("killed", *TOPICS, *rest, *small).run()
    fresh = scene.audit("fresh", *TOPICS, *rest).run()
    assert _told(again) == _told(fresh)
    reached = reached_by(killed.directory, "log_runs")
    assert {topic: sum(place.partitions.values()) for topic, place in reached.items()} == {
        "orders": ORDERS + 10 + PARTITIONS,
        "camera": FRAMES + 1,
    }
    record_property("rows", {name: killed.rows(name) for name in ("log_runs", "trace_runs", "landed_runs")})

    assert fresh.is_whole and fresh.lost == 0, fresh.verdict
    totals = {total.tier: (total.expected, total.found, total.words) for total in fresh.tiers}
    takes = FRAMES * (len(SUBSCRIBERS) + 1)
    logged = ORDERS + 10 + FRAMES
    assert totals == {
        "published": (FRAMES + JOBS, FRAMES + JOBS, {}),
        "delivered": (takes + JOBS, takes + DONE, {"pending": JOBS - DONE}),
        "recorded": (FRAMES, FRAMES, {}),
        "replicated": (logged, logged, {}),
        "in Spark": (logged, logged - 10, {"pending": 10}),
        "landed": (logged, logged - 10, {"pending": 10}),
    }
    compared = sum(line.compared for line in fresh.lines if line.topic == "camera")
    assert compared == FRAMES * (len(SUBSCRIBERS) + 3), "by each subscriber, the recorder twice, the landing"
    assert {(each.kind, each.who) for each in fresh.events} >= {("joined", "late"), ("left", "late")}
    assert {(each.hop, each.who, each.messages) for each in fresh.latencies} >= {
        ("taken", "late", FRAMES), ("claimed", "", DONE), ("landed", "", FRAMES), ("landed", "", ORDERS),
    }  # fmt: skip
    assert fresh.verdict in (scene.directory / "fresh" / "audit.html").read_text()


# What an audit must name exactly: evidence of a real run, tampered with.


def _tampered_trace(rows: list[Row]) -> list[tuple[int, list[Record]]]:
    """One subscriber each lacks a take, has one twice, both, two in the wrong order, one late, and one that
    the trace has lost."""
    takes: dict[str, list[Record]] = {name: [] for name in SUBSCRIBERS}
    others = []
    for row in rows:
        who = (row.record.key or b"").partition(b"\n")[2].decode()
        (found,) = trace_records(row.record.value)
        if found.kind == TraceKind.TAKE and who in takes:
            takes[who].append(row.record)
        elif found.kind != TraceKind.UNSUBSCRIBE:
            others.append(row.record)
    del takes["dropped"][50]
    takes["doubled"].insert(50, takes["doubled"][49])
    takes["both"].insert(70, takes["both"][69])
    del takes["both"][50]
    takes["swapped"][49:51] = reversed(takes["swapped"][49:51])
    late = takes["late"][49]
    (found,) = trace_records(late.value)
    later = (found.time_ns + HOUR_NS).to_bytes(8, "little")
    takes["late"][49] = late._replace(value=late.value[:8] + later + late.value[16:])
    before = [*others, *(each for name in SUBSCRIBERS[:-1] for each in takes[name]), *takes["lost"][:49]]
    after = takes["lost"][50:]
    place = len(before) + 1
    return [
        (1, [_placed(each, number) for number, each in enumerate(before, 1)]),
        gap(place, before[0].timestamp_ns),
        (place + 1, [_placed(each, number) for number, each in enumerate(after, place + 1)]),
    ]


def _placed(record: Record, place: int) -> Record:
    return record._replace(value=place.to_bytes(8, "little") + record.value[8:])


def _tampered_recording(rows: list[Row]) -> list[tuple[int, list[Record]]]:
    """Number 50 is not there, 70 is there twice."""
    records = [row.record for row in rows]
    return [(1, records[:49]), (51, records[50:70]), (70, records[69:])]


def _tampered_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the partitions of orders one each lacks a row, has one twice, both, another value, one that is
    late."""
    by_place = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
    last = max(offset for topic, partition, offset in by_place if (topic, partition) == ("orders", 4))
    more = [by_place["orders", 1, 50], by_place["orders", 2, 60]]
    del by_place["orders", 0, 50], by_place["orders", 2, 50]
    by_place["orders", 3, 50]["value"] = b"another"
    by_place["orders", 4, last]["landed_at"] += timedelta(hours=1)
    return [*by_place.values(), *more]


def test_every_tampering_is_named_exactly(scene: Scene, record_property: Any) -> None:
    url, trace, camera = scene.url, rows_of(scene.url, "trace"), rows_of(scene.url, "camera")
    publish_stamped(url, "other-trace", trace[0].producer, _tampered_trace(trace))
    publish_stamped(url, "other-camera", camera[0].producer, _tampered_recording(camera))
    landing = scene.directory / "tampered-landing"
    doctored(scene.landing.directory, landing, _tampered_table)
    topics = ("--topic", "orders", "--topic", "other-camera", "--trace", "other-trace")
    document = scene.audit("tampered", *topics, "--landing", str(landing)).run(code=7)

    def named(*words: str) -> set[tuple[Any, ...]]:
        found: list[Problem] = [each for each in document.problems if each.word in words]
        return {
            (each.word, each.topic, each.partition, each.tier, each.who, each.first, each.last)
            for each in found
        }

    (last,) = {line.last for line in document.lines if (line.topic, line.partition) == ("orders", 4)}
    assert named("late") == {
        ("late", "orders", 4, "landed", "", last, last),
        ("late", "camera", None, "delivered", "late", 50, 50),
    }
    mismatches = named("missing", "duplicate", "reordered", "damaged")
    assert mismatches == {
        ("missing", "orders", 0, "landed", "", 50, 50),
        ("duplicate", "orders", 1, "landed", "", 50, 50),
        ("missing", "orders", 2, "landed", "", 50, 50),
        ("duplicate", "orders", 2, "landed", "", 60, 60),
        ("damaged", "orders", 3, "landed", "", 50, 50),
        ("missing", "other-camera", 0, "recorded", "agent", 50, 50),
        ("duplicate", "other-camera", 0, "recorded", "agent", 70, 70),
        ("missing", "camera", None, "delivered", "dropped", 51, 51),
        ("duplicate", "camera", None, "delivered", "doubled", 50, 50),
        ("missing", "camera", None, "delivered", "both", 51, 51),
        ("duplicate", "camera", None, "delivered", "both", 70, 70),
        ("reordered", "camera", None, "delivered", "swapped", 50, 50),
    }
    # Whether the last jobs were accepted the lost record may have said.
    assert named("unwitnessed") == {
        ("unwitnessed", "camera", None, "delivered", "lost", 50, 50),
        ("unwitnessed", "jobs", None, "delivered", "", DONE + 1, JOBS),
    }
    assert not document.is_whole and document.lost == 1
    record_property("mismatches", len(mismatches))


def test_mistakes(scene: Scene, tmp_path: Path) -> None:
    def refused(*arguments: str, code: int) -> str:
        audit = scene.audit("mistaken", *arguments)
        done = subprocess.run(audit.command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stderr
        return done.stderr

    assert "--topic" in refused(code=2)
    assert "nowhere" in refused("--topic", "nowhere", code=3)
    assert "raw records" in refused("--topic", "orders", "--landing", str(tmp_path), code=2)
    scope = Scope(["orders"], "other-trace", "")
    widened(scene.directory / "mistaken", scope)
    assert "another --dir" in refused("--topic", "orders", "--trace", "trace", code=2)
    # A log that was restored as it was earlier; a checkpoint says how far the stream was.
    began = scene.directory / "mistaken" / "checkpoints/_checkpoints/catalog/db/log_runs/log_runs/0/offsets"
    began.mkdir(parents=True)
    places = to_json({"orders": Place(scene.orders.info().uuid, {0: 10**6})})
    lines = ["v1", '{"batchTimestampMs":0}', msgspec.json.encode(places).decode()]
    (began / "0").write_text("\n".join(lines))
    assert "--full-refresh log_runs" in refused("--topic", "orders", code=2)


def test_a_topic_is_created_anew(scene: Scene, tmp_path: Path) -> None:
    """The verdict is about the topic that has the name now, whatever the landing has of the deleted one."""
    landing = Landing(tmp_path / "landing", scene.url, scene.remote)
    topic = scene.bus.topic("anew", replication=1)
    topic.publish_many([b"first"] * 10)
    landing.run("--topic", "anew")
    arguments = ("--topic", "anew", "--landing", str(landing.directory))
    assert scene.audit("anew", *arguments).run().messages == 10
    topic.delete()
    scene.bus.topic("anew", replication=1).publish_many([b"second"] * 4)
    landing.run("--topic", "anew", "--force")
    refused = subprocess.run(
        (audit := scene.audit("anew", *arguments)).command,
        env=audit.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert refused.returncode == 2 and "created anew since" in refused.stderr, refused
    evidence = ("--full-refresh", "log_runs", "--full-refresh", "landed_runs")
    for name, more in ("anew", evidence), ("other", ()):
        document = scene.audit(name, *arguments, "--complete", *more).run()
        assert document.verdict.startswith("complete: 4 messages"), document.verdict
