"""Topics landed in tables: what is in them, once, however often it runs and whatever the topics carry."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pytest

import hawser
from hawser.record.payload import arrow_bytes
from hawser.record.recording import GAP_HEADER, Gap
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.server import server
from tests.spark.landing import Landing
from tests.support.cluster import RunningCluster
from tests.support.etcd import free_ports
from tests.support.processes import until
from tests.support.source import trim
from tests.support.spark import SMALL, need_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HUGE_BYTES = 3 << 20
FIELDS = "id bigint, name string"


@pytest.fixture(scope="module")
def remote(module_path: Path) -> Iterator[str]:
    """A Connect server for all tests of this file: starting one takes longer than most of them."""
    need_java()
    with server("local[2]", module_path, module_path / "spark.log", SMALL) as running:
        yield running.url


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(module_path / "cluster", nodes=1) as running:
        yield running


@pytest.fixture
def bus(cluster: RunningCluster) -> Iterator[hawser.Bus]:
    with hawser.connect(cluster.url) as bus:
        yield bus


@pytest.fixture
def landing(tmp_path: Path, cluster: RunningCluster, remote: str) -> Landing:
    return Landing(tmp_path / "landing", cluster.url, remote)


def test_every_record_once_run_after_run(bus: hawser.Bus, landing: Landing, record_property: Any) -> None:
    orders = bus.topic("orders", partitions=2, replication=1)
    audits = bus.topic("audits", replication=1)
    bus.topic("silence", replication=1)
    sent = {}

    def publish(topic: Any, value: bytes, key: bytes | None = None, **headers: bytes) -> None:
        receipt = topic.publish(value, key=key, headers=headers or None)
        sent[topic.name, receipt.partition, receipt.first_offset] = (key, value, headers)

    for number in range(50):
        publish(orders, b"order %d" % number, b"%d" % number, trace=b"%d" % number)
    publish(orders, bytes(HUGE_BYTES))
    publish(audits, b"")
    audits.publish(b"", headers={GAP_HEADER: Gap(7, 11).encode()})
    arguments = [word for name in ("orders", "audits", "silence") for word in ("--topic", name)]
    landing.run(*arguments)
    assert len(landing.rows("raw")) == len(sent) + 1
    for number in range(20):
        publish(orders, b"later %d" % number)
    done = landing.run(*arguments, "-o", "json")
    told = msgspec.json.decode(done.stdout)
    assert told["whole"] and told["verdict"] == "whole: every record once"
    assert told["tables"]["raw"] == {"rows": len(sent) + 1, "new": 20}

    rows = [row for row in landing.rows("raw") if row["value"] or row["headers"] is None]
    found = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
    assert len(found) == len(rows)
    assert {
        place: (row["key"], row["value"], {each["key"]: each["value"] for each in row["headers"] or ()})
        for place, row in found.items()
    } == sent
    gap = landing.rows("gaps")
    assert [(row["topic"], row["first_missing"], row["last_missing"], row["missing"]) for row in gap] == [
        ("audits", 7, 11, 5)
    ]
    minutes = landing.rows("minutes")
    assert sum(row["records"] for row in minutes) == len(sent) + 1
    assert sum(row["bytes"] for row in minutes) == sum(len(value) for _, value, _ in sent.values())
    assert sum(row["hash"] for row in minutes) == sum(row["hash"] for row in landing.rows("raw"))
    assert landing.summary["gap_samples"] == 5
    assert "Whole: every record once" in (landing.directory / "summary.html").read_text()
    record_property("rows", len(landing.rows("raw")))


def test_poison_goes_to_a_table_of_its_own_and_schemas_grow(bus: hawser.Bus, landing: Landing) -> None:
    topic = bus.topic("json", replication=1)
    values = [b'{"id": 1, "name": "a"}', b'{"id": "x"}', b"\xff\xfe", b"", b'{"id": 2}', b"[1]"]
    for value in values:
        topic.publish(value)
    topic.publish(b"", headers={GAP_HEADER: Gap(1, 2).encode()})
    arguments = ["--topic", "json", "--value-format", "json", "--schema"]
    landing.run(*arguments, FIELDS, "--late-after", "0")
    late = landing.rows("late")
    assert len(late) == len(values) + 1 and all(row["late_seconds"] > 0 for row in late)
    typed = landing.rows("typed", "offset", "value")
    assert typed == [
        {"offset": 1, "value": {"id": 1, "name": "a"}},
        {"offset": 5, "value": {"id": 2, "name": None}},
    ]
    bad = landing.rows("bad")
    assert [row["value"] for row in bad] == [values[place] for place in (1, 2, 3, 5)]
    assert "$.id" in bad[0]["fault"] and all(row["fault"] for row in bad)
    assert landing.summary["rows"]["bad"] == 4

    topic.publish(b'{"id": 3, "price": 2.5}')
    landing.run(*arguments, f"{FIELDS}, price double")
    values_now = [row["value"] for row in landing.rows("typed", "offset", "value")]
    assert values_now[0] == {"id": 1, "name": "a", "price": None}
    assert values_now[-1] == {"id": 3, "name": None, "price": 2.5}

    refused = landing.run(*arguments, "id string, name string, price double", code=2)
    assert "typed.value.id was bigint and would be string" in refused.stderr
    assert "--full-refresh typed" in refused.stderr
    landing.run(*arguments, "id double, name string", "--full-refresh", "typed", "--full-refresh", "bad")
    assert [row["value"]["id"] for row in landing.rows("typed", "offset", "value")] == [1.0, 2.0, 3.0]
    assert len(landing.rows("raw")) == len(values) + 2


def test_msgpack_and_arrow(bus: hawser.Bus, landing: Landing, tmp_path: Path, remote: str) -> None:
    packed = bus.topic("packed", replication=1)
    packed.publish(msgspec.msgpack.encode({"id": 1, "name": "a"}))
    packed.publish(b"\xc1")
    landing.run("--topic", "packed", "--value-format", "msgpack", "--schema", FIELDS)
    assert [row["value"] for row in landing.rows("typed")] == [{"id": 1, "name": "a"}]
    assert len(landing.rows("bad")) == 1

    batches = bus.topic("batches", replication=1)
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    batches.publish(arrow_bytes(pyarrow.RecordBatch.from_pylist(rows)))
    batches.publish(b"no batch")
    other = Landing(tmp_path / "arrow", landing.url, remote)
    other.run("--topic", "batches", "--value-format", "arrow", "--schema", FIELDS)
    assert [row["value"] for row in other.rows("typed")] == [rows]
    assert [row["value"] for row in other.rows("bad")] == [b"no batch"]


def test_a_topic_that_does_not_exist(landing: Landing) -> None:
    done = landing.run("--topic", "nowhere", code=3)
    assert "nowhere" in done.stderr


def test_a_topic_of_another_format(bus: hawser.Bus, landing: Landing) -> None:
    class Order(msgspec.Struct):
        id: int

    bus.topic("structured", schema=Order, replication=1)
    done = landing.run("--topic", "structured", "--value-format", "json", "--schema", FIELDS, code=2)
    assert "--value-format msgpack" in done.stderr


def test_a_directory_in_use(bus: hawser.Bus, landing: Landing) -> None:
    from hawser.spark.pipelines.directory import Place

    bus.topic("orders", replication=1, partitions=2)
    with Place(landing.directory).lock():
        done = landing.run("--topic", "orders", code=4)
    assert "in use by another run" in done.stderr


def test_killed_on_a_server_that_lives_on(bus: hawser.Bus, landing: Landing) -> None:
    """What is left of the run in the server is in nobody's way, and lands nothing twice."""
    topic = bus.topic("many", replication=1)
    topic.publish_many([b"%d" % number for number in range(3000)])
    arguments = ["--topic", "many", "--conf", "spark.hawser.batch.records=300"]
    with landing.begin(*arguments, "--every", "0") as process:
        try:
            until(lambda: tables.count(landing.directory, "raw") > 0, "rows")
        finally:
            process.kill()
    topic.publish_many([b"%d" % number for number in range(100)])
    told = msgspec.json.decode(landing.run(*arguments, "-o", "json").stdout)
    assert told["whole"] and told["tables"]["raw"]["rows"] == 3100
    assert len(landing.rows("raw")) == 3100


def test_what_retention_took_is_missed_until_it_is_given_up(
    cluster: RunningCluster, bus: hawser.Bus, landing: Landing
) -> None:
    topic = bus.topic("brief", replication=1)
    topic.publish_many([b"a"] * 10)
    landing.run("--topic", "brief")
    topic.publish_many([b"b"] * 10)
    trim(cluster, topic, 15)
    assert "records 11 to 14 (4)" in landing.run("--topic", "brief", code=2).stderr
    landing.run("--topic", "brief", "--force", code=7)
    assert [row["offset"] for row in landing.rows("raw")] == [*range(1, 11), *range(15, 21)]
    assert landing.summary["partitions"][0]["landed"]["missing"] == [[11, 14]]


OWN = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
source = spark.readStream.format("hawser").option("endpoints", spark.conf.get("spark.own.url"))

@dp.table(schema="offset bigint, value string")
def words():
    rows = source.option("subscribe", "words").option("startingOffsets", "earliest").load()
    return rows.selectExpr("offset", "cast(value as string) as value")

@dp.table(schema="value string")
def long_words():
    return spark.readStream.table("words").where("length(value) > 3").select("value")

@dp.materialized_view
def lengths():
    return spark.read.table("words").groupBy("value").count()

dp.create_sink("elsewhere", "noop")

@dp.append_flow(target="elsewhere")
def sent():
    return spark.readStream.table("long_words")
"""


def test_a_pipeline_of_ones_own(bus: hawser.Bus, landing: Landing, tmp_path: Path) -> None:
    topic = bus.topic("words", replication=1)
    for word in (b"one", b"three", b"seven"):
        topic.publish(word)
    file = tmp_path / "words.py"
    file.write_text(OWN)
    arguments = [str(file), "--conf", f"spark.own.url={landing.url}"]
    told = msgspec.json.decode(landing.run(*arguments, "-o", "json").stdout)
    assert {name: each["rows"] for name, each in told["tables"].items()} == {
        "words": 3,
        "long_words": 2,
        "lengths": 3,
    }
    refused = landing.run(*arguments, "--full-refresh", "words", code=2)
    assert "elsewhere would get every row again" in refused.stderr
    assert len(landing.rows("words")) == 3
    landing.run(*arguments, "--full-refresh", "words", "--force")
    assert sorted(row["value"] for row in landing.rows("long_words")) == ["seven", "three"]
    unknown = landing.run(*arguments, "--full-refresh", "sentences", code=2)
    assert "there are words, long_words, lengths" in unknown.stderr
    eager = OWN.replace('.select("value")', '.withColumn("value", upper("value")).select("value")')
    functions = "from pyspark.sql.functions import upper"
    file.write_text(eager.replace("import SparkSession", f"import SparkSession\n{functions}"))
    # When a table begins is heard of a moment later, by which the one before it may have been filled.
    for _ in range(5):
        topic.publish(b"eight")
        early = landing.run(*arguments, code=None)
        if early.returncode:
            break
    assert early.returncode == 2 and "was filled before words" in early.stderr
    file.write_text(OWN.replace('@dp.table(schema="value string")', "@dp.table"))
    assert "does not declare its columns" in landing.run(*arguments, code=2).stderr


MANY_KINDS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
source = spark.readStream.format("hawser").option("endpoints", spark.conf.get("spark.hawser.url"))

dp.create_streaming_table("letters", schema="value string")

@dp.append_flow(target="letters")
def first():
    rows = source.option("subscribe", spark.conf.get("spark.hawser.topics"))
    return rows.option("startingOffsets", "earliest").load().selectExpr("cast(value as string) as value")

@dp.temporary_view
def seen():
    return spark.readStream.table("letters").select("value")

@dp.table(schema="value string")
def by_view():
    return spark.readStream.table("seen").select("value")

@dp.table(schema="value string")
def by_sql():
    return spark.sql("SELECT value FROM STREAM(letters)")

@dp.materialized_view(partition_cols=["count"])
def counts():
    return spark.read.table("letters").groupBy("value").count()
"""


def test_flows_of_many_kinds(bus: hawser.Bus, landing: Landing, tmp_path: Path) -> None:
    """A table filled by flows of other names, read through a view and by SQL; and made anew."""
    topic = bus.topic("letters", replication=1)
    topic.publish_many([b"a", b"b", b"b"])
    file = tmp_path / "letters.py"
    file.write_text(MANY_KINDS)
    arguments = [str(file), "--topic", "letters", "-o", "json"]
    rows = {"letters": 3, "by_view": 3, "by_sql": 3, "counts": 2}
    for more in [], ["--full-refresh", "letters"]:
        told = msgspec.json.decode(landing.run(*arguments, *more).stdout)
        assert {name: each["rows"] for name, each in told["tables"].items()} == rows
        assert told["tables"]["letters"]["new"] == 3


def test_secrets_are_not_shown(landing: Landing, bus: hawser.Bus) -> None:
    bus.topic("orders", partitions=2, replication=1)
    nowhere = f"sc://127.0.0.1:{free_ports(1)[0]}/;token=secret-{'x' * 8}"
    done = landing.run("--topic", "orders", "--remote", nowhere, code=4)
    assert "no Spark Connect server answers" in done.stderr
    assert "secret-" not in done.stderr + done.stdout


FORGETFUL = """
from hawser.spark.pipelines import runner

runner._MOST_UPDATES = 1

from hawser.cli.main import main

main()
"""


def test_sessions_begin_anew(bus: hawser.Bus, landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many updates, before Spark is full of them; what is to be made anew is made anew once."""
    topic = bus.topic("endless", replication=1)
    topic.publish_many([b"a"] * 3)
    landing.run("--topic", "endless")
    words = landing.command("--topic", "endless", "--every", "0", "--full-refresh", "minutes")
    monkeypatch.setattr(landing, "command", lambda *_: [sys.executable, "-c", FORGETFUL, *words[3:]])
    said = landing.directory / "said.txt"
    with landing.begin() as process:
        try:
            until(lambda: said.read_text().count(" answers") > 2, "some sessions")
            topic.publish_many([b"b"] * 2)
            until(lambda: tables.count(landing.directory, "raw") == 5, "the rows")
        finally:
            process.terminate()
    assert process.returncode == 0
    assert said.read_text().count("made anew") == 1
