"""A SPARK_HOME of links to the installed PySpark, and a quiet logging configuration.

Spark puts `python/lib/pyspark.zip` of its home in front of the path of every Python worker. Modules from a
zip are compiled again in each process. A home without `python`, and otherwise like the installed one, makes
the workers import the installed modules, which are compiled already.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hawser.spark.runtime.cache import cache_directory, kept, key_of

__all__ = ["installed_home", "linked_home", "logging_file"]

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex{short}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.addresses.name = org.apache.spark.util.Utils
logger.addresses.level = error
# Spark warns of this in every query, without a fault.
logger.planning.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.planning.level = error
"""


def installed_home() -> Path:
    """Where the PySpark of this Python is installed."""
    specification = find_spec("pyspark")
    assert specification is not None and specification.origin is not None, "PySpark was checked for before"
    return Path(specification.origin).parent


def linked_home(version: str) -> Path:
    """A home of links to the installed PySpark of this version, itself where no links can be kept."""
    installed = installed_home()
    directory = cache_directory()
    if directory is None:
        return installed

    def make(home: Path) -> None:
        home.mkdir()
        for entry in installed.iterdir():
            if entry.is_dir() and entry.name not in ("python", "__pycache__"):
                (home / entry.name).symlink_to(entry)

    try:
        return kept(directory / f"home-{version}-{key_of(installed)}", make)
    except OSError:
        return installed


def logging_file() -> Path | None:
    """A log4j2 configuration that lets warnings through and nothing else; None where none can be kept."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        return kept(directory / f"log4j2-{key_of(_LOGGING)}.properties", _write_logging)
    except OSError:
        return None


def _write_logging(path: Path) -> None:
    path.write_text(_LOGGING, encoding="utf-8")
