"""A session of a Connect server, for as long as a block lasts."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql.connect.client.retries import DefaultPolicy

from hawser.errors import Unavailable
from hawser.spark.requirements import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connected"]

# By default a client tries for ten minutes to reach a server that is gone. Ours is on this machine, or dead;
# with another one whoever runs the pipeline can run it again.
_TRIES: Final = 6
_LONGEST_PAUSE_MS: Final = 1000


@contextmanager
def connected(url: str) -> Iterator["SparkSession"]:
    """Unavailable if nobody answers at `url`, without what may be secret in it."""
    check_packages()
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(url).create()
        client = cast(Any, spark).client
        client.set_retry_policies([DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_PAUSE_MS)])
        assert spark.version
    except PySparkException as error:
        address = url.partition(";")[0].rstrip("/")
        raise Unavailable(f"no Spark Connect server answers at {address}: {error}") from error
    try:
        yield spark
    finally:
        with suppress(PySparkException), warnings.catch_warnings(action="ignore", category=UserWarning):
            spark.stop()
