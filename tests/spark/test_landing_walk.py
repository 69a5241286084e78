"""A landing between whose runs everything changes. After every run its rows, its verdict and its exit code
are compared with the logs.

A run may be refused, and then changes nothing. One that ends with 0 has every record that the topics have,
once; one that ends with 7 lacks some, or has some twice, and its report says which. No run removes a row,
except `--full-refresh raw --force`.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

import hawser
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.server import server
from tests.spark.landing import LIMIT_SECONDS, Landing
from tests.support.cluster import RunningCluster
from tests.support.source import trim
from tests.support.spark import SMALL, need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MADE_FROM_RAW: Final = ("late", "gaps", "minutes")
TYPED: Final = ("typed", "bad")
# Removes the rights of root over directories of others.
WITHOUT_RIGHTS: Final = "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown"


class Place(NamedTuple):
    """Where a record is, or was."""

    topic: str
    uuid: str
    partition: int
    offset: int


@pytest.fixture(scope="module")
def remote(module_path: Path) -> Iterator[str]:
    need_java()
    with server("local[2]", module_path, module_path / "spark.log", SMALL) as running:
        yield running.url


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(module_path / "cluster", nodes=1) as running:
        yield running


class Walk:
    """One landing, the topics it lands, and all that was ever published to them."""

    def __init__(self, cluster: RunningCluster, landing: Landing, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._bus = cluster.connect()
        self._landing = landing
        self._prefix = f"walk{time.monotonic_ns()}"
        self._published: dict[Place, bytes] = {}
        self._rows: set[Place] = set()
        self._topics: dict[str, hawser.Topic[Any]] = {}
        self._left_out: set[str] = set()
        self._format = "raw"
        self._schema = "id bigint"
        self._numbers = 0
        for _ in range(2):
            self.add_topic()

    # What changes.

    def add_topic(self) -> None:
        name = f"{self._prefix}/{len(self._topics)}"
        self._topics[name] = self._bus.topic(name, replication=1, partitions=1 + len(self._topics) % 2)
        self.publish()

    def publish(self) -> None:
        """To each topic; one value in ten is not of the schema."""
        for topic in self._topics.values():
            values = []
            for _ in range(self.chance.randint(1, 5)):
                self._numbers += 1
                values.append(b"bad" if self._numbers % 10 == 0 else b'{"id": %d}' % self._numbers)
            for receipt in topic.publish_many(values, keys=values):
                assert receipt.count
            self._note(topic)

    def create_anew(self) -> None:
        """With one partition more, or less."""
        topic = self._chosen()
        partitions = len(topic.info().partitions)
        topic.delete()
        self._topics[topic.name] = self._bus.topic(topic.name, replication=1, partitions=3 - partitions)
        self.publish()

    def trim(self) -> None:
        """Also records that may not be landed yet."""
        topic = self._chosen()
        for each in topic.info().partitions:
            if each.end > each.start + 1:
                trim(self._cluster, topic, self.chance.randint(each.start + 1, each.end - 1), each.partition)

    def leave_out(self) -> None:
        """A topic, or bring it back."""
        self._left_out ^= {self._chosen().name}
        if self._left_out == self._topics.keys():
            self._left_out.clear()
        self.publish()

    def rename(self) -> None:
        """Another topic takes the place of one."""
        gone = self._chosen()
        self.add_topic()
        self._left_out.add(gone.name)

    def change_format(self) -> None:
        self._format = {"raw": "json", "json": "raw"}[self._format]
        self.publish()

    def change_schema(self) -> None:
        """The typed table refuses it if it has rows of another type."""
        self._format, self._schema = (
            "json",
            {"id bigint": "id string", "id string": "id bigint"}[self._schema],
        )
        self.publish()
        if self.run() == 2:
            assert self.run("--full-refresh", self.chance.choice(TYPED)) in (0, 2, 7)

    def refresh(self) -> None:
        """The tables that are made from `raw`, then all of them by `raw`, which may be refused."""
        names = [*MADE_FROM_RAW, *(TYPED if self._format == "json" else ())]
        chosen = self.chance.choice([names, [self.chance.choice(names)]])
        self.run(*(word for name in chosen for word in ("--full-refresh", name)))
        self.run("--full-refresh", "raw")

    def lose(self) -> None:
        """Rows that cannot be landed again, because it is asked for."""
        assert self.run("--full-refresh", "raw", "--force") in (0, 7)

    def end_early(self) -> None:
        """By a signal, at any moment."""
        self._end_by(self.chance.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))

    def close_output(self) -> None:
        """What a run prints is read by nothing."""
        self._end_by(None)

    def _end_by(self, how: signal.Signals | None) -> None:
        process = self._landing.begin(*self._arguments()) if how else self._unread()
        try:
            if how:
                time.sleep(self.chance.uniform(0, 6))
                process.send_signal(how)
            code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
            process.wait()
        self.counts[f"ended by {how and how.name}"] += 1
        assert code in ((0, 2, 7, -how, 128 + how) if how else (0, 2, 7)), (how, code)
        # Spark may be at work for a moment longer.
        self._rows = self._landed()
        if code == 0:
            assert self._held() <= self._rows

    def _unread(self) -> "subprocess.Popen[bytes]":
        """A run whose standard output nothing reads."""
        reading, writing = os.pipe()
        os.close(reading)
        try:
            return subprocess.Popen(
                [*self._landing.command(*self._arguments()), "-o", "json"],
                env=self._landing.environment,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(writing)

    def take_away(self) -> None:
        """The directory belongs to another user for a while."""
        self.publish()
        owned = self._landing.directory / self.chance.choice(("tables", "."))
        before, owner = self._landed(), owned.stat().st_uid
        shutil.chown(owned, user=65534)
        try:
            for more in ((), ("--full-refresh", "minutes")):
                done = self._run_without_rights(*more)
                assert done.returncode != 7 and "Traceback" not in done.stderr, done
                assert before <= self._landed()
        finally:
            shutil.chown(owned, user=owner)
        self._rows = self._landed()

    # Runs.

    def run(self, *more: str) -> int:
        """A run to its end, compared with the logs; its exit code."""
        done = self._landing.run(*self._arguments(), *more, "-o", "json", code=None)
        self.counts[f"code {done.returncode}"] += 1
        assert done.returncode in (0, 2, 7) and "Traceback" not in done.stderr, (
            done,
            self._landing.last_words,
        )
        rows = self._landed()
        if more != ("--full-refresh", "raw", "--force"):
            assert self._rows <= rows, (more, sorted(self._rows - rows))
        if done.returncode == 2:
            assert rows == self._rows, (more, done.stderr, sorted(rows - self._rows))
        else:
            self._check(done.returncode, msgspec.json.decode(done.stdout), rows)
        self._rows = rows
        return done.returncode

    def _check(self, code: int, report: Any, rows: set[Place]) -> None:
        held = self._held()
        absent = held - rows
        partitions: dict[tuple[str, str, int], set[int]] = {}
        for row in rows:
            partitions.setdefault(row[:3], set()).add(row.offset)
        holes = sum(max(offsets) - min(offsets) + 1 - len(offsets) for offsets in partitions.values())
        before = sum(
            1 for each in absent if each[:3] in partitions and each.offset < min(partitions[each[:3]])
        )
        found = report["summary"]["partitions"]
        missing = sum(each["last"] - each["first"] + 1 for one in found for each in one["landed"]["missing"])
        assert missing == holes + before, (missing, holes, before)
        assert not any(one["landed"]["doubled"] for one in found)
        assert report["whole"] == (missing == 0)
        assert report["tables"]["raw"]["rows"] == len(rows) == report["summary"]["records"]
        if code == 0:
            assert not absent and not holes, (sorted(absent), holes)
        else:
            assert absent or holes
        names = MADE_FROM_RAW if self._format == "raw" else (*MADE_FROM_RAW, *TYPED)
        counted = {name: tables.count(self._landing.directory, name) for name in names}
        assert sum(row["records"] for row in self._landing.rows("minutes")) == len(rows)
        if self._format == "json":
            assert counted["typed"] + counted["bad"] == len(rows)

    def _landed(self) -> set[Place]:
        """The rows: each once, and as it was published."""
        try:
            found = self._landing.rows(
                "raw", *Place._fields[:1], "topic_uuid", "partition", "offset", "value"
            )
        except hawser.NotFound:
            return set()
        rows = {Place(*list(row.values())[:4]): row["value"] for row in found}
        assert len(rows) == len(found), "a row is there twice"
        assert rows.items() <= self._published.items()
        return set(rows)

    def _held(self) -> set[Place]:
        """What the topics of the run have."""
        return {
            Place(name, info.uuid, each.partition, offset)
            for name, info in ((name, topic.info()) for name, topic in self._topics.items())
            if name not in self._left_out
            for each in info.partitions
            for offset in range(each.start, each.end)
        }

    def _note(self, topic: "hawser.Topic[Any]") -> None:
        info = topic.info()
        known = {each for each in self._published if each.uuid == info.uuid}
        wanted = sum(each.end - each.start for each in info.partitions)
        with topic.subscribe(start="earliest") as subscription:
            for _ in range(wanted):
                sample = subscription.take(30)
                assert sample is not None
                with sample:
                    place = Place(topic.name, info.uuid, sample.partition, sample.offset)
                    assert place not in known or self._published[place] == bytes(sample)
                    self._published[place] = bytes(sample)

    def _arguments(self) -> list[str]:
        names = [name for name in self._topics if name not in self._left_out]
        typed = [] if self._format == "raw" else ["--value-format", "json", "--schema", self._schema]
        return [*(word for name in names for word in ("--topic", name)), *typed]

    def _run_without_rights(self, *more: str) -> "subprocess.CompletedProcess[str]":
        line = ["setpriv", WITHOUT_RIGHTS, *self._landing.command(*self._arguments(), *more)]
        return subprocess.run(
            line,
            env=self._landing.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )

    def _chosen(self) -> "hawser.Topic[Any]":
        names = [name for name in self._topics if name not in self._left_out]
        return self._topics[self.chance.choice(names)]

    # The walk.

    def go(self, changes: Sequence[Sequence[Callable[["Walk"], None]]]) -> None:
        """Some changes, and a run behind them; if that is refused, one by force."""
        assert self.run() == 0
        for together in changes:
            for change in together:
                self.counts[change.__name__] += 1
                change(self)
            if self.run() == 2:
                assert self.run("--force") in (0, 7)
        self.publish()
        self._left_out.clear()
        self.lose()
        assert self._rows == self._held()


# What is not attacked elsewhere: the rest, and each by itself, is in tests/museum/test_landing_changes.py.
CHANGES: Final = (
    (Walk.leave_out, Walk.create_anew),
    (Walk.rename, Walk.end_early, Walk.close_output),
    (Walk.take_away, Walk.trim, Walk.change_format),
)


def test_much_changes_once(
    tmp_path: Path, cluster: RunningCluster, remote: str, record_property: Any
) -> None:
    walk = Walk(cluster, Landing(tmp_path / "landing", cluster.url, remote), 1)
    walk.go(CHANGES)
    record_property("counts", dict(walk.counts))


@pytest.mark.soak
def test_everything_changes_for_long(
    tmp_path: Path, cluster: RunningCluster, remote: str, soak_seconds: float, record_property: Any
) -> None:
    end, seed, counts = time.monotonic() + soak_seconds, random.randrange(1 << 32), Counter[str]()
    every = [change for together in CHANGES for change in together]
    every += [Walk.change_schema, Walk.refresh, Walk.lose]
    while time.monotonic() < end:
        print(f"seed {seed}")
        walk = Walk(cluster, Landing(tmp_path / str(seed), cluster.url, remote), seed)
        walk.go([walk.chance.choices(every, k=walk.chance.randint(1, 2)) for _ in range(15)])
        counts += walk.counts
        seed += 1
    record_property("counts", dict(counts))
