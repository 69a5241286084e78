"""One Spark session for all tests of a process: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import hawser
import hawser.spark
from hawser.spark.archive import make_archive
from hawser.spark.runtime.session import spark_home
from tests.support.cluster import RunningCluster
from tests.support.spark import SMALL, need_java


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """On two cores, with its warehouse in a temporary directory. Skips where there is no Java."""
    need_java()
    # Once on a machine; else a process that makes it would outlive the tests.
    make_archive(spark_home())
    directory = tmp_path_factory.mktemp("spark")
    session = hawser.spark.session(
        "tests",
        "local[2]",
        **SMALL,
        **{
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    """A bus of the file's cluster."""
    return cluster.connect("tests")
