"""What `hawser doctor` says of Spark: never a failure, always what to do."""

import os
import sys
from pathlib import Path

import pytest

from hawser.cli.doctor import Finding, spark
from hawser.cli.doctor.spark import spark_checks
from hawser.spark.requirements import Package


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(variable, raising=False)


def found() -> dict[str, Finding]:
    return {finding.check: finding for finding in spark_checks()}


def test_everything_fits() -> None:
    findings = found()
    assert findings["Spark"].verdict == "ok" and "pyspark 4." in findings["Spark"].finding
    assert findings["PYSPARK_PYTHON"] == Finding(
        "PYSPARK_PYTHON", "ok", "not set; hawser.spark.session() uses this Python, with pyspark_hawser"
    )
    assert set(findings) == {"Spark", "Java", "PYSPARK_PYTHON"}


def test_without_spark_there_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "PACKAGES", (Package("no-such-package-of-hawser", (1, 0)),))
    (finding,) = spark_checks()
    assert (finding.check, finding.verdict) == ("Spark", "ok")
    assert "pip install 'hawser-bus[spark]'" in finding.finding


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (Package("pyspark", (4, 2)), Package("pandas", (1, 0), (2, 0)))
    monkeypatch.setattr(spark, "PACKAGES", packages)
    assert found()["Spark"].verdict == "warn"
    assert "older than 2.0" in found()["Spark"].finding


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = found()["Java"]
    assert finding.verdict == "warn" and "no bin/java" in finding.finding
    assert "openjdk-17-jre-headless" in finding.advice


def fake_python(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('[[3, 9], "4.3.0", true]', ["is Python 3.9, not"]),
        ('[[3, 9], "3.5.1", false]', ["has PySpark 3.5.1, not", "does not find pyspark_hawser"]),
        ("[[3, 9], null, false]", ["has no PySpark"]),
        ("nonsense", ["does not run"]),
    ],
)
def test_a_python_that_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, words: list[str]
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", fake_python(tmp_path / "python", answer))
    finding = found()["PYSPARK_DRIVER_PYTHON"]
    assert finding.verdict == "warn" and sys.executable in finding.advice
    assert [word for word in words if word not in finding.finding] == []


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", os.path.join("nowhere", "python"))
    finding = found()["PYSPARK_PYTHON"]
    assert finding.verdict == "warn" and "does not run" in finding.finding
