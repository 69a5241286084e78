"""The cheaper checkpoint manager under two queries on one checkpoint: they fail, and nothing else does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark import rival_program

FAILURES = 3


@pytest.mark.slow
def test_two_queries_on_one_checkpoint(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """In two processes, each started again when it has failed, so that they race for every micro-batch."""
    words = [rival_program.__file__, str(tmp_path), str(FAILURES)]
    errors: list[str] = []
    starts = 0
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as rival:
        try:
            while rival.poll() is None:
                starts += 1
                try:
                    query = rival_program.start(spark, tmp_path)
                    while rival.poll() is None and not query.awaitTermination(1):
                        pass
                    query.stop()
                except PySparkException as error:
                    errors.append(str(error))
            assert rival.stdout is not None and rival.returncode == 0
            errors += json.loads(rival.stdout.read())
        finally:
            rival.kill()
    unclear = [error for error in errors if "oncurrent" not in error and "RENAME" not in error]
    assert unclear == [], "each failure says that somebody else is at work"
    rows = spark.read.parquet(str(tmp_path / "files")).selectExpr(
        "count(*) rows", "count(distinct value) different", "max(value) + 1 expected"
    )
    found = rows.first()
    assert found is not None
    assert found.rows == found.different == found.expected > 0
    record_property("failures of two queries that share a checkpoint", len(errors))
    record_property("starts of the first", starts)
    record_property("rows written, each once", found.rows)
