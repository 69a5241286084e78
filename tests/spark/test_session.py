"""What a session of `hawser.spark.session()` is, and what it leaves alone."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import hawser
import hawser.spark
from hawser.spark import requirements
from hawser.spark.requirements import Package, check_packages
from hawser.spark.runtime.session import environment, settings

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def origins(spark: SparkSession) -> list[str]:
    """The Python of a worker, and where it has PySpark from."""

    def found(rows: Iterable[int]) -> Iterator[tuple[str, str]]:
        import sys

        import pyspark

        yield sys.executable, str(pyspark.__file__)

    return list(spark.sparkContext.parallelize([0], 1).mapPartitions(found).collect()[0])


def test_workers_run_this_python_and_the_compiled_modules(spark: SparkSession) -> None:
    assert origins(spark) == [sys.executable, pyspark.__file__]


def test_the_settings_are_in_effect(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.master == "local[2]"


def test_asking_again_gives_the_same_session(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "CET")
    try:
        assert hawser.spark.session() is spark
        assert hawser.spark.session(**{"spark.sql.shuffle.partitions": "3"}) is spark
        assert spark.conf.get("spark.sql.session.timeZone") == "CET", "chosen by somebody since"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    before = dict(os.environ)
    hawser.spark.session()
    assert dict(os.environ) == before
    assert "SPARK_HOME" not in before


def test_variables_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert not {"PYSPARK_PYTHON", "SPARK_HOME"} & environment("local[*]").keys()
    assert environment("spark://h1:7077").keys() == {"JAVA_HOME"}


def test_settings_of_the_call_win() -> None:
    found = settings("local[3]", {"spark.sql.session.timeZone": "CET", JAVA_OPTIONS: "-Dmine=1"})
    assert found["spark.sql.session.timeZone"] == "CET"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found[JAVA_OPTIONS].endswith(" -Dmine=1"), "Java takes the last of two that contradict"


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local[3]", {}, "3"),
        ("local[3]", {"spark.default.parallelism": 8}, "8"),
        ("spark://h1:7077", {"spark.cores.max": "6"}, "6"),
        ("k8s://h1", {"spark.executor.instances": "4", "spark.executor.cores": 2}, "8"),
        ("k8s://h1", {"spark.executor.instances": "4"}, None),
        ("spark://h1:7077", {"spark.cores.max": "all"}, None),
        (None, {}, None),
    ],
)
def test_the_source_is_told_the_cores_of_the_cluster(
    master: str | None, conf: dict[str, object], cores: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HAWSER_SPARK_CORES", raising=False)
    assert environment(master, conf).get("HAWSER_SPARK_CORES") == cores


def test_settings_of_the_defaults_file_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["# mine", "", "spark.ui.enabled true", f"{JAVA_OPTIONS}=-Dmine=1 -Dyours=2", "spark.odd"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = settings("local[*]", {})
    assert "spark.ui.enabled" not in found
    assert found[JAVA_OPTIONS].endswith(" -Dmine=1 -Dyours=2")
    assert "SharedArchiveFile" not in found[JAVA_OPTIONS], (
        "Java takes no archive with a directory in its path"
    )


def test_a_defaults_file_that_spark_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled true")
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert settings("local[*]", {})["spark.ui.enabled"] == "false"


def test_a_cluster_gets_nothing_that_is_for_one_machine() -> None:
    found = settings("spark://h1:7077", {})
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert not {"spark.ui.enabled", "spark.driver.host", "spark.sql.shuffle.partitions"} & found.keys()
    assert "spark.driver.host" not in settings("local-cluster[2,1,1024]", {})
    near = settings("spark://127.0.0.1:7077", {"spark.executor.extraJavaOptions": "-Dmine=1"})
    assert near["spark.driver.host"] == "127.0.0.1"
    assert near["spark.executor.extraJavaOptions"].endswith("-Dmine=1")
    assert "spark.executor.extraJavaOptions" not in found


@pytest.mark.parametrize(
    ("package", "fault"),
    [
        (Package("pyspark", (4, 2)), None),
        (Package("pyspark", (99, 0)), "has to be 99.0 or newer"),
        (Package("pandas", (1, 0), (2, 0)), "has to be older than 2.0"),
        (Package("no-such-package-of-hawser", (1, 0)), "is not installed"),
    ],
)
def test_packages_are_checked(package: Package, fault: str | None) -> None:
    assert package.fault is None if fault is None else fault in str(package.fault)


def test_an_error_names_every_fault_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (Package("pyspark", (99, 0)), Package("no-such-package-of-hawser", (1, 0)))
    monkeypatch.setattr(requirements, "PACKAGES", wanted)
    with pytest.raises(hawser.UsageError) as caught:
        check_packages()
    for word in ("pyspark", "99.0", "no-such-package-of-hawser", "pip install 'hawser-bus[spark]'"):
        assert word in str(caught.value)
