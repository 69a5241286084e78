"""Every way in which rows were once lost in silence, with drivers, tasks and nodes that die at random around
it. Every row is in its target once, or an error says why it is not."""

import json
import logging
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import hawser
from hawser.spark.connection import connection
from tests.spark.mortal_query import MortalQuery, nodes_killed
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS
from tests.support.sink import counted, partitions_of, prepared
from tests.support.source import trim, wait_for

pytestmark = pytest.mark.timeout(600)

LOST = re.compile(r"partition (\d+): records (\d+) to (\d+) \(\d+\) are no longer kept and were not read")
TOPICS = ("source", "source/0", "source/1", "source/2", "a", "b")


class Scene:
    """Topics of one attack, and the chance that rules it."""

    def __init__(
        self, cluster: RunningCluster, bus: hawser.Bus, patch: pytest.MonkeyPatch, directory: Path, seed: int
    ) -> None:
        self.cluster = cluster
        self.bus = bus
        self.patch = patch
        self.chance = random.Random(seed)
        self.name = f"attacked-{time.time_ns()}"
        self.published: Counter[bytes] = Counter()
        self._directory = directory / self.name
        for name in TOPICS:
            wait_for(lambda: self._is_made(name), "all nodes")  # noqa: B023

    def _is_made(self, name: str) -> bool:
        """Whether there are nodes enough to make a topic; one that was killed is not counted at once."""
        try:
            self.bus.topic(f"{self.name}/{name}", partitions=2)
        except hawser.Rejected:
            return False
        return True

    def topic(self, name: str) -> hawser.Topic[Any]:
        return self.bus.topic(f"{self.name}/{name}", create=False)

    def publish(self, topic: hawser.Topic[Any]) -> None:
        """Some more, with values that no other record has."""
        first = self.published.total()
        values = [b"%d" % number for number in range(first, first + self.chance.randrange(5, 60))]
        topic.publish_many(values, keys=values)
        self.published.update(values)

    def query(self, name: str, *targets: str, application: str | None = None, **source: str) -> MortalQuery:
        given = {"endpoints": self.cluster.url, "startingOffsets": "earliest", "minPartitions": "2"}
        if "subscribePattern" not in source:
            given["subscribe"] = f"{self.name}/source"
        names = (f"{self.name}/{each}" for each in targets)
        return MortalQuery(
            self.patch, self.chance, self._directory / name, given | source, *names, application=application
        )

    def written(self, target: str, total: int) -> Counter[bytes]:
        """What is in a target, which has so many rows; a leader that has just begun may say it has fewer."""
        topic = self.topic(target)
        wait_for(lambda: counted(topic).total() >= total, "all rows")
        return counted(topic)

    def check(self, *targets: str) -> None:
        """All that was published is in each of them once, and nothing is left prepared."""
        for each in targets:
            assert self.written(each, self.published.total()) == self.published, each
        wait_for(lambda: not prepared(self.cluster.url), "the end of all branches")


def one_name_and_two_targets(scene: Scene) -> None:
    source = scene.topic("source")
    query = scene.query("one", "a", "b", application=scene.name)
    for _ in range(3):
        scene.publish(source)
        query.run(lambda: scene.publish(source))
    query.run()
    scene.check("a", "b")


def a_new_checkpoint_under_an_old_name(scene: Scene) -> None:
    source = scene.topic("source")
    scene.publish(source)
    old = scene.query("old", "a", application=scene.name)
    old.run()
    scene.publish(source)
    with pytest.raises(hawser.Fenced, match="under this application's name"):
        scene.query("new", "a", application=scene.name).run()
    assert scene.written("a", 0).total() < scene.published.total()
    old.run()
    scene.check("a")


def a_copied_checkpoint(scene: Scene) -> None:
    """The copy goes on under the same id. With a target of its own it writes what it reads; with the target
    of the first one it may write nothing else under a number that is taken."""
    source = scene.topic("source")
    one = scene.query("one", "a")
    scene.publish(source)
    one.run()
    before = Counter(scene.published)
    for name, to in (("same", "a"), ("apart", "b")):
        shutil.copytree(one.checkpoint, one.checkpoint.with_name(name), dirs_exist_ok=True)
        copy = scene.query(name, to)
        copy.id = one.id
        scene.publish(source)
        if to == "b":
            copy.run()
            expected = scene.published - before
            assert scene.written("b", expected.total()) == expected
            continue
        one.run()
        scene.publish(source)
        with pytest.raises(hawser.Fenced, match=r"from other offsets|checkpoint is older"):
            copy.run()
        before = Counter(scene.published)
        one.run()
        assert scene.written("a", scene.published.total()) == scene.published
    one.run()
    scene.check("a")


def a_checkpoint_ahead_of_the_log(scene: Scene) -> None:
    source = scene.topic("source")
    scene.publish(source)
    query = scene.query("one", "a")
    query.run()
    first = Counter(scene.published)
    last = query.noted("commits")
    end = query.end(last)
    place = end[source.name]
    place.pop("began", None)
    place["0"] += 10_000
    query.plan(last, end)
    scene.publish(source)
    with pytest.raises(hawser.OffsetOutOfRange, match=r"So [0-9]+ records are gone"):
        query.run()
    assert scene.written("a", first.total()) == first
    careless = scene.query("one", "a", failOnDataLoss="false")
    careless.run()
    # Partition 0 is read from its start again, and the other one goes on.
    again, _ = partitions_of(source)
    samples = source.read_oldest(again.end - again.start, partition=0).samples
    anew = Counter(bytes(sample.data) for sample in samples)
    rest = scene.published - first
    expected = first + anew + (rest - anew)
    assert scene.written("a", expected.total()) == expected


def a_topic_that_is_not_listed(scene: Scene) -> None:
    """A node that answers does not know one of the topics yet, again and again."""
    sources = [scene.topic(f"source/{number}") for number in range(3)]
    for each in sources:
        scene.publish(each)
    pattern = re.escape(f"{scene.name}/source/") + ".*"
    query = scene.query("one", "a", subscribePattern=pattern)
    client = connection(scene.cluster.url)._client
    listed = client.topics
    hidden = ""

    async def older() -> list[str]:
        return [name for name in await listed() if name != hidden]

    query.run()
    with scene.patch.context() as patch:
        patch.setattr(client, "topics", older)
        for each in sources:
            hidden = scene.chance.choice(sources).name
            scene.publish(each)
            query.run(lambda: scene.publish(scene.chance.choice(sources)))
    query.run()
    scene.check("a")


def a_schema_that_changes(scene: Scene) -> None:
    """From one run to the next there is a field more; then come values that the schema does not fit. They
    stop the query, and nothing of their micro-batch is written until they may be null."""
    source = scene.topic("source")
    published = list[int]()

    def publish(is_poison: bool = False) -> None:
        numbers = range(len(published), len(published) + scene.chance.randrange(5, 60))
        rows = [{"id": f"x{number}" if is_poison else number, "name": "n"} for number in numbers]
        source.publish_many([json.dumps(row).encode() for row in rows])
        published.extend(numbers)

    query = scene.query("one", "a", valueFormat="json")
    value = StructType().add("id", "long")
    for name in ("", "name"):
        publish()
        value = value.add(name, "string") if name else value
        query.rows = StructType().add("value", value)
        query.run()
    good = len(published)
    publish(is_poison=True)
    poison = len(published) - good
    with pytest.raises(hawser.Corrupt, match=f"topic '{source.name}', partition [01], offset"):
        query.run()
    patient = scene.query("one", "a", valueFormat="json", mode="PERMISSIVE")
    patient.rows = query.rows
    patient.run(publish)
    patient.run()
    texts = scene.written("a", len(published))
    assert texts.pop(b"") == poison and set(texts.values()) == {1}
    rows = [json.loads(text) for text in texts]
    assert sorted(row["id"] for row in rows) == [*range(good), *range(good + poison, len(published))]
    assert {row.get("name") for row in rows} == {None, "n"}


ATTACKS = (
    one_name_and_two_targets,
    a_new_checkpoint_under_an_old_name,
    a_copied_checkpoint,
    a_checkpoint_ahead_of_the_log,
    a_topic_that_is_not_listed,
    a_schema_that_changes,
)


def check_retention(scene: Scene, caplog: pytest.LogCaptureFixture) -> int:
    """Each record is in the target once, or a line says that it was lost. Returns how many were lost."""
    caplog.clear()
    source = scene.topic("source")
    places: dict[tuple[int, int], bytes] = {}

    def publish() -> None:
        scene.publish(source)
        for number in range(2):
            found = source.read_oldest(scene.published.total(), partition=number).samples
            places.update({(number, sample.offset): bytes(sample.data) for sample in found})

    def trim_some() -> None:
        if scene.chance.random() < 0.2:
            number = scene.chance.randrange(2)
            now = partitions_of(source)[number]
            trim(scene.cluster, source, scene.chance.randrange(now.start, now.end + 1), number)

    query = scene.query("one", "a", failOnDataLoss="false")
    query.meanwhile = trim_some
    with caplog.at_level(logging.WARNING, "hawser.spark.source"):
        for _ in range(4):
            publish()
            query.run(publish)
        query.run()
    written = scene.written("a", 0)
    lost = set[bytes]()
    for line in (each.getMessage() for each in caplog.records if each.name == "hawser.spark.source"):
        told = LOST.search(line)
        assert told is not None, line
        number, first, last = map(int, told.groups())
        lost |= {places[number, offset] for offset in range(first, last + 1)}
    assert set(written.values()) <= {1}
    assert scene.published.keys() == written.keys() | lost
    return len(lost)


@pytest.fixture
def scenes(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[int], Scene]:
    bus = cluster.connect("patient", timeout=2 * LIMIT_SECONDS)
    return lambda seed: Scene(cluster, bus, monkeypatch, tmp_path, seed)


@pytest.mark.parametrize("attack", ATTACKS)
def test_drivers_tasks_and_nodes_die(attack: Any, scenes: Any, cluster: RunningCluster) -> None:
    scene = scenes(7)
    with nodes_killed(cluster, 7):
        attack(scene)


def test_retention_takes_what_is_not_read_yet(scenes: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert check_retention(scenes(1), caplog), "retention came too late for all"


@pytest.mark.soak
def test_drivers_tasks_and_nodes_die_for_as_long_as_told(
    scenes: Any, cluster: RunningCluster, caplog: pytest.LogCaptureFixture, soak_seconds: float
) -> None:
    until, seed = time.monotonic() + soak_seconds, random.randrange(1 << 30)
    while time.monotonic() < until:
        attack = ATTACKS[seed % len(ATTACKS)]
        print(f"seed {seed}: {attack.__name__}")
        scene = scenes(seed)
        with nodes_killed(cluster, seed):
            attack(scene)
        check_retention(scenes(seed), caplog)
        seed += 1
