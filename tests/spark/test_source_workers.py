"""Collections of garbage in a worker of Spark do not visit what was imported."""

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from hawser.spark import python_workers

pytest.importorskip("pyspark")

# As Spark's daemon is started, with a task of ours in it.
WORKER = """
import gc, sys
import pyarrow, pandas, pyspark.daemon
sys.modules["__main__"].__spec__ = pyspark.daemon.__spec__
from hawser.spark.python_workers import set_imports_aside
before = len(gc.get_objects())
set_imports_aside()
first, left = gc.get_freeze_count(), len(gc.get_objects())
set_imports_aside()
print(before, first, left, gc.get_freeze_count())
"""


def test_a_worker_sets_them_aside_once(record_property: Callable[[str, object], None]) -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], check=True, capture_output=True, text=True)
    before, first, left, second = map(int, done.stdout.split())
    record_property("objects", before)
    assert first > 0.9 * before
    assert left < 0.1 * before
    assert second == first


def test_nobody_else_does() -> None:
    before = gc.get_freeze_count()
    python_workers.set_imports_aside()
    assert gc.get_freeze_count() == before
