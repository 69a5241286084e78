"""A Spark session with settings that suit a laptop and with a quick start. The user's settings take
precedence.

The first of these decides a setting: the call, `spark-defaults.conf`, Hawser. Existing environment variables
are kept. Variables set here last until the session is up, so that programs started later do not inherit them.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hawser.spark.archive import archive_options, make_archive_at_exit
from hawser.spark.requirements import check_packages
from hawser.spark.runtime.java import find_java
from hawser.spark.runtime.spark_home import linked_home, logging_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["environment", "session", "settings", "spark_home"]

_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_ON_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_ON_THIS_MACHINE: Final = {
    "spark.ui.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    # The default one starts some twenty processes for each micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def session(app: str = "hawser", master: str | None = None, **conf: Any) -> "SparkSession":
    """The running session, or a new one at `master`: `local[*]` unless told or chosen by `spark-submit`.

    `conf` are settings by their Spark names: `session("orders", **{"spark.sql.shuffle.partitions": 4})`.
    A master `sc://host:port` is a Spark Connect server. The session is listened to as `listen()` does by
    default. UsageError if Java, PySpark, pyarrow or pandas are missing or do not fit, with what to install.
    """
    check_packages()
    from hawser.spark.runtime.listener import is_heard, listen

    found = _connected(app, master, conf) if _is_remote(master) else _started(app, master, conf)
    if not is_heard(found):
        listen(found)
    return found


def _connected(app: str, master: str | None, conf: Mapping[str, Any]) -> "SparkSession":
    from pyspark.sql import SparkSession

    assert master is not None, "a server has an address"
    return _with(SparkSession.builder.appName(app).remote(master), conf).getOrCreate()


def _started(app: str, master: str | None, conf: Mapping[str, Any]) -> "SparkSession":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        # A running session keeps its settings, apart from those of this call.
        return _with(SparkSession.builder, conf).getOrCreate()
    builder = SparkSession.builder.appName(app)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    with _for_a_while(environment(master, conf)):
        make_archive_at_exit(spark_home())
        return _with(builder, settings(master, conf)).getOrCreate()


def spark_home() -> Path:
    """The user's SPARK_HOME, else a home of links to the installed PySpark."""
    from pyspark.version import __version__ as version

    return Path(os.environ.get("SPARK_HOME") or linked_home(version))


def environment(master: str | None = "local[*]", conf: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The variables with which Spark is to be started at `master` with these settings, without those that are
    set already."""
    wanted = {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        # Spark finds the source, plans it and runs its tasks with one and the same path. A
        # PYSPARK_DRIVER_PYTHON would take the place of the PYSPARK_PYTHON that a user has chosen for workers.
        "PYSPARK_PYTHON": sys.executable,
    }
    if _is_local(master) or _is_cluster_on_loopback(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    cores = _cores_of_cluster(master, {**_defaults_of_user(), **(conf or {})})
    if cores is not None:
        # The source plans its tasks in a process that sees nothing else of the cluster.
        wanted["HAWSER_SPARK_CORES"] = str(cores)
    return {name: value for name, value in wanted.items() if not os.environ.get(name)}


def settings(master: str | None, conf: Mapping[str, Any]) -> dict[str, Any]:
    """`conf`, and what Hawser sets where neither it nor `spark-defaults.conf` says anything."""
    chosen = dict(_EVERYWHERE)
    if _is_local(master) or _is_cluster_on_loopback(master):
        chosen |= _ON_LOOPBACK
    if _is_local(master):
        # Of the usual 200 tasks, each costs more than its share of the work on a machine of a few cores.
        chosen |= _ON_THIS_MACHINE | {"spark.sql.shuffle.partitions": str(_cores(master))}
    defaults = _defaults_of_user()
    found = {name: value for name, value in chosen.items() if name not in defaults} | dict(conf)
    ours = _java_options(master)
    for name, options in ours.items():
        # The JVM takes the last of two options that contradict each other.
        theirs = str(conf.get(name) or defaults.get(name) or "")
        found[name] = " ".join(filter(None, [*options, theirs]))
    return found


def _java_options(master: str | None) -> dict[str, list[str]]:
    """For the driver, and for executors that see the files of this machine."""
    archive = archive_options(spark_home())
    file = logging_file()
    logging = [] if file is None else [f"-Dlog4j2.configurationFile={file.as_uri()}"]
    executors = {"spark.executor.extraJavaOptions": archive} if _is_cluster_on_loopback(master) else {}
    return {"spark.driver.extraJavaOptions": [*logging, *archive], **executors}


def _is_local(master: str | None) -> bool:
    return master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None


def _is_cluster_on_loopback(master: str | None) -> bool:
    return master is not None and re.match(r"spark://(127\.|localhost\b)", master) is not None


def _is_remote(master: str | None) -> bool:
    return master is not None and master.startswith("sc://")


def _cores(master: str | None) -> int:
    """The number of cores of a local master."""
    told = re.match(r"local\[(\d+)", master or "")
    return int(told.group(1)) if told else os.cpu_count() or 1


def _cores_of_cluster(master: str | None, said: Mapping[str, Any]) -> int | None:
    """The number of cores that run the session's tasks; None if no setting says so."""

    def number(name: str) -> int | None:
        text = str(said.get(name, ""))
        return int(text) if text.isdecimal() and int(text) else None

    told = number("spark.default.parallelism")
    if told is not None:
        return told
    if _is_local(master):
        return _cores(master)
    executors, cores = number("spark.executor.instances"), number("spark.executor.cores")
    return executors * cores if executors and cores else number("spark.cores.max")


def _with(builder: "SparkSession.Builder", conf: Mapping[str, Any]) -> "SparkSession.Builder":
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder


def _defaults_of_user() -> dict[str, str]:
    """What `spark-defaults.conf` says; empty without one."""
    directory = os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf"
    try:
        text = Path(directory, "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.replace("=", " ", 1).split(None, 1) for line in lines if line and not line.startswith("#")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@contextmanager
def _for_a_while(variables: Mapping[str, str]) -> Iterator[None]:
    """With these variables in the environment, which did not have them."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
