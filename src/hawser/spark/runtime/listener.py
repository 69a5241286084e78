"""A listener to the streaming queries of a session: a line for each micro-batch, metrics for Prometheus.

A listener that fails logs that once and still gets the next event; queries are not affected. Spark calls it
from a thread of its own, one event after the other.
"""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from hawser.cluster.health import Health
from hawser.cluster.transport import BadAddress, Unreachable
from hawser.errors import UsageError
from hawser.spark.runtime.progress import Figures, line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Listener", "is_heard", "listen"]

_log = logging.getLogger("hawser.spark")
_listeners: "dict[SparkSession, Listener]" = {}


def listen(
    spark: "SparkSession", *, progress: bool | None = None, metrics: str | None = None
) -> "Listener | None":
    """Listen to all queries of this session, in place of an earlier listener, until `close()`.

    `progress` writes a line for each micro-batch to standard error; by default if that is a terminal.
    `metrics` is an address, `127.0.0.1:9464` for example, at which `/metrics` shows `hawser_spark_*`.
    None if there is nothing to do. UsageError if the address cannot be had.
    """
    if former := _listeners.get(spark):
        former.close()
    lines = sys.stderr if (sys.stderr.isatty() if progress is None else progress) else None
    if lines is None and metrics is None:
        return None
    _listeners[spark] = listener = Listener(spark, lines, metrics)
    return listener


def is_heard(spark: "SparkSession") -> bool:
    """Whether Hawser listens to this session."""
    return spark in _listeners


class Listener(StreamingQueryListener):
    """Counts what the queries of a session do."""

    def __init__(self, spark: "SparkSession", lines: TextIO | None, metrics: str | None) -> None:
        self.figures = Figures()
        self._names: dict[str, str] = {}
        self._lines = lines
        self._complained = False
        self._pages = None if metrics is None else _Pages(self.figures, metrics)
        self._session = spark
        spark.streams.addListener(self)

    @property
    def port(self) -> int | None:
        """The address that serves `/metrics`."""
        return None if self._pages is None else self._pages.port

    def close(self) -> None:
        """Stop listening and serving."""
        _listeners.pop(self._session, None)
        self._session.streams.removeListener(self)
        if self._pages is not None:
            self._pages.close()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, Spark's name
        with self._unharmed():
            self._names[str(event.runId)] = name = event.name or str(event.id)[:8]
            self.figures.of(name).runs = True

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802, Spark's name
        with self._unharmed():
            report = json.loads(event.progress.json)
            self.figures.add(report)
            self._say(line_of(report))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, Spark's name
        with self._unharmed():
            name = self._names.pop(str(event.runId), str(event.id)[:8])
            totals = self.figures.of(name)
            totals.runs = False
            if event.exception is not None:
                totals.failures += 1
                self._say(f"{name}  failed: {event.exception.strip().splitlines()[0]}")

    def _say(self, line: str) -> None:
        if self._lines is not None:
            print(line, file=self._lines, flush=True)

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._complained:
                self._complained = True
                _log.warning("the progress of a query could not be shown; the query continues", exc_info=True)


class _Pages:
    """`/metrics` and its neighbours, served by a thread."""

    def __init__(self, figures: Figures, address: str) -> None:
        self._health = Health(lambda: None, figures.metrics)
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._health.start(address))
        except (BadAddress, Unreachable) as error:
            self._loop.close()
            raise UsageError(f"{error}; give another address, or one with port 0") from error
        self._thread = threading.Thread(target=self._loop.run_forever, name="hawser-spark-pages", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._health.port

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._health.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
