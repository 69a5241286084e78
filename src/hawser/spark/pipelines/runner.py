"""Runs a pipeline: one update, or one after the other until the run is ended."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from hawser.errors import HawserError, Unavailable
from hawser.spark.pipelines.directory import Place
from hawser.spark.pipelines.server import Server, server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hawser.spark.pipelines.update import Event

__all__ = ["AUDIT", "LANDING", "Plan", "Report", "Watcher", "run"]

LANDING: Final = Path(__file__).with_name("landing.py")
AUDIT: Final = Path(__file__).with_name("audit.py")
_OURS: Final = "spark.hawser."
# Spark 4.3 keeps some three megabytes of each update until its session ends, and a Python process of each
# session until its server ends. So after so many updates both are started anew.
_MOST_UPDATES: Final = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The pipeline to run, its directory, and how often. With `remote`, the URL of a Connect server, `master`
    is not used. `conf` are settings for the pipeline's file and for Spark."""

    place: Place
    file: Path = LANDING
    conf: dict[str, str] = field(default_factory=dict)
    master: str = "local[*]"
    remote: str | None = None
    full_refresh: tuple[str, ...] = ()
    force: bool = False
    every_seconds: float | None = None


class Watcher(Protocol):
    """Gets the events of a run."""

    def say(self, text: str) -> None: ...

    def begin(self, tables: list[str]) -> None:
        """An update of these tables begins."""

    def tell(self, event: "Event") -> None: ...

    def end(self, failure: HawserError | None) -> None:
        """The update is over."""


class Report:
    """A run's report of the tables. The run has exclusive use of the directory from `begin` to `end`."""

    def begin(self) -> None: ...

    def after_update(self) -> None: ...

    def end(self) -> None:
        """Called at the end of every run that has begun, also after a failure."""


def run(plan: Plan, watcher: Watcher, report: Report) -> None:
    """Run the plan: return after an update, or with `every_seconds` never. Unavailable if the directory is in
    use. After an exception or a signal the next run continues where this one ended."""
    with plan.place.lock() as lock:
        plan.place.finish_forgetting()
        report.begin()
        try:
            _run_updates(plan, watcher, report, lock)
        except BaseException:
            # The error of the run decides the exit code, whether or not the report can be written.
            try:
                report.end()
            except (HawserError, OSError) as error:
                watcher.say(f"no report was written: {error}")
            raise
        report.end()


def _run_updates(plan: Plan, watcher: Watcher, report: Report, lock: int) -> None:
    to_refresh = list(plan.full_refresh)
    while True:
        with _spark(plan, lock, watcher) as (spark, own_server):
            updates = _updates(plan, spark, own_server, watcher, to_refresh)
            for _ in islice(updates, _MOST_UPDATES):
                report.after_update()
        if plan.every_seconds is None:
            return


@contextmanager
def _spark(plan: Plan, lock: int, watcher: Watcher) -> Iterator[tuple["SparkSession", Server | None]]:
    # The part of a URL behind the address may hold a secret.
    remote = None if plan.remote is None else plan.remote.partition(";")[0]
    watcher.say(f"starting Spark at {plan.master}" if remote is None else f"connecting to {remote}")
    own = (
        nullcontext(None)
        if plan.remote is not None
        else server(plan.master, plan.place.directory, plan.place.log, _of_spark(plan.conf), [lock])
    )
    with own as started:
        from hawser.spark.pipelines.server import connected

        url = plan.remote if started is None else started.url
        assert url is not None
        with connected(url) as spark:
            watcher.say(f"Spark {spark.version} answers")
            yield spark, started


def _updates(
    plan: Plan, spark: "SparkSession", own_server: Server | None, watcher: Watcher, to_refresh: list[str]
) -> Iterator[None]:
    from hawser.spark.pipelines.update import Pipeline

    # The pipeline's own server got the others when it was started; many can be set only then.
    conf = plan.conf if own_server is None else _of_pipeline(plan.conf)
    pipeline = Pipeline(spark, plan.place, plan.file, conf)
    while True:
        began = time.monotonic()
        try:
            update = pipeline.define()
            if to_refresh:
                watcher.say(f"made anew: {', '.join(update.forget(to_refresh, plan.force))}")
                to_refresh.clear()
            watcher.begin(update.definitions.tables)
            update.run(watcher.tell)
            watcher.end(None)
        except HawserError as error:
            watcher.end(error)
            _raise_unless_retryable(plan, error, own_server)
            watcher.say(f"{error}; trying again")
        yield
        if plan.every_seconds is None:
            return
        time.sleep(max(0.0, began + plan.every_seconds - time.monotonic()))


def _of_pipeline(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name.startswith(_OURS)}


def _of_spark(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if not name.startswith(_OURS)}


def _raise_unless_retryable(plan: Plan, error: HawserError, own_server: Server | None) -> None:
    if own_server is not None and not own_server.runs:
        raise Unavailable(
            f"Spark died; what it landed is safe, run the pipeline again to go on (see {plan.place.log})"
        ) from error
    if plan.every_seconds is None or not error.retryable:
        raise error
