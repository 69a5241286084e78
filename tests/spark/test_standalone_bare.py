"""Spark on workers that have Python, PySpark and pyarrow only, as docs/howto/spark-clusters.md says: Hawser
and what it needs are sent along, without its native module."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hawser.spark.pipelines.server import server
from tests.spark import bare_program
from tests.support.cluster import RunningCluster
from tests.support.installations import COMPILED, BarePython, copy_hawser, copy_packages
from tests.support.sink import counted
from tests.support.spark import DOCUMENT, SMALL_EXECUTORS, StandaloneCluster, need_java, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = [b"message %d" % number for number in range(500)]
ON_WORKERS = ("pyspark", "py4j", "pyarrow")
OF_CLIENT = (
    *("pyspark", "py4j", "pyarrow", "pandas", "numpy", "python-dateutil", "pytz", "tzdata", "zstandard"),
    *("grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "typing-extensions"),
)
LIMIT_SECONDS = 400
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
MISSING = "need Hawser's native module"

CLIENT = """
import sys
from pyspark.sql import SparkSession

remote, url, source, target, directory = sys.argv[1:]
try:
    import hawser
except ImportError:
    pass
else:
    raise SystemExit("this Python has Hawser")
spark = SparkSession.builder.remote(remote).getOrCreate()
stream = spark.readStream.format("hawser").option("endpoints", url).option("subscribe", source)
rows = stream.option("startingOffsets", "earliest").load().select("key", "value").writeStream.format("hawser")
rows = rows.option("endpoints", url).option("topic", target).trigger(availableNow=True)
rows.option("checkpointLocation", directory).start().awaitTermination()
read = spark.read.format("hawser").option("endpoints", url).option("subscribe", target).load()
print(read.count(), sorted(read.select("offset").toPandas()["offset"])[0])
spark.stop()
"""


def settings_of_document() -> dict[str, str]:
    """How the document sends the archive along."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("\n## Workers without Hawser\n")[2]
    text = re.search(r"\*\*(\{.*?\})", section)
    assert text is not None
    found: dict[str, str] = json.loads(text.group(1))
    return found


class Place:
    """A cluster of Hawser, one of Spark with bare workers, and an archive for them."""

    def __init__(self, directory: Path, cluster: RunningCluster, standalone: StandaloneCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.master = standalone.master
        self._bus = cluster.connect("tests")
        self._source = self._bus.topic("orders", partitions=2)
        self._source.publish_many(MESSAGES)
        packages = directory / "packages"
        packages.mkdir()
        copy_hawser(packages)
        copy_packages(packages, (*COMPILED, "numpy"))
        archive = shutil.make_archive(str(directory / "hawser"), "zip", packages)
        said = settings_of_document()
        said["spark.archives"] = said["spark.archives"].replace("hawser.zip", archive)
        self.settings = {**SMALL_EXECUTORS, **said}

    def target(self, name: str) -> str:
        """The name of a new topic for copies."""
        self._bus.topic(name, partitions=2)
        return name

    def check_copied(self, name: str) -> None:
        """Each message is in the topic once."""
        found = counted(self._bus.topic(name, create=False))
        assert sorted(found) == sorted(MESSAGES) and found.total() == len(MESSAGES)


@pytest.fixture(scope="module")
def bare(module_path: Path) -> BarePython:
    return BarePython(module_path / "bare", ON_WORKERS)


@pytest.fixture(scope="module")
def place(module_path: Path, bare: BarePython) -> Iterator[Place]:
    need_java()
    with (
        RunningCluster(module_path / "cluster") as cluster,
        standalone_cluster(module_path / "standalone", bare.program.parent) as standalone,
    ):
        yield Place(module_path, cluster, standalone)


def environment() -> dict[str, str]:
    """That of a driver: it finds the Python with Hawser first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYSPARK_PYTHON": PYTHON}


def test_an_archive_brings_all_that_workers_lack(place: Place, bare: BarePython, tmp_path: Path) -> None:
    target = place.target("orders/archive")
    words = [place.master, json.dumps(place.settings), "found", place.cluster.url, "orders", target, tmp_path]
    found = run_program(words, tmp_path)
    place.check_copied(target)
    assert found["rows"] == len(MESSAGES)
    assert found["executable"] == str(bare.program.parent / PYTHON)
    assert f"{place.directory}/standalone/work-" in str(found["hawser"]), "unpacked by an executor"
    assert MISSING in str(found["error"])


def test_files_of_python_are_enough_where_the_compiled_packages_are(place: Place, tmp_path: Path) -> None:
    """The compiled packages are in an archive, as if they were installed there."""
    sources, packages = tmp_path / "sources", tmp_path / "packages"
    packages.mkdir()
    sources.mkdir()
    copy_hawser(sources)
    copy_packages(packages, (*COMPILED, "numpy"))
    zipped = shutil.make_archive(str(tmp_path / "hawser-pure"), "zip", sources)
    archive = shutil.make_archive(str(tmp_path / "compiled"), "zip", packages)
    settings = {**place.settings, "spark.archives": f"{archive}#hawser"}
    target = place.target("orders/files")
    words = [place.master, json.dumps(settings), zipped, place.cluster.url, "orders", target, tmp_path]
    found = run_program(words, tmp_path)
    place.check_copied(target)
    assert found["rows"] == len(MESSAGES)
    assert "hawser-pure.zip" in str(found["hawser"])


def test_a_client_of_spark_connect_needs_no_hawser(
    place: Place, tmp_path: Path, module_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has PySpark alone, the server has Hawser, and executors get it from the server."""
    client = BarePython(module_path / "client", OF_CLIENT)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    target = place.target("orders/connect")
    log = tmp_path / "log"
    with server(place.master, tmp_path, log, place.settings) as running:
        words = ["-W", "ignore", "-c", CLIENT, running.url, place.cluster.url, "orders", target]
        try:
            lines = client.run(*words, tmp_path / "checkpoint").stdout.splitlines()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()[-3000:]}") from error
    place.check_copied(target)
    assert lines[-1].split() == [str(len(MESSAGES)), "1"]


def run_program(words: list[object], directory: Path) -> dict[str, object]:
    """What the program printed last."""
    with (directory / "log").open("w+b") as log:
        ended = subprocess.run(
            [sys.executable, bare_program.__file__, *map(str, words)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert ended.returncode == 0, (directory / "log").read_text()[-4000:]
    found: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return found
